"""Generations at work: what each wants, how far it is, and the steps that bring its tokens."""

from dataclasses import dataclass, field
from typing import TypeAlias

from wgemma.engine.request import PromptProgress, Request, Token
from wgemma.engine.sampling import Recipe
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.streams import Stream
from wgemma.gpu.device import Reading

Item: TypeAlias = Token | PromptProgress


@dataclass(eq=False, slots=True)
class Job:
    """One generation: what it wants, what it has so far, and who reads it. Once its prompt is computed it has a `slot`;
    while its reader is behind, it rests there. `put` counts how often it was put into a slot: steps from before do not
    count."""

    request: Request
    stream: Stream[Item]
    number: int
    given: list[int] = field(default_factory=list)
    sequence: TokenSequence | None = None
    slot: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    submitted: int = 0  # tokens asked for, those given included
    put: int = 0
    fresh: bool = False  # it was put into its slot since the last step
    rests: bool = False
    heard: int | None = None  # tokens of the prompt that were not there, once that is known

    @property
    def known(self) -> list[int]:
        return [*self.request.ids, *self.given]

    @property
    def last(self) -> int:
        return self.given[-1] if self.given else self.request.ids[-1]

    @property
    def over(self) -> bool:
        """Whether its reader has left or cancelled."""
        try:
            return self.stream.closed or self.request.cancelled()
        except Exception as error:  # the caller's own code
            self.stream.end(error)
            return True


@dataclass(frozen=True, slots=True)
class Step:
    """A step in flight: whose tokens it brings, as (job, slot, put, position)."""

    jobs: list[tuple[Job, int, int, int]]
    results: Reading
    report: Reading | None
