"""Coroutines that never really wait run without an event loop; others are refused."""

import asyncio
import sys
from threading import Event, Thread, current_thread, main_thread

import pytest

from wgemma.sync import SHORT_TURN, beside, run


async def double(number: int) -> int:
    return 2 * number


def test_a_coroutine_that_completes_on_the_spot_gives_its_result() -> None:
    async def outer() -> int:
        return await double(3) + await double(4)

    assert run(outer()) == 14


def test_exceptions_pass_through() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fail())


def test_a_coroutine_that_waits_for_a_loop_is_refused_and_closed() -> None:
    closed = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="use the async name"):
        run(wait())
    assert closed == [True]


def test_a_running_event_loop_is_not_disturbed() -> None:
    async def inside_a_loop() -> int:
        return run(double(21))

    assert asyncio.run(inside_a_loop()) == 42


def test_work_beside_gives_its_result_or_its_error_when_asked() -> None:
    asked = Event()

    def fail() -> None:
        raise ValueError("in a thread")

    result, failing = beside(lambda: asked.wait(10) and current_thread() is not main_thread()), beside(fail)
    asked.set()
    assert result() is True
    with pytest.raises(ValueError, match="in a thread"):
        failing()


def test_without_threads_the_work_is_done_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    done: list[int] = []
    wait = beside(lambda: done.append(1))
    assert not done
    wait()
    assert done == [1]


def test_threads_take_short_turns_as_long_as_there_is_work_beside() -> None:
    usual, ends = sys.getswitchinterval(), (Event(), Event())
    begun = Event()

    def first() -> None:
        begun.set()
        ends[0].wait(10)

    waits = [beside(first), beside(lambda: ends[1].wait(10))]
    assert begun.wait(10)
    assert sys.getswitchinterval() == pytest.approx(SHORT_TURN)
    for end, wait in zip(ends, waits, strict=True):
        end.set()
        wait()
    for _ in range(100):  # a result is there a moment before its thread is gone
        if sys.getswitchinterval() == usual:
            break
        Event().wait(0.01)
    assert sys.getswitchinterval() == usual
