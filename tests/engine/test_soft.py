"""Soft rows among ids."""

from wgemma.engine.soft import common_start, outside, runs
from wgemma.model.passes import SOFT


def test_a_run_ends_with_its_medium_or_where_it_begins_anew() -> None:
    image = list(range(SOFT, SOFT + 4))
    other = list(range(SOFT + 5, SOFT + 8))
    assert list(runs([2, *image, 3, *other])) == [(1, 5), (6, 9)]
    assert list(runs([*image, *image, *other, 2])) == [(0, 4), (4, 8), (8, 11)]
    assert list(runs([2, 3, 4])) == []
    assert list(runs([SOFT - 1, SOFT])) == [(1, 2)]
    assert list(runs([])) == []


def test_a_position_inside_an_image_moves_to_its_start() -> None:
    images = [(3, 7), (9, 12)]
    assert [outside(position, images) for position in range(14)] == [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 9, 9, 12, 13]


def test_what_two_sequences_begin_with() -> None:
    assert common_start([1, 2, 3], [1, 2, 4]) == 2
    assert common_start([1, 2], [1, 2, 4]) == 2
    assert common_start([], [1]) == 0
