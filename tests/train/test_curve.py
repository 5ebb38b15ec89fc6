"""The curve is well-formed SVG with everything inside its frame, whatever the losses were."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgemma.train.curve import HEIGHT, POINTS, WIDTH, curve, smoothed, ticks

SVG = "{http://www.w3.org/2000/svg}"
LOSSES = st.lists(st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf, 0.0]), max_size=60)


def points(svg: str) -> list[tuple[float, float]]:
    lines = [line.get("points", "") for line in ET.fromstring(svg).iter(f"{SVG}polyline")]
    pairs = [pair.split(",") for line in lines for pair in line.split()]
    circles = [(c.get("cx"), c.get("cy")) for c in ET.fromstring(svg).iter(f"{SVG}circle")]
    return [(float(x), float(y)) for x, y in [*pairs, *circles] if x and y]


@given(LOSSES, st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1e6)), max_size=5))
def test_every_run_has_a_curve_within_its_frame(losses: list[float], validation: list[tuple[int, float]]) -> None:
    drawn = curve(losses, validation)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(drawn))
    assert "nan" not in drawn and "inf" not in drawn.replace("infer", "")


def test_a_falling_loss_falls() -> None:
    first, *rest = re.findall(r'class="smooth".*points="([^"]*)"', curve([3.0, 2.0, 1.0]))
    assert not rest
    heights = [float(pair.split(",")[1]) for pair in first.split()]
    assert all(later > earlier for earlier, later in pairwise(heights))  # y counts downwards


def test_validation_is_dots_and_named() -> None:
    drawn = curve([3.0, 2.0], [(1, 2.5), (2, 2.25)], title="a < b & c")
    assert drawn.count('class="held" r="4"') == 3  # and the legend's
    assert "validation" in drawn and "<title>a &lt; b &amp; c</title>" in drawn
    assert "validation" not in curve([3.0, 2.0])


def test_it_is_legible_on_light_and_dark_ground() -> None:
    assert "prefers-color-scheme: dark" in curve([1.0])


def test_a_long_run_makes_no_larger_file() -> None:
    drawn = curve([1 / (i + 1) for i in range(100_000)])
    assert len(points(drawn)) <= 2 * POINTS and len(drawn) < 40_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.13, 3.9, [0, 1, 2, 3, 4]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_what_they_measure(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 8
    assert marks[0] <= low * (1 + 1e-6) + 1e-9 and marks[-1] >= high * (1 - 1e-6) - 1e-9


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smoothed([2.0] * 5) == pytest.approx([2.0] * 5)
    assert smoothed([4.0, 0.0])[0] == pytest.approx(4.0)
    assert 0 < smoothed([4.0, 0.0])[1] < 4
