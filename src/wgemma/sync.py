"""The plain face of async code: drives a coroutine whose awaits all complete on the spot.

Natively every await inside wgemma finishes by blocking or polling, so no event loop is needed and none is disturbed
(a notebook's goes on running). In a web page only the async names are used.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

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


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def in_event_loop() -> bool:
    """Whether an event loop drives this coroutine, so that a real await would be answered."""
    return not _driven.get()


async def breathe() -> None:
    """Lets other tasks of a running event loop have their turn; in plain code, nothing."""
    if in_event_loop():
        await asyncio.sleep(0)
