"""Who runs the batch: natively a thread, which ends when there is nothing to do for a while; in a page a task."""

import asyncio
import atexit
import sys
import threading
import weakref

from wgemma.engine.batch import Batch
from wgemma.engine.turns import Turns
from wgemma.errors import SessionError
from wgemma.sync import breathe, run

IDLE = 2.0  # seconds after which the thread ends
_alone = sys.platform == "emscripten"  # a page's worker has no other threads


class Owner:
    """Takes a turn with the device as long as there is work; others get theirs in between."""

    def __init__(self, batch: Batch, turns: Turns) -> None:
        self.batch = batch
        self._turns = turns
        self._work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = False

    def wake(self) -> None:
        """There is work, or somebody left."""
        if _alone:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._serve_task())
            return
        with self._work:
            if self._leaving:
                self.batch.fail(SessionError("the model is closed, or Python ends."))
            elif self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="wgemma", daemon=True)
                self._thread.start()
                _owners.add(self)
            self._work.notify()

    def leave(self) -> None:
        """Lets the thread end after its turn; it does not come back."""
        with self._work:
            self._leaving = True
            self._work.notify()

    def join(self) -> None:
        """`leave`, and waits for that; does nothing in a forked child, where the thread is not."""
        if not self._turns.elsewhere:
            self.leave()
            thread = self._thread
            if thread is not None:
                thread.join()

    def _serve(self) -> None:
        while True:
            with self._work:
                if not self._work.wait_for(lambda: self.batch.busy or self._leaving, IDLE) or self._leaving:
                    self._thread = None
                    return
            run(self._turn())

    async def _serve_task(self) -> None:
        while self.batch.busy:
            await self._turn()
            await breathe()

    async def _turn(self) -> None:
        try:
            async with self._turns.take():
                await self.batch.turn()
        except BaseException as error:  # nobody may wait for a thread that has ended
            self.batch.fail(error)


_owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """No thread may be inside the GPU's driver when the interpreter ends."""
    for owner in list(_owners):
        owner.join()
