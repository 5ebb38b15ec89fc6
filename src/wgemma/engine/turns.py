"""One user of the device at a time: the batch for one step, or a call that needs it for itself. First come, first
served; whoever is cancelled leaves the queue.

Closing waits for what is being computed, but not for a reply that nobody reads on. Whoever waits for a turn, or goes on
reading, gets a `SessionError`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

from wgemma import forks
from wgemma.errors import SessionError
from wgemma.sync import in_event_loop

PAUSE = 0.001  # seconds between two looks at the queue, in an event loop
PATIENCE = 0.05  # seconds after which threads no longer wait for a task that does not take its turn


class _Ticket:
    """A place in the queue."""

    def __init__(self, task: object) -> None:
        self.task = task
        self.drawn = monotonic()


class Turns:
    """A lock for both threads and the tasks of an event loop, which can be closed: `stop` asks the current computation
    to end, and `free` is called when it has ended."""

    def __init__(self, name: str, stop: Callable[[], None], free: Callable[[], None]) -> None:
        self.name = name
        self._stop = stop
        self._free: Callable[[], None] | None = free
        self._changed = threading.Condition()
        self._taken = False
        self._queue: deque[_Ticket] = deque()  # who waits for a turn
        self._freed = 0.0  # when the last turn ended
        self._thread: int | None = None  # who has the turn
        self._task: object = None  # and in which task, if an event loop drives it
        self._computing: int | None = None  # the thread that computes right now
        self._closed = False
        self._forks = forks.count

    def check(self) -> None:
        """Raises `SessionError` if nothing can be computed any more."""
        if self.elsewhere:
            raise SessionError(
                f"{self.name} was loaded in another process. Load it after the fork, in the process that uses it."
            )
        if self._closed:
            raise SessionError(f"{self.name} is closed; load it again.")

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        task = asyncio.current_task() if in_event_loop() else None
        self.check()
        self.refuse_oneself()
        await self._wait(task)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, task: object) -> None:
        ticket = _Ticket(task)
        self._queue.append(ticket)
        try:
            if task is None:
                with self._changed:
                    while not self._enter(ticket):
                        self._changed.wait(PATIENCE)
            else:
                while not self._enter(ticket):
                    await asyncio.sleep(PAUSE)
        except BaseException:
            with self._changed:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                self._changed.notify_all()
            raise

    def _enter(self, ticket: _Ticket) -> bool:
        """Takes the turn if it is free and nobody was there before."""
        with self._changed:
            self.check()
            if self._taken or not (self._queue[0] is ticket or self._may_overtake(ticket)):
                return False
            self._queue.remove(ticket)
            self._taken, self._task = True, ticket.task
            self._thread = self._computing = threading.get_ident()
            return True

    def _may_overtake(self, ticket: _Ticket) -> bool:
        """Whether a thread need not wait for the task before it: perhaps the task's event loop waits for that thread,
        in a plain call."""
        first = self._queue[0]
        return ticket.task is None and first.task is not None and monotonic() - max(self._freed, first.drawn) > PATIENCE

    def _leave(self) -> None:
        if not self.elsewhere:
            with self._changed:
                self._taken, self._thread, self._task, self._freed = False, None, None, monotonic()
                self._rest()

    def check_reader(self) -> None:
        """`check`, in the middle of a reply."""
        if self._closed and not self.elsewhere:
            raise SessionError(f"{self.name} was closed in the middle of a reply.")
        self.check()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time between two parts of a reply, which belongs to its reader."""
        with self._changed:
            self._rest()
        try:
            yield
        finally:
            if not self.elsewhere:
                with self._changed:
                    self._thread = self._computing = threading.get_ident()
        self.check_reader()

    def _rest(self) -> None:
        """Computes nothing from here on; does what `close` could not do meanwhile."""
        self._computing = None
        self._changed.notify_all()
        if self._closed:
            self._finish()

    def close(self) -> None:
        """Frees everything once nothing is computed any more; does nothing in a forked child."""
        if self.elsewhere:
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
    def elsewhere(self) -> bool:
        """Whether this is a forked child of the process that loaded the model."""
        return self._forks != forks.count

    def refuse_oneself(self) -> None:
        """Raises `SessionError` if the caller itself has the turn, since it would wait forever."""
        task = asyncio.current_task() if in_event_loop() else None
        mine = self._thread == threading.get_ident()
        if mine and (task is None or self._task is None or self._task is task):
            raise SessionError("this model is in the middle of another call. Let it end before the next one.")
