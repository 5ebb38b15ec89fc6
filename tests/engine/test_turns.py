"""Whose turn it is, and closing while somebody has it. A model of counters stands for the GPU."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import wgemma
from wgemma import forks
from wgemma.engine.turns import Turns
from wgemma.sync import iterate, run

LONG = 20.0  # seconds until a hung test fails


class Counter:
    """Computes until it is stopped."""

    def __init__(self) -> None:
        self.turns = Turns("the model", self.stop, self.free)
        self.begun, self.stopped, self.freed = threading.Event(), threading.Event(), 0
        self.computing = False

    def stop(self) -> None:
        self.stopped.set()

    def free(self) -> None:
        assert not self.computing, "freed under a computation"
        self.freed += 1

    async def compute(self) -> None:
        async with self.turns.take():
            self.computing = True
            self.begun.set()
            assert self.stopped.wait(LONG)
            self.computing = False
            raise wgemma.SessionError("stopped")

    def reply(self, parts: int = 3) -> Iterator[int]:
        async def counted():  # type: ignore[no-untyped-def]
            async with self.turns.take():
                for part in range(parts):
                    with self.turns.paused():
                        yield part

        return iterate(counted())


def failing(work: object, errors: list[BaseException]) -> threading.Thread:
    def attempt() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    return thread


def test_closing_stops_the_computation_and_frees_after_it() -> None:
    counter, errors = Counter(), list[BaseException]()
    busy = failing(lambda: run(counter.compute()), errors)
    assert counter.begun.wait(LONG)
    waiting = failing(lambda: run(counter.compute()), errors)
    counter.turns.close()
    assert counter.freed == 1
    for thread in (busy, waiting):
        thread.join(LONG)
    assert [type(error) for error in errors] == [wgemma.SessionError] * 2


def test_closing_does_not_wait_for_a_reply_nobody_reads_on() -> None:
    counter, errors = Counter(), list[BaseException]()
    reply = counter.reply()
    assert next(reply) == 0
    waiting = failing(lambda: list(counter.reply()), errors)
    failing(counter.turns.close, errors).join(LONG)
    waiting.join(LONG)
    assert counter.freed == 1 and [type(error) for error in errors] == [wgemma.SessionError]
    with pytest.raises(wgemma.SessionError, match="the model was closed in the middle of a reply"):
        next(reply)
    counter.turns.close()
    assert counter.freed == 1


def test_a_reply_left_early_after_closing_ends_silently() -> None:
    counter = Counter()
    for _ in counter.reply():
        counter.turns.close()
        break
    assert counter.freed == 1


def test_a_model_closed_from_within_its_own_computation_is_freed_afterwards() -> None:
    counter = Counter()

    async def suicidal() -> None:
        async with counter.turns.take():
            counter.computing = True
            counter.turns.close()
            assert counter.freed == 0
            counter.computing = False

    run(suicidal())
    assert counter.freed == 1


def test_a_task_closes_under_another_one() -> None:
    counter = Counter()

    async def patient() -> None:
        async with counter.turns.take():
            while not counter.stopped.is_set():
                await asyncio.sleep(0)
            assert counter.freed == 0

    async def both() -> None:
        task = asyncio.create_task(patient())
        await asyncio.sleep(0)
        counter.turns.close()
        await task

    asyncio.run(both())
    assert counter.freed == 1


def test_turns_come_one_after_another_in_threads() -> None:
    counter, errors, inside = Counter(), list[BaseException](), list[int]()

    async def alone() -> None:
        async with counter.turns.take():
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    threads = [failing(lambda: [run(alone()) for _ in range(50)], errors) for _ in range(4)]
    for thread in threads:
        thread.join(LONG)
    assert not errors


def test_a_child_of_a_fork_has_no_turn_and_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()
    reply = counter.reply()
    next(reply)
    monkeypatch.setattr(forks, "count", forks.count + 1)
    for call in (counter.turns.check, lambda: next(reply), lambda: run(counter.compute())):
        with pytest.raises(wgemma.SessionError, match=r"loaded in another process\. Load it after the fork"):
            call()
    counter.turns.close()
    assert counter.freed == 0


def test_a_thread_overtakes_a_task_whose_event_loop_waits_for_it() -> None:
    """A plain call inside an event loop blocks the tasks that are before it in the queue."""
    turns = Turns("the model", lambda: None, lambda: None)

    async def turn() -> None:
        async with turns.take():
            pass

    async def loop() -> bool:
        async with turns.take():
            first = asyncio.ensure_future(turn())
            await asyncio.sleep(0.01)  # it waits now
        plain = threading.Thread(target=lambda: run(turn()), daemon=True)
        plain.start()
        plain.join(LONG)  # and this blocks its loop
        await first
        return not plain.is_alive()

    assert asyncio.run(loop())
