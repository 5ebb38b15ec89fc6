"""One sequence of tokens: which are computed, with which adapters, and how far it can rewind for free."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.snapshot import Snapshot


@dataclass(slots=True, eq=False)
class TokenSequence:
    """`ids` are the tokens with keys and values: in the runner's cache, or `parked` while another sequence is there.
    Sliding layers keep a ring of positions up to `written`; checkpoints reach further back."""

    ids: list[int] = field(default_factory=list)
    written: int = 0
    adapter: Setting = BARE  # the setting the KV cache was computed with
    reused: int = 0  # tokens of the last prompt already in the cache
    checkpoints: dict[int, Snapshot] = field(default_factory=dict)  # of the rings, by number of tokens
    parked: Snapshot | None = None

    def use(self, setting: Setting) -> None:
        """Switches to these adapters; forgets what was computed with others."""
        if setting.key != self.adapter.key:
            self.reset()
        self.adapter = setting

    def reach_back(self, position: int, free: int | None) -> tuple[int, Snapshot | None]:
        """The nearest position at or below `position` to rewind to, and the checkpoint it needs. The rings hold `free`
        positions below `written`; None: there are no rings."""
        position = min(position, len(self.ids))
        if free is None or self.written - position <= free:
            return position, None
        best = max((mark for mark in self.checkpoints if mark <= position), default=0)
        return best, self.checkpoints.get(best)

    def cut(self, position: int) -> None:
        """Forgets everything from `position` on."""
        del self.ids[position:]
        self.drop_checkpoints(mark for mark in self.checkpoints if mark > position)

    def drop_checkpoints(self, marks: Iterable[int]) -> None:
        for mark in list(marks):
            self.checkpoints.pop(mark).free()

    def reset(self) -> None:
        """Forgets everything."""
        self.cut(0)
        self.drop_checkpoints(self.checkpoints)
        self.written = 0
        if self.parked is not None:
            self.parked.free()
            self.parked = None
