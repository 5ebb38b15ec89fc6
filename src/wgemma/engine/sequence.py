"""One sequence of tokens: what is computed of it, and where that lies."""

from dataclasses import dataclass, field

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.prefixes import Trail
from wgemma.model.rows import PAGE


@dataclass(slots=True, eq=False)
class TokenSequence:
    """`ids` are the tokens with keys and values, computed with `adapter`. The full layers have a page for each PAGE of
    them, the sliding layers for the last ones, by number. `reused` of them were there when the sequence began."""

    trail: Trail
    adapter: Setting = BARE
    ids: list[int] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    sliding: dict[int, int] = field(default_factory=dict)
    reused: int = 0

    @property
    def room(self) -> int:
        """How many positions its pages hold."""
        return len(self.full) * PAGE
