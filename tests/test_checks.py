"""What callers may pass: every odd value is a sentence, and a short one."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import wgemma
from wgemma.checks import (
    all_checked,
    checked,
    counted,
    kind_of,
    number,
    refuse_unknown,
    shown,
    texts,
    whole,
    whole_numbers,
)

HUGE = 10**5000


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "value",
    [HUGE, -HUGE, [HUGE], {HUGE: HUGE}, "x" * 10_000, [[5] * 1000] * 1000, Unprintable()],
    ids=["huge", "minus huge", "a huge item", "a huge key", "long", "nested", "unprintable"],
)
def test_any_value_is_shown_in_a_few_words(value: Any) -> None:
    assert 0 < len(shown(value)) < 200


def test_types_have_their_article_and_one_is_singular() -> None:
    assert [kind_of(value) for value in (1, "x", None, {})] == [
        "an int",
        "a str",
        "None",
        "a dict",
    ]
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_whole_numbers_come_in_many_types() -> None:
    assert [whole("n", n, 0, 9) for n in (7, 7.0, np.int64(7), np.float32(7), Fraction(7))] == [7] * 5
    assert type(whole("n", np.uint8(7), 0)) is int


@pytest.mark.parametrize(
    "value", [True, None, "7", 7.5, math.nan, math.inf, -1, 10, HUGE, -HUGE, [7], np.array([7])], ids=shown
)
def test_what_is_no_whole_number_or_outside_its_range_is_refused(value: Any) -> None:
    with pytest.raises(wgemma.SettingsError, match=r"^n is .*; it must be a whole number from 0 to 9\.$"):
        whole("n", value, 0, 9)


@pytest.mark.parametrize(
    "value", [True, None, "1", math.nan, math.inf, -0.1, 1.1, HUGE, -HUGE, [1], np.bool_(True)], ids=shown
)
def test_what_is_no_number_or_outside_its_range_is_refused(value: Any) -> None:
    with pytest.raises(wgemma.SettingsError, match=r"^x is .*; it must be a number from 0 to 1\.$"):
        number("x", value, 0, 1)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(wgemma.SettingsError, match="bits"):
        number("x", -HUGE, -math.inf, 0)
    assert number("x", np.float32(0.5), 0, 1) == 0.5


def test_text_is_a_string_or_several() -> None:
    assert texts("stop", None) == [] and texts("stop", "a") == ["a"] and texts("stop", ("a", "b")) == ["a", "b"]
    for odd in (5, [5], {"a": 1}, b"a", object()):
        with pytest.raises(wgemma.SettingsError, match="stop is"):
            texts("stop", odd)


def test_a_series_of_numbers_is_no_text_and_no_mapping() -> None:
    assert whole_numbers(np.array([1, 2])) == whole_numbers(range(1, 3)) == whole_numbers((1, 2)) == [1, 2]
    for odd in (5, None, "ab", b"ab", {1: 2}, {1, 2}, np.array(3)):
        assert whole_numbers(odd) is None


def test_an_unknown_name_leads_to_the_nearest() -> None:
    with pytest.raises(wgemma.SettingsError, match=r"there is no setting 'temprature'\. Did you mean temperature\?"):
        refuse_unknown(["temprature"], ["top_k", "temperature"])
    with pytest.raises(wgemma.SettingsError, match=r"Known: a, b\."):
        refuse_unknown(["zzz"], ["b", "a"])


def test_a_call_that_does_not_fit_its_signature_is_a_sentence() -> None:
    @checked
    def play(tune: str, *, volume: int = 1) -> str:
        return f"{tune} {volume}"

    assert play("la", volume=2) == "la 2"
    with pytest.raises(wgemma.SettingsError, match=r"no option of play\(\) 'volum'. Did you mean volume"):
        play("la", volum=2)  # type: ignore[call-arg]
    for wrong in ((), ("la", "le")):
        with pytest.raises(wgemma.SettingsError, match=r"play\(\) is called wrongly"):
            play(*wrong)  # type: ignore[arg-type]


def test_all_public_methods_of_a_class_are_checked() -> None:
    @all_checked
    class Player:
        def play(self, tune: str) -> str:
            return tune

    assert Player().play("la") == "la"
    with pytest.raises(wgemma.SettingsError, match="tune"):
        Player().play(tun="la")  # type: ignore[call-arg]
