"""How much a model may think before it answers: not at all, as long as it wants, or up to a level's budget."""

from typing import Any, Literal, TypeAlias

from wgemma.checks import shown, whole
from wgemma.errors import SettingsError

Level: TypeAlias = Literal["low", "medium", "high"]
LEVELS = {"low": 512, "medium": 2048, "high": 8192}  # tokens of a thought


def thinking(think: Any, budget: Any = None) -> tuple[bool, int | None]:
    """Whether to think, and for how many tokens at most (None: no limit). A `budget` of the caller's replaces the
    level's."""
    level = LEVELS.get(think) if isinstance(think, str) else None
    if level is None and not isinstance(think, bool):
        raise SettingsError(f"think is {shown(think)}; it must be True, False or one of {', '.join(LEVELS)}.")
    return bool(think), level if budget is None else whole("thinking_budget", budget, 0)
