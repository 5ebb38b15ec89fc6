"""One generation request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.sampling import Sampling


class Cancel(Protocol):
    """A way to cancel a reply: a threading.Event or an asyncio.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Request:
    """At most `max_tokens` tokens after `ids`. The next prompt is likely to diverge at one of `marks`;
    `thinking_budget` limits the tokens of a thought, which is open from the start if `in_thought`."""

    ids: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    adapter: Setting = BARE
    marks: Sequence[int] = ()
    stops: Sequence[str] = ()
    in_thought: bool = False
    thinking_budget: int | None = None
    cancel: Cancel | None = None

    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()
