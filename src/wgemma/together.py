"""Several answers at once, as one stream of (index, item) in the order in which they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import aclosing, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from wgemma.errors import DeviceLost, Error
from wgemma.sync import SUSPENDED, advance, run

ROOM = 256  # items that may wait for the reader, in an event loop

Begin: TypeAlias = Callable[[], AsyncGenerator[Any, None]]  # begins one answer
Numbered: TypeAlias = tuple[int, Any]


def together(begins: Iterable[Begin], most: int) -> Generator[Numbered, None, None]:
    """(index, item) of all answers, up to `most` of them at a time. An error ends its own answer and comes as its last
    item; a lost device, or an error that is not ours, ends them all. All of it runs in the reader's thread, and whoever
    is woken next goes on first. Closing this closes the answers."""
    waiting, more = enumerate(begins), True
    ready: SimpleQueue[int] = SimpleQueue()
    running: dict[int, _One] = {}
    try:
        while True:
            if more and len(running) < most:
                for index, begin in waiting:
                    running[index] = _One(begin)
                    ready.put(index)
                    break
                else:
                    more = False
            if not running:
                return
            index = ready.get()
            if index not in running:
                continue  # woken after its end
            try:
                item = running[index].advance(partial(ready.put, index))
            except StopAsyncIteration:
                del running[index]
            except DeviceLost:
                raise
            except Error as error:
                del running[index]
                yield index, error
            else:
                if item is not SUSPENDED:
                    ready.put(index)
                    yield index, item
    finally:
        for one in running.values():
            one.close()


class _One:
    """An answer and the step it is in."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._items: AsyncGenerator[Any, None] | None = None
        self._step: Coroutine[Any, Any, Any] | None = None

    def advance(self, wake: Callable[[], None]) -> Any:
        """The next item, or SUSPENDED until `wake` is called."""
        if self._items is None:
            self._items = self._begin()
        step = self._step or _next(self._items)
        self._step = None
        item = advance(step, wake)
        if item is SUSPENDED:
            self._step = step
        return item

    def close(self) -> None:
        if self._step is not None:
            with suppress(asyncio.CancelledError):  # a generator's step cannot just be closed
                self._step.throw(asyncio.CancelledError)
        if self._items is not None:
            run(_close(self._items))


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def merged(begins: Iterable[Begin], most: int) -> AsyncGenerator[Numbered, None]:
    """`together`, for code that runs in an event loop: every answer is a task."""
    waiting = enumerate(begins)
    room: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(ROOM)
    running: dict[int, asyncio.Task[None]] = {}

    async def follow(index: int, begin: Begin) -> None:
        error: Exception | None = None
        try:
            async with aclosing(begin()) as items:
                async for item in items:
                    await room.put((index, item))
        except Exception as raised:
            error = raised
        await room.put((index, _Over(error)))

    def begin_next() -> None:
        for index, begin in waiting:
            running[index] = asyncio.ensure_future(follow(index, begin))
            return

    try:
        for _ in range(most):
            begin_next()
        while running:
            index, item = await room.get()
            if not isinstance(item, _Over):
                yield index, item
                continue
            await running.pop(index)
            if item.error is not None:
                if not isinstance(item.error, Error) or isinstance(item.error, DeviceLost):
                    raise item.error
                yield index, item.error
            begin_next()
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


class _Over:
    """The end of an answer."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
