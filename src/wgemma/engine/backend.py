"""What runs a model: a GPU, or NumPy without one."""

import logging
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from os import PathLike
from typing import Any, Protocol, TypeVar

from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.batch import REBUILDS, UNREAD, Batch
from wgemma.engine.engine import Engine
from wgemma.engine.opening import open_engine
from wgemma.engine.owner import Owner
from wgemma.engine.request import PromptProgress, Request, Token
from wgemma.engine.runner import Runner
from wgemma.engine.saved import Kept, restore, save
from wgemma.engine.scoring import hidden, hidden_of, logits
from wgemma.engine.senses import Medium, Senses
from wgemma.engine.towers import GpuTowers, Towers
from wgemma.engine.turns import Turns
from wgemma.errors import DeviceLost, SessionError
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.text.parts import Content

T = TypeVar("T")

log = logging.getLogger(__name__)


class Backend(Protocol):
    """Generates tokens and computes logits."""

    name: str

    def attach(self, turns: Turns) -> None:
        """From now on generations take their turns here, with everybody else who uses the device."""
        ...

    def turn(self) -> AbstractAsyncContextManager[None]:
        """The device for oneself, which everything but `generate` needs."""
        ...

    @property
    def towers(self) -> Towers: ...
    @property
    def slots(self) -> int:
        """How many generations run at the same time."""
        ...

    @property
    def context(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def adapters(self) -> Adapters: ...
    async def adapt(self, adapters: Adapters) -> None:
        """Uses these adapters from now on; on failure nothing changes."""
        ...

    @property
    def runner(self) -> Runner:
        """The model on a GPU; raises `DeviceError` if there is none."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Token, None]:
        """The tokens of one generation; a backend that can runs several at once. Needs no turn."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is being generated; replies that nobody reads on do not count."""
        ...

    def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]: ...
    def hidden(self, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
        """The last hidden state after the final norm, as f32 [rows, width]."""
        ...

    def hidden_of(
        self, texts: Sequence[Sequence[int]], adapter: Setting = BARE
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """`hidden` of several texts, as (number, rows) in their order."""
        ...

    async def place(self, contents: Sequence[Content]) -> Sequence[Sequence[Medium[Any]]]:
        """The soft rows that stand for the images and sounds of a prompt, which stay until they are `let_go`."""
        ...

    def let_go(self, placed: Sequence[Sequence[Medium[Any]]]) -> None: ...

    def weigh(self, content: Content) -> int:
        """How many ids an image or sound takes in a prompt, at most."""
        ...

    async def encode(self, content: Content) -> bytes:
        """The encoded rows of an image or sound, as f32."""
        ...

    async def samples(self, source: Any) -> "array[float]":
        """A sound in the audio tower's format: 16 kHz, mono."""
        ...

    async def rebuild(self) -> None:
        """Starts again on a new device after the old one was lost."""
        ...

    def stop(self) -> None:
        """Ends what another thread computes, with `SessionError`, after the current pass; nothing runs from now on."""
        ...

    def release_towers(self) -> None: ...
    async def reset(self) -> None:
        """Forgets everything that was computed, except for what is being generated."""
        ...

    async def save(self, kept: Kept, path: str | PathLike[str]) -> None: ...
    async def restore(self, path: str | PathLike[str]) -> Kept: ...
    def close(self) -> None: ...


class GpuBackend:
    """Many sequences on a device; if the device is lost, everything is rebuilt and the tokens are replayed."""

    def __init__(self, engine: Engine, towers: GpuTowers, *, owned: bool) -> None:
        self.towers = towers
        self.senses: Senses[Buffer] = Senses(towers, engine.config.width)
        self.runner = Runner(engine, self.senses)
        self.batch = Batch(self.runner, self._replace)
        self.name = engine.device.info.name
        self._owned = owned
        self._stopped = self._closed = False
        self._owner: Owner | None = None

    def attach(self, turns: Turns) -> None:
        self._turns, self._owner = turns, Owner(self.batch, turns)

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._turns.take()

    @property
    def engine(self) -> Engine:
        return self.runner.engine

    @property
    def device(self) -> Device:
        return self.runner.device

    @property
    def slots(self) -> int:
        return self.engine.options.slots

    @property
    def context(self) -> int:
        return self.engine.context

    @property
    def vocab(self) -> int:
        return self.engine.config.vocab_size

    @property
    def adapters(self) -> Adapters:
        return self.engine.adapters

    async def adapt(self, adapters: Adapters) -> None:
        await self._in_spite_of_loss(lambda: self.engine.adapt(adapters))
        self.batch.adapt(adapters)

    async def generate(self, request: Request) -> AsyncGenerator[Token, None]:
        owner = self._owner
        assert owner is not None
        self._turns.check()
        self._turns.refuse_oneself()
        stream = self.batch.submit(request)
        owner.wake()
        try:
            while (item := await stream.read()) is not None:
                if request.cancelled():
                    return
                if stream.unread == UNREAD // 2:
                    owner.wake()
                if isinstance(item, PromptProgress):
                    request.progress(item)
                else:
                    yield item
                self._turns.check_reader()
        finally:
            if not self._turns.elsewhere:  # a forked child has locks that nobody lets go
                stream.close()
                owner.wake()

    @property
    def idle(self) -> bool:
        return not self.batch.busy

    async def _replace(self, loss: DeviceLost) -> Runner:
        """A new runner, after the device was lost."""
        if self._stopped:
            raise SessionError("this model was closed in the middle of a reply.") from None
        log.warning("%s; starting it again", loss)
        await self.rebuild()
        return self.runner

    def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]:
        return self._replayed(lambda: logits(self.runner, ids, chunks, adapter))

    def hidden(self, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
        return self._replayed(lambda: hidden(self.runner, ids, adapter))

    def hidden_of(
        self, texts: Sequence[Sequence[int]], adapter: Setting = BARE
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        return self._replayed(lambda: hidden_of(self.runner, texts, adapter))

    async def _replayed(self, begin: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """What `begin` yields. After a loss it starts over; what was given is not given again."""
        given = 0
        for attempt in range(REBUILDS + 1):
            at = 0
            try:
                async with aclosing(begin()) as parts:
                    async for part in parts:
                        at += 1
                        if at > given:
                            given = at
                            yield part
                return
            except DeviceLost as loss:
                await self._recover(loss, attempt)

    async def place(self, contents: Sequence[Content]) -> list[list[Medium[Buffer]]]:
        return await self._in_spite_of_loss(lambda: self.senses.place(contents))

    def let_go(self, placed: Sequence[Sequence[Medium[Any]]]) -> None:
        self.senses.let_go(placed)

    def weigh(self, content: Content) -> int:
        return self.senses.weigh(content)

    async def encode(self, content: Content) -> bytes:
        async def rows() -> bytes:
            media, parts = await self.senses.take(content), []
            try:
                for medium in media:
                    buffer, _ = await self.senses.rows(medium.first)
                    parts.append(await self.device.read(buffer))
            finally:
                self.senses.let_go([media])
            return b"".join(parts)

        return await self._in_spite_of_loss(rows)

    async def samples(self, source: Any) -> "array[float]":
        return await self._in_spite_of_loss(lambda: self.senses.samples(source))

    async def _in_spite_of_loss(self, work: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(REBUILDS):
            try:
                return await work()
            except DeviceLost as loss:
                await self._recover(loss, attempt)
        return await work()

    async def _recover(self, loss: DeviceLost, attempt: int) -> None:
        """Replaces the lost device, or gives up after REBUILDS of them."""
        if self._stopped:
            raise SessionError("this model was closed in the middle of a call.") from None
        if attempt == REBUILDS:
            raise loss
        await self.rebuild()
        await self.batch.begin_again(self.runner)

    async def rebuild(self) -> None:
        """Replaces the lost device with a new one and loads the model again; nothing is computed there."""
        old = self.engine
        ledger = Ledger(await self.device.reopen(), limit=old.options.memory)
        self._owned = True
        self.towers.move(ledger)
        self.senses.lose_rows()
        engine = await open_engine(ledger, old.gguf, old.config, old.options)
        await engine.adapt(old.adapters)
        self.runner = Runner(engine, self.senses)
        self.runner.stopped = self._stopped
        await self.device.confirm()

    def stop(self) -> None:
        self._stopped = self.runner.stopped = True

    def release_towers(self) -> None:
        self.towers.release()

    async def reset(self) -> None:
        await self.batch.take_leave()
        self.runner.paging.prefixes.clear()

    async def save(self, kept: Kept, path: str | PathLike[str]) -> None:
        await self._in_spite_of_loss(lambda: save(self.runner, kept, path))

    async def restore(self, path: str | PathLike[str]) -> Kept:
        return await restore(self.runner, path)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.batch.fail(SessionError("this model was closed in the middle of a reply."))
        if self._owner is not None:
            self._owner.leave()
        if self._owned:
            self.device.close()
        else:
            self.runner.free()
            self.senses.free()
            self.engine.free()
