"""One generation request."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.constraint import Constraint, State
from wgemma.engine.sampling import Sampling


class Cancelled(Exception):
    """The prompt was cancelled while an image or a sound was encoded."""


class Cancel(Protocol):
    """A way to cancel a reply: a threading.Event or an asyncio.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt is: the GPU has computed `done` of the `total` tokens that were not `reused`. While an image or
    a sound is encoded, `stage` says so, the numbers are layers, and it is the `number`-th of `count`."""

    stage: Literal["prompt", "image", "audio"]
    done: int
    total: int
    number: int = 0
    count: int = 0
    reused: int = field(default=0, compare=False)

    @property
    def finished(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.stage == "prompt" and self.done == self.total


Origin: TypeAlias = Literal["drawn", "again", "forced"]  # of a token
Hear: TypeAlias = Callable[[PromptProgress], None]


def unheard(progress: PromptProgress) -> None:
    """Nobody asked."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `logprobs` are (token, log-probability) pairs: its own, then the most likely ones. `plain`:
    it is text that a grammar describes, and no markup. It was drawn, drawn `again` because the grammar forbade the
    first, or `forced` because nothing else could follow."""

    id: int
    logprobs: list[tuple[int, float]] = field(default_factory=list)
    plain: bool = False
    origin: Origin = "drawn"


@dataclass(frozen=True, slots=True)
class Request:
    """At most `max_tokens` tokens after `ids`; one of `ends` is the last. The next prompt is likely to diverge at one
    of `marks`; `thinking_budget` limits the tokens of a thought, which is open from the start if `in_thought`. The last
    `written` of the ids belong to the answer already, which follows `constraint`."""

    ids: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    adapter: Setting = BARE
    marks: Sequence[int] = ()
    ends: Collection[int] = ()
    stops: Sequence[str] = ()
    in_thought: bool = False
    thinking_budget: int | None = None
    constraint: Constraint | None = None
    written: int = 0
    cancel: Cancel | None = None
    progress: Hear = unheard

    def state(self) -> State | None:
        """Where the answer stands in its constraint."""
        if self.constraint is None:
            return None
        return self.constraint.start(in_thought=self.in_thought, written=self.ids[len(self.ids) - self.written :])

    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()
