"""The sync API over async code: drives a coroutine whose awaits all complete immediately.

Natively, every await inside wgemma finishes by blocking or polling, so no event loop is needed and a running one (a
notebook's) is not disturbed. A web page uses only the async names.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_driven = ContextVar("driven", default=False)  # true inside `run`, where a real await would never be resumed


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to completion and returns its result."""
    token = _driven.set(True)
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        _driven.reset(token)
    coroutine.close()
    raise RuntimeError("this coroutine needs an event loop: use the async name of the function instead")


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
