"""What people who know other libraries try first, and what to type here instead."""

from collections.abc import Callable
from typing import Any, NoReturn

from wgemma.errors import SettingsError


def dead_end(sentence: str) -> Callable[..., NoReturn]:
    """A method that always raises: the sentence says what to type instead. Hide it from type checkers, which then
    find the mistake themselves."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise SettingsError(sentence)

    return refuse
