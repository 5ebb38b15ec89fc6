"""One call at a time: a second one waits its turn, and one that is cancelled leaves the queue."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wgemma.errors import SessionError
from wgemma.sync import breathe, in_event_loop


class Turns:
    """A lock for both threads and the tasks of an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None  # who has the turn
        self._task: object = None  # and in which task, if an event loop drives it

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        task = asyncio.current_task() if in_event_loop() else None
        self._refuse_oneself(task)
        if task is None:
            self._lock.acquire()
        else:
            while not self._lock.acquire(blocking=False):
                await breathe()
        self._thread, self._task = threading.get_ident(), task
        try:
            yield
        finally:
            self._thread = self._task = None
            self._lock.release()

    def _refuse_oneself(self, task: object) -> None:
        """Raises `SessionError` if the caller itself has the turn, since it would wait forever."""
        mine = self._thread == threading.get_ident()
        if mine and (task is None or self._task is None or self._task is task):
            raise SessionError(
                "this model is in the middle of a reply. Read it to the end, or close it, before the next call."
            )
