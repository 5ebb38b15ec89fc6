"""One call at a time: a second one waits its turn, and one that is cancelled leaves the queue.

Closing waits for what is being computed, but not for a reply that nobody reads on: a reply computes nothing between its
parts. Whoever waits for a turn, or goes on reading, gets a `SessionError`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from wgemma import forks
from wgemma.errors import SessionError
from wgemma.sync import breathe, in_event_loop


class Turns:
    """A lock for both threads and the tasks of an event loop, which can be closed: `stop` asks the current computation
    to end, and `free` is called when it has ended."""

    def __init__(self, name: str, stop: Callable[[], None], free: Callable[[], None]) -> None:
        self._name = name
        self._stop = stop
        self._free: Callable[[], None] | None = free
        self._changed = threading.Condition()
        self._taken = False
        self._thread: int | None = None  # who has the turn
        self._task: object = None  # and in which task, if an event loop drives it
        self._computing: int | None = None  # the thread that computes right now
        self._closed = False
        self._forks = forks.count

    def check(self) -> None:
        """Raises `SessionError` if nothing can be computed any more."""
        if self._elsewhere:
            raise SessionError(
                f"{self._name} was loaded in another process. Load it after the fork, in the process that uses it."
            )
        if self._closed:
            raise SessionError(f"{self._name} is closed; load it again.")

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        task = asyncio.current_task() if in_event_loop() else None
        self.check()
        self._refuse_oneself(task)
        if task is None:
            with self._changed:
                self._changed.wait_for(lambda: self._enter(task))
        else:
            while not self._enter(task):
                await breathe()
        try:
            yield
        finally:
            self._leave()

    def _enter(self, task: object) -> bool:
        """Takes the turn if it is free."""
        with self._changed:
            self.check()
            if self._taken:
                return False
            self._taken, self._task = True, task
            self._thread = self._computing = threading.get_ident()
            return True

    def _leave(self) -> None:
        if not self._elsewhere:
            with self._changed:
                self._taken, self._thread, self._task = False, None, None
                self._rest()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time between two parts of a reply, which belongs to its reader."""
        with self._changed:
            self._rest()
        try:
            yield
        finally:
            if not self._elsewhere:
                with self._changed:
                    self._thread = self._computing = threading.get_ident()
        if self._closed and not self._elsewhere:
            raise SessionError(f"{self._name} was closed in the middle of a reply.")
        self.check()

    def _rest(self) -> None:
        """Computes nothing from here on; does what `close` could not do meanwhile."""
        self._computing = None
        self._changed.notify_all()
        if self._closed:
            self._finish()

    def close(self) -> None:
        """Frees everything once nothing is computed any more; does nothing in a forked child."""
        if self._elsewhere:
            return
        with self._changed:
            if not self._closed:
                self._closed = True
                self._stop()
                self._changed.notify_all()
            if self._computing != threading.get_ident():  # else it is closed from within, and freed afterwards
                self._changed.wait_for(lambda: self._computing is None)
                self._finish()

    def _finish(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free()

    @property
    def _elsewhere(self) -> bool:
        """Whether this is a forked child of the process that loaded the model."""
        return self._forks != forks.count

    def _refuse_oneself(self, task: object) -> None:
        """Raises `SessionError` if the caller itself has the turn, since it would wait forever."""
        mine = self._thread == threading.get_ident()
        if mine and (task is None or self._task is None or self._task is task):
            raise SessionError(
                "this model is in the middle of a reply. Read it to the end, or close it, before the next call."
            )
