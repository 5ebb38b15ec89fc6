"""Load time by stage."""

import pytest

from wgemma import stages
from wgemma.stages import Stages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time: the last number."""
    now = [0.0]
    monkeypatch.setattr(stages, "perf_counter", lambda: now[-1])
    return now


def test_a_stage_ends_where_the_next_begins(clock: list[float]) -> None:
    seen = Stages()
    for name, time in (("header", 0.0), ("weights", 2.0)):
        clock.append(time)
        seen.begin(name)
    clock.append(5.0)
    seen.end()
    seen.end()
    assert [(stage.name, stage.seconds) for stage in seen.done] == [("header", 2.0), ("weights", 3.0)]


def test_a_stage_within_another_is_not_counted_twice(clock: list[float]) -> None:
    seen = Stages()
    seen.begin("self-test")
    clock.append(1.0)
    with seen.within("vocabulary"):
        clock.append(4.0)
    clock.append(6.0)
    seen.end()
    assert {stage.name: stage.seconds for stage in seen.done} == {"self-test": 3.0, "vocabulary": 3.0}


def test_a_stage_within_nothing_stands_alone(clock: list[float]) -> None:
    seen = Stages()
    with seen.within("vocabulary"):
        clock.append(4.0)
    clock.append(9.0)
    seen.end()
    assert [(stage.name, stage.seconds) for stage in seen.done] == [("vocabulary", 4.0)]
