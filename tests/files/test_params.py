"""The settings that a model may be made with are those that answers can be sampled with."""

import math
from typing import Any

import pytest

from wgemma.creating import create
from wgemma.engine.sampling import Sampling
from wgemma.errors import SettingsError
from wgemma.files.params import PARAMS, check_param, is_kind, lenient
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.ranges import NUMBERS, WHOLE

VALUES = (-math.inf, -1e4, -1001, -2, -1, -0.5, 0, 1e-4, 1e-3, 0.5, 1, 1.5, 2, 64.0, 100, 101, 1e3, 1e4, 1 << 32, 1e300)


def accepts(check: Any, *arguments: Any, **options: Any) -> bool:
    try:
        check(*arguments, **options)
    except SettingsError:
        return False
    return True


@pytest.mark.parametrize("key", sorted({*NUMBERS, *WHOLE} & PARAMS.keys()))
def test_what_a_model_may_be_made_with_can_be_sampled_with(key: str) -> None:
    for value in (*VALUES, math.inf, math.nan, True, "1", None, [1]):
        expected = is_kind(PARAMS[key], value) and accepts(Sampling, **{key: lenient(key, value)})
        assert accepts(check_param, key, value) == expected, value


def test_whole_floats_of_a_stored_model_count_as_whole_numbers(stores: Stores) -> None:
    """JSON does not tell them apart."""
    list(create("mine", Recipe("gemma4:tiny", parameters={"num_predict": 3.0, "num_ctx": 64.0, "temperature": 1})))
    params = stores.own.model("mine").params
    assert (params["num_predict"], params["num_ctx"]) == (3, 64)
    assert type(params["num_predict"]) is type(params["num_ctx"]) is int


def test_every_range_is_of_a_setting_that_a_model_may_have() -> None:
    assert {*NUMBERS, *WHOLE} - {"logprobs"} <= PARAMS.keys()


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("num_ctx", (0, 1, 4096, 8192.0), (-1, 0.5, "1")),
        ("num_predict", (-2, -1, 0, 128), (-3, 1.5, math.inf)),
        ("num_gpu", (-1, 0, 99), (0.5, "all", math.nan)),
        ("typical_p", (0.7, 1), ("0.7", math.nan)),
        ("use_mmap", (True, False), (0, "true")),
        ("stop", ("x", ["x", "y"], []), ("", [""], ["x", ""], 5, [5], None)),
        ("heat", (), (1,)),
    ],
)
def test_other_settings_have_ranges_too(key: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    assert all(accepts(check_param, key, value) for value in good)
    assert not any(accepts(check_param, key, value) for value in bad)
