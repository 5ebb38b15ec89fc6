"""Generations at work: what each wants, how far it is, and the steps that bring its tokens."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from wgemma.engine.constraint import Masking, State
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
    untold: list[Token] = field(default_factory=list)  # given tokens that the reader was not sent yet
    told: bool = False  # the reader was sent some
    state: State | None = None  # where what is given stands in the request's constraint
    masked: int = 0  # the position for which its slot has a mask
    masking: Masking | None = None  # finds the mask for the next token
    served: int = 0  # when it was last helped to catch up

    @property
    def known(self) -> list[int]:
        return [*self.request.ids, *self.given]

    @property
    def last(self) -> int:
        return self.given[-1] if self.given else self.request.ids[-1]

    @property
    def behind(self) -> bool:
        """Whether given tokens have to be computed before the next can be drawn: forced ones."""
        return self.sequence is not None and len(self.sequence.ids) < len(self.request.ids) + len(self.given) - 1

    @property
    def runs(self) -> bool:
        """Whether its slot decodes."""
        return not self.rests and self.masking is None and not self.behind

    def forbids(self, token: int) -> bool:
        """Whether the next token may not be this one; if it may, the state follows it."""
        if self.request.constraint is None or self.state is None:
            return False
        following = self.request.constraint.step(self.state, token)
        if following is not None:
            self.state = following
        return following is None

    def add(self, token: Token) -> None:
        """Takes a token that is allowed; `state` is past it."""
        constraint = self.request.constraint
        if constraint is not None and self.state is not None:
            token = replace(token, plain=constraint.is_plain(self.state))
        self.given.append(token.id)
        self.untold.append(token)

    def lead(self, room: int) -> None:
        """Adds the tokens that must follow, unless there is more than one way to go on."""
        constraint = self.request.constraint
        if constraint is None or self.state is None or room <= 0:
            return
        for token in constraint.forced(self.state, room):
            self.forbids(token)
            self.add(Token(token, origin="forced"))

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
