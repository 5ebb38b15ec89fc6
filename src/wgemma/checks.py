"""Checks of what callers pass, one function per kind of value.

A value of the wrong kind raises `SettingsError`. The message names the setting and shows the value, shortened. NumPy's
numbers count as numbers everywhere, `True` and `False` nowhere.
"""

import inspect
import reprlib
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from operator import index
from typing import Any, ParamSpec, TypeVar

from wgemma.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_UNORDERED = (str, bytes, bytearray, memoryview, dict, set, frozenset)  # iterable, but no list of numbers


class _Shortened(reprlib.Repr):
    """`repr`, shortened; Python refuses to print very long ints."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"a number of {x.bit_length()} bits"


shown = _Shortened().repr  # a value as an error message shows it


def kind_of(value: Any) -> str:
    """A value's type as an error message names it: an int, a str, None."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def counted(count: int, noun: str) -> str:
    """1 step, 2 steps"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def human_bytes(count: int) -> str:
    """1 336 386 → '1.3 MB', in powers of ten as Ollama prints them."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


# -- values


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int. A whole float such as 64.0 is fine: JSON files have them."""
    if _is_number(value) and least <= value and (most is None or value <= most) and value % 1 == 0:
        return int(value)
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise SettingsError(f"{name} is {shown(value)}; it must be a whole number {span}.")


def number(name: str, value: Any, least: float, most: float) -> float:
    """The value as a float."""
    if _is_number(value) and least <= value <= most:  # false for NaN
        try:
            return float(value)
        except OverflowError:
            pass
    raise SettingsError(f"{name} is {shown(value)}; it must be a number from {least:g} to {most:g}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{name} is {shown(value)}; it must be {', '.join(choices[:-1])} or {choices[-1]}.")


def yes_or_no(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {shown(value)}; it must be True or False.")


def texts(name: str, value: Any) -> list[str]:
    """A string, or several; None is none."""
    found = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        raise SettingsError(f"{name} is {shown(value)}; it must be a string or a list of strings.")
    return list(found)


def whole_numbers(value: Any) -> list[Any] | None:
    """A list, an array or any other series as a list, with its whole numbers as ints; None if it is no series."""
    if isinstance(value, _UNORDERED):
        return None
    try:
        found = list(value)
    except TypeError:
        return None
    try:
        return list(map(index, found))
    except TypeError:
        return found


def called(name: str, value: Any, what: str) -> None:
    if not callable(value):
        raise SettingsError(f"{name} is {shown(value)}; it must be {what}.")


# -- names


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str = "setting") -> None:
    """Raises for the first name that is not known; the message says which known one is nearest."""
    known = sorted(known)
    unknown = sorted(set(given) - set(known))
    if unknown:
        near = get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
        raise SettingsError(f"there is no {what} {shown(unknown[0])}. {hint}")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises `SettingsError` instead of `TypeError` when its arguments do not fit its signature."""
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name != "self"]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not open_ended:
            refuse_unknown(kwargs, parameters, f"option of {function.__name__}()")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise SettingsError(f"{function.__name__}() is called wrongly: {error}.") from None
        return function(*args, **kwargs)

    return call


def all_checked(cls: C) -> C:
    """The class, with all its public methods `checked`."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(cls, name, checked(member))
    return cls
