"""What answers behind a model: a GPU session, or NumPy where there is no GPU."""

import logging
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from os import PathLike
from typing import Any, Protocol, TypeVar

from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.engine import Engine
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import restore, save
from wgemma.engine.senses import Medium, Senses
from wgemma.engine.session import Session, Token
from wgemma.engine.towers import GpuTowers, Towers
from wgemma.errors import DeviceError, DeviceLost, SessionError
from wgemma.gpu.device import Buffer, Device
from wgemma.text.parts import Content

T = TypeVar("T")

log = logging.getLogger(__name__)
REBUILDS = 2  # times in one reply that a lost device is replaced before giving up


class Backend(Protocol):
    """Generates tokens and computes logits for one sequence at a time."""

    name: str

    @property
    def towers(self) -> Towers: ...
    @property
    def context(self) -> int: ...
    @property
    def reused(self) -> int: ...
    @property
    def adapters(self) -> Adapters: ...
    async def adapt(self, adapters: Adapters) -> None:
        """Has these adapters from now on; when that fails, nothing has changed."""
        ...

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        marks: Sequence[int] = (),
        cancelled: Callable[[], bool] = lambda: False,
        adapter: Setting = BARE,
    ) -> AsyncGenerator[Token, None]: ...
    def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]: ...
    async def place(self, contents: Sequence[Content]) -> Sequence[Sequence[Medium[Any]]]:
        """What the pictures and sounds of a prompt become in its sequence."""
        ...

    async def encode(self, content: Content) -> bytes:
        """A picture's or a sound's rows themselves, as f32."""
        ...

    async def samples(self, source: Any) -> "array[float]":
        """A sound as the audio tower hears it: 16 kHz, one channel."""
        ...

    def release_towers(self) -> None: ...
    def reset(self) -> None: ...
    async def save(self, path: str | PathLike[str]) -> None: ...
    async def restore(self, path: str | PathLike[str]) -> None: ...
    def close(self) -> None: ...


class GpuBackend:
    """One session on a device; when the device is lost, everything is built anew and the tokens are replayed."""

    def __init__(self, device: Device, engine: Engine, towers: GpuTowers, *, owned: bool) -> None:
        self.device = device
        self.engine = engine
        self.towers = towers
        self.senses: Senses[Buffer] = Senses(towers, engine.config.width)
        engine.senses = self.senses
        self.session = Session(engine)
        self.name = device.info.name
        self._owned = owned
        self._closed = False

    @property
    def context(self) -> int:
        return self.engine.context

    @property
    def reused(self) -> int:
        return self.session.reused

    @property
    def adapters(self) -> Adapters:
        return self.engine.adapters

    async def adapt(self, adapters: Adapters) -> None:
        await self._in_spite_of_loss(lambda: self.engine.adapt(adapters))

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        marks: Sequence[int] = (),
        cancelled: Callable[[], bool] = lambda: False,
        adapter: Setting = BARE,
    ) -> AsyncGenerator[Token, None]:
        given: list[int] = []
        sampling = sampling.settled()
        for attempt in range(REBUILDS + 1):
            try:
                rest = max_tokens - len(given)
                prompt = [*ids, *given]
                self.session.use(adapter)
                async with aclosing(self.session.generate(prompt, sampling, rest, marks, cancelled)) as tokens:
                    async for token in tokens:
                        given.append(token.id)
                        yield token
                return
            except DeviceError as loss:
                if self._closed:
                    raise SessionError("this model was closed in the middle of a reply.") from None
                if attempt == REBUILDS or not isinstance(loss, DeviceLost):
                    raise
                log.warning("%s; starting it again and replaying %d tokens", loss, len(ids) + len(given))
                await self.rebuild()

    async def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]:
        async def collect() -> list[bytes]:
            self.session.use(adapter)
            async with aclosing(self.session.logits(ids, chunks)) as pieces:
                return [part async for part in pieces]

        for part in await self._in_spite_of_loss(collect):
            yield part

    async def place(self, contents: Sequence[Content]) -> list[list[Medium[Buffer]]]:
        return await self._in_spite_of_loss(lambda: self.senses.place(contents))

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
        for _ in range(REBUILDS):
            try:
                return await work()
            except DeviceLost:
                await self.rebuild()
        return await work()

    async def rebuild(self) -> None:
        """A fresh device in place of the lost one, the model loaded again; the session starts empty."""
        old = self.engine
        self.device = await self.device.reopen()
        self._owned = True
        self.towers.move(self.device)
        self.senses.lose_rows()
        self.engine = await Engine.load(self.device, old.gguf, old.options)
        self.engine.senses = self.senses
        await self.engine.adapt(old.adapters)
        self.session = Session(self.engine)
        await self.device.confirm()

    def release_towers(self) -> None:
        self.towers.release()

    def reset(self) -> None:
        self.session.reset()

    async def save(self, path: str | PathLike[str]) -> None:
        await save(self.session, path)

    async def restore(self, path: str | PathLike[str]) -> None:
        restored = await restore(self.engine, path)
        self.session.free()
        self.session = restored

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._owned:
            self.device.close()
        else:
            self.session.free()
            self.senses.free()
            self.engine.free()
