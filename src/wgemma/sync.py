"""The sync API over async code: drives a coroutine whose awaits all complete immediately.

Natively, every await inside wgemma finishes by blocking or polling, so no event loop is needed and a running one (a
notebook's) is not disturbed. A web page uses only the async names.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import ContextVar
from types import coroutine as generator_coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

GLANCE = 0.2  # seconds that a thread waits at a time: on Windows, Ctrl-C is not noticed before
SUSPENDED: Final = object()

_driven = ContextVar("driven", default=False)  # true inside `advance`, where a real await would never be resumed
_wake: ContextVar[Callable[[], None] | None] = ContextVar("wake", default=None)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to completion and returns its result."""
    result: T = advance(coroutine)
    if result is SUSPENDED:
        coroutine.close()
        raise RuntimeError("this coroutine needs an event loop: use the async name of the function instead")
    return result


def advance(coroutine: Coroutine[Any, Any, Any], wake: Callable[[], None] | None = None) -> Any:
    """Runs one of several coroutines that share a thread, until it is complete or has to wait: returns its result, or
    SUSPENDED. Any thread may then call `wake`, once, when it can go on."""
    driven, waking = _driven.set(True), _wake.set(wake)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    finally:
        _wake.reset(waking)
        _driven.reset(driven)
    return SUSPENDED


def waker() -> Callable[[], None] | None:
    """What resumes the coroutine that runs now after it `suspend`s; None if it must not."""
    return _wake.get()


@generator_coroutine
def suspend() -> Generator[None, None, None]:
    """Lets the other coroutines of this thread go on until this one is woken."""
    yield


def iterate(items: AsyncIterator[T]) -> Generator[T, None, None]:
    """The items of an async iterator, one by one; breaking out of the loop closes it."""
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


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def in_event_loop() -> bool:
    """Whether an event loop drives this coroutine, so that a real await would be resumed."""
    return not _driven.get()


async def breathe() -> None:
    """Yields to other tasks of a running event loop; does nothing in sync code."""
    if in_event_loop():
        await asyncio.sleep(0)


async def pause(seconds: float) -> None:
    """Waits, and lets other tasks of a running event loop go on."""
    if in_event_loop():
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)
