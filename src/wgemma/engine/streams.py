"""What one caller reads of a generation, and the other end, where tokens are put in: in another thread, or in another
task of the same event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from wgemma.sync import GLANCE, in_event_loop, suspend, waker

T = TypeVar("T")


class Stream(Generic[T]):
    """Items in order, and then the end or an error. `closed`: nobody reads on."""

    def __init__(self) -> None:
        self.closed = False
        self._items: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._waiter: Callable[[], object] | None = None  # resumes a reader that waits without blocking its thread

    # -- the end where tokens are put in

    def put(self, item: T) -> None:
        with self._changed:
            if not self.closed:
                self._items.append(item)
                self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes; the reader gets the error after what came before it."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._wake()

    @property
    def unread(self) -> int:
        return len(self._items)

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            resume, self._waiter = self._waiter, None
            try:
                resume()
            except RuntimeError:  # the reader's event loop is closed
                self.closed = True

    # -- the reader's end

    async def read(self) -> T | None:
        """The next item; None at the end."""
        wake = waker()
        if wake is None and not in_event_loop():
            with self._changed:
                while not self.has_news():
                    self._changed.wait(GLANCE)
                return self._take()
        while True:
            with self._changed:
                if self.has_news():
                    return self._take()
                if wake is None:
                    loop = asyncio.get_running_loop()
                    future = loop.create_future()
                    self._waiter = partial(loop.call_soon_threadsafe, _resolve, future)
                else:
                    self._waiter = wake
            await (suspend() if wake else future)

    def has_news(self) -> bool:
        """Whether `read` would not wait."""
        return bool(self._items) or self._ended

    def _take(self) -> T | None:
        if self._items:
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Nobody reads on."""
        with self._changed:
            self.closed = True
            self._items.clear()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
