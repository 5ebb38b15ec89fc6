"""How much a model may think."""

from typing import Any

import pytest

from wgemma.engine.thinking import LEVELS, thinking
from wgemma.errors import SettingsError


def test_a_level_is_a_budget_and_a_budget_of_ones_own_replaces_it() -> None:
    assert (thinking(False), thinking(True)) == ((False, None), (True, None))
    assert [thinking(level) for level in LEVELS] == [(True, 512), (True, 2048), (True, 8192)]
    assert thinking("high", 7) == thinking(True, 7.0) == (True, 7)


@pytest.mark.parametrize("think", ["true", "", "LOW", 1, None, [], {}])
def test_anything_else_is_refused(think: Any) -> None:
    with pytest.raises(SettingsError, match="it must be True, False or one of low, medium, high"):
        thinking(think)
