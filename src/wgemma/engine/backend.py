"""What runs a model: a GPU, or NumPy without one."""

import logging
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from typing import Any, Protocol, TypeVar

from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.engine import Engine
from wgemma.engine.generation import Token, generate
from wgemma.engine.opening import open_engine
from wgemma.engine.request import Request
from wgemma.engine.runner import Runner
from wgemma.engine.saved import restore, save
from wgemma.engine.scoring import hidden, logits
from wgemma.engine.senses import Medium, Senses
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.towers import GpuTowers, Towers
from wgemma.errors import DeviceError, DeviceLost, SessionError
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.text.parts import Content

T = TypeVar("T")

log = logging.getLogger(__name__)
REBUILDS = 2  # times a lost device is reopened in one reply before giving up


class Backend(Protocol):
    """Generates tokens and computes logits for one sequence at a time."""

    name: str

    @property
    def towers(self) -> Towers: ...
    @property
    def context(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def reused(self) -> int: ...
    @property
    def adapters(self) -> Adapters: ...
    async def adapt(self, adapters: Adapters) -> None:
        """Uses these adapters from now on; on failure nothing changes."""
        ...

    @property
    def runner(self) -> Runner:
        """The model on a GPU; raises `DeviceError` if there is none."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Token, None]: ...
    def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]: ...
    def hidden(self, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
        """The last hidden state after the final norm, as f32 [rows, width]; leaves the sequence alone."""
        ...

    async def place(self, contents: Sequence[Content]) -> Sequence[Sequence[Medium[Any]]]:
        """The soft rows that stand for the images and sounds of a prompt."""
        ...

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
    def reset(self) -> None: ...
    async def save(self, path: str | PathLike[str]) -> None: ...
    async def restore(self, path: str | PathLike[str]) -> None: ...
    def close(self) -> None: ...


class GpuBackend:
    """One sequence on a device; if the device is lost, everything is rebuilt and the tokens are replayed."""

    def __init__(self, engine: Engine, towers: GpuTowers, *, owned: bool) -> None:
        self.towers = towers
        self.senses: Senses[Buffer] = Senses(towers, engine.config.width)
        self.runner = Runner(engine, self.senses)
        self.sequence = TokenSequence()
        self.name = engine.device.info.name
        self._owned = owned
        self._stopped = self._closed = False

    @property
    def engine(self) -> Engine:
        return self.runner.engine

    @property
    def device(self) -> Device:
        return self.runner.device

    @property
    def context(self) -> int:
        return self.engine.context

    @property
    def vocab(self) -> int:
        return self.engine.config.vocab_size

    @property
    def reused(self) -> int:
        return self.sequence.reused

    @property
    def adapters(self) -> Adapters:
        return self.engine.adapters

    async def adapt(self, adapters: Adapters) -> None:
        await self._in_spite_of_loss(lambda: self.engine.adapt(adapters))

    async def generate(self, request: Request) -> AsyncGenerator[Token, None]:
        given: list[int] = []
        request = replace(request, sampling=request.sampling.settled())
        for attempt in range(REBUILDS + 1):
            rest = replace(request, ids=[*request.ids, *given], max_tokens=request.max_tokens - len(given))
            try:
                async with aclosing(generate(self.runner, self.sequence, rest)) as tokens:
                    async for token in tokens:
                        given.append(token.id)
                        yield token
                return
            except DeviceError as loss:
                if self._stopped:
                    raise SessionError("this model was closed in the middle of a reply.") from None
                if attempt == REBUILDS or not isinstance(loss, DeviceLost):
                    raise
                log.warning("%s; starting it again and replaying %d tokens", loss, len(rest.ids))
                await self.rebuild()

    def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]:
        def begin() -> AsyncGenerator[bytes, None]:
            self.sequence.use(adapter)
            return logits(self.runner, self.sequence, ids, chunks)

        return self._replayed(begin)

    async def hidden(self, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
        beside = TokenSequence(adapter=adapter)
        try:
            async with aclosing(self._replayed(lambda: hidden(self.runner, beside, ids))) as parts:
                async for part in parts:
                    yield part
        finally:
            beside.reset()  # else it would be parked

    async def _replayed(self, begin: Callable[[], AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
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

    def weigh(self, content: Content) -> int:
        return self.senses.weigh(content)

    async def encode(self, content: Content) -> bytes:
        async def rows() -> bytes:
            parts = []
            for medium in await self.senses.take(content):
                buffer, _ = await self.senses.rows(medium.first)
                parts.append(await self.device.read(buffer))
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

    async def rebuild(self) -> None:
        """Replaces the lost device with a new one and loads the model again; the sequence starts empty."""
        old = self.engine
        ledger = Ledger(await self.device.reopen(), limit=old.options.memory)
        self._owned = True
        self.towers.move(ledger)
        self.senses.lose_rows()
        engine = await open_engine(ledger, old.gguf, old.config, old.options)
        await engine.adapt(old.adapters)
        self.runner, self.sequence = Runner(engine, self.senses), TokenSequence()
        self.runner.stopped = self._stopped
        await self.device.confirm()

    def stop(self) -> None:
        self._stopped = self.runner.stopped = True

    def release_towers(self) -> None:
        self.towers.release()

    def reset(self) -> None:
        self.sequence.reset()

    async def save(self, path: str | PathLike[str]) -> None:
        await save(self.runner, self.sequence, path)

    async def restore(self, path: str | PathLike[str]) -> None:
        restored = await restore(self.runner, path)
        self.sequence.reset()
        self.sequence = restored

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._owned:
            self.device.close()
        else:
            self.runner.free()
            self.senses.free()
            self.engine.free()
