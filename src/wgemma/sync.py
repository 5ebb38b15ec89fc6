"""The plain face of async code: drives a coroutine whose awaits all complete on the spot.

Natively every await inside wgemma finishes by blocking or polling, so no event loop is needed and none is disturbed
(a notebook's goes on running). In a web page only the async names are used.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

SHORT_TURN = 0.0001  # seconds that a thread computes while others want to

_driven = ContextVar("driven", default=False)  # true inside `run`, where nobody could answer a real await


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, computed here and now."""
    token = _driven.set(True)
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        _driven.reset(token)
    coroutine.close()
    raise RuntimeError("this coroutine waits for an event loop: use the async name of the function instead")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an async iterator, one by one; leaving early closes it."""
    try:
        while True:
            try:
                yield run(_next(items))
            except StopAsyncIteration:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Begins `work` in a thread of its own and gives back what waits for its result. Where there are no threads, as in
    a page, it is done when the result is asked for.

    Meanwhile threads take turns more often: whoever calls the GPU gives its turn away at every call, and would get it
    back only after what Python usually grants a thread that computes."""
    future: Future[T] = Future()

    def do() -> None:
        with _short_turns:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    try:
        Thread(target=do, daemon=True).start()
    except RuntimeError:
        return work
    return future.result


class _ShortTurns:
    """As long as anybody is inside, threads take turns often."""

    def __init__(self) -> None:
        self._lock, self._inside, self._usual = Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SHORT_TURN))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual)


_short_turns = _ShortTurns()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def in_event_loop() -> bool:
    """Whether an event loop drives this coroutine, so that a real await would be answered."""
    return not _driven.get()


async def breathe() -> None:
    """Lets other tasks of a running event loop have their turn; in plain code, nothing."""
    if in_event_loop():
        await asyncio.sleep(0)
