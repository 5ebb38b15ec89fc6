"""The order of the data is a function of the seed and the epoch, and packing loses nothing."""

import random
from array import array
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgemma.errors import DataError
from wgemma.train.batches import Batches, Pack, bucket, pack, passes, split
from wgemma.train.data import IGNORED, Example


def example(length: int, line: int = 0, targets: int = 1) -> Example:
    labels = array("i", [IGNORED] * (length - targets) + [1] * targets)
    return Example(array("i", [1] * length), labels, line)


def lines(packs: list[Pack] | tuple[Pack, ...]) -> list[int]:
    return [example.line for pack in packs for example in pack]


SOME = [example(2 + line * 7 % 30, line) for line in range(50)]


@given(st.lists(st.integers(2, 40), max_size=300))
def test_packing_keeps_every_example_once_and_within_the_length(lengths: list[int]) -> None:
    packs = pack([example(length, line) for line, length in enumerate(lengths)], 40)
    assert sorted(lines(packs)) == list(range(len(lengths)))
    assert all(0 < pack.rows <= 40 for pack in packs)
    assert sum(pack.rows for pack in packs) == sum(lengths)
    assert sum(pack.targets for pack in packs) == len(lengths)


def test_short_examples_share_packs_and_the_one_with_the_least_room_is_taken() -> None:
    packs = pack([example(20, 0), example(30, 1), example(10, 2), example(20, 3), example(9, 4)], 40)
    assert [lines((found,)) for found in packs] == [[0, 3], [1, 2], [4]]


def test_packs_are_well_filled() -> None:
    lengths = random.Random(0)
    packs = pack([example(lengths.randint(2, 500), i) for i in range(20_000)], 512)
    filled = sum(pack.rows for pack in packs) / (512 * len(packs))
    assert filled > 0.95


def test_without_packing_each_example_is_alone() -> None:
    steps = Batches(SOME, 8, 64, 0, packing=False).epoch(0)
    assert [len(step.packs) for step in steps] == [8] * 6 + [2]
    assert all(len(pack) == 1 for step in steps for pack in step.packs)


@pytest.mark.parametrize("packing", [True, False])
def test_each_epoch_meets_every_example_once_in_an_order_of_its_own(packing: bool) -> None:
    batches = Batches(SOME, 4, 64, 3, packing)
    orders = [[line for step in batches.epoch(number) for line in lines(step.packs)] for number in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [[line for step in batches.epoch(n) for line in lines(step.packs)] for n in range(3)]
    assert batches.epoch(0) != Batches(SOME, 4, 64, 4, packing).epoch(0)


def test_a_run_taken_up_at_any_step_meets_the_same_steps() -> None:
    batches = Batches(SOME, 2, 64, 0)
    every = list(islice(batches.steps(), 40))
    total = batches.count(2)
    assert [step.epoch for step in every[:total]] == sorted(step.epoch for step in every[:total])
    assert every[total].epoch == 2
    for start in (0, 1, 5, total - 1, total, total + 3):
        assert list(islice(batches.steps(start), 5)) == every[start : start + 5]


def test_the_targets_of_a_step_do_not_depend_on_packing() -> None:
    data = [example(5 + i, i, targets=1 + i % 4) for i in range(9)]
    (packed,) = Batches(data, 100, 64, 0).epoch(0)
    (alone,) = Batches(data, 100, 64, 0, packing=False).epoch(0)
    assert len(packed.packs) < len(alone.packs)
    assert (packed.targets, packed.rows) == (alone.targets, alone.rows) == (sum(e.targets for e in data), 81)


def test_a_share_is_held_out_by_the_seed_alone() -> None:
    kept, held = split(SOME, 0.1, 7)
    assert (len(kept), len(held)) == (45, 5)
    assert sorted(e.line for e in kept + held) == list(range(50))
    assert split(SOME, 0.1, 7) == (kept, held) != split(SOME, 0.1, 8)
    assert split(SOME, 0.0, 7) == (SOME, [])
    assert [len(part) for part in split(SOME[:3], 0.001, 0)] == [2, 1]
    assert [len(part) for part in split(SOME[:3], 0.999, 0)] == [1, 2]
    with pytest.raises(DataError, match="one example cannot be split"):
        split(SOME[:1], 0.5, 0)


def test_rows_come_in_few_sizes_that_waste_little() -> None:
    assert [bucket(rows) for rows in (1, 32, 33, 65, 97, 129, 200, 1000)] == [32, 32, 64, 96, 128, 192, 256, 1024]
    assert all(rows <= bucket(rows) <= 1.5 * rows for rows in range(64, 3000))


def test_packs_go_together_as_far_as_a_pass_holds_them() -> None:
    packs = [Pack((example(length),)) for length in (10, 20, 5, 30)]
    assert [[pack.rows for pack in some] for some in passes(packs, 32)] == [[10, 20], [5], [30]]
