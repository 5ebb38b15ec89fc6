"""Coroutines that never really block run without an event loop; others are refused."""

import asyncio

import pytest

from wgemma.sync import run


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
