"""One call at a time: a second waits its turn, and one that gives up leaves the queue."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wgemma.errors import SessionError
from wgemma.sync import breathe, in_event_loop


class Turns:
    """A lock that works for threads and for tasks of one event loop alike."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        me = threading.get_ident()
        if in_event_loop():
            while not self._lock.acquire(blocking=False):
                await breathe()
        else:
            if self._owner == me:
                raise SessionError(
                    "this model is in the middle of a reply. Read it to its end, or close it, before the next call."
                )
            self._lock.acquire()
        self._owner = me
        try:
            yield
        finally:
            self._owner = None
            self._lock.release()
