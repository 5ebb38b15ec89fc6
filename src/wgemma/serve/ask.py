"""What every API asks of a model, and what an answer consists of, in wgemma's own words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from wgemma.engine.endings import TokenLogprob, Usage

Reason: TypeAlias = Literal["stop", "length", "tool", "cancelled"]
NOTHING = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for an answer. Either `messages` (a chat, as `Model.chat` takes it) or `prompts` (text whose markup
    counts, or token ids; each is continued by itself). None means: as the model has it."""

    model: str
    messages: Sequence[Mapping[str, Any]] | None = None
    prompts: Sequence[str | Sequence[int]] = ()
    stream: bool = False
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    n: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, top_k, seed, logit_bias, …
    logprobs: int | None = None  # how many alternatives to tell for each token
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"  # none, required, or the name of a tool
    parallel: bool = True  # whether an answer may hold several calls
    format: Any = None  # "json", or a JSON schema
    think: bool | str = False  # or low, medium, high
    thinking_budget: int | None = None
    shift: bool = True  # drop the oldest turns of a chat that is too long
    keep_alive: float | None = None  # seconds to keep the model loaded afterwards; infinite: for ever
    context: int | None = None  # at least so many tokens


@dataclass(frozen=True, slots=True)
class Embed:
    """Texts to turn into vectors; `dimensions` cuts them."""

    model: str
    texts: Sequence[str]
    dimensions: int | None = None
    keep_alive: float | None = None
    single: bool = False  # whether one text was given, not a list of one


@dataclass(frozen=True, slots=True)
class Transcribe:
    """A recording to write down."""

    model: str
    sound: bytes
    temperature: float = 0.0
    form: str = "json"
    stream: bool = False


# -- events, in the order in which they come: Started, any number of the others, and one Finish for each index


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is read: its tokens, how many of them had been computed before, and how long loading took."""

    prompt: int
    reused: int
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    index: int = 0
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A whole tool call, the `number`-th of its answer."""

    name: str
    arguments: Mapping[str, Any]
    number: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    reason: Reason
    usage: Usage
    index: int = 0
    stop: str | None = None  # the stop string that ended the answer


Event: TypeAlias = Started | Text | Thinking | Call | Finish


@dataclass(slots=True)
class Choice:
    """One whole answer."""

    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: Reason = "stop"
    stop: str | None = None


class Whole:
    """All events of a request, gathered."""

    def __init__(self) -> None:
        self.choices: list[Choice] = []
        self.started = Started(0, 0)
        self._usages: dict[int, Usage] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started = event
            return
        while len(self.choices) <= event.index:
            self.choices.append(Choice())
        choice = self.choices[event.index]
        match event:
            case Text():
                choice.text += event.text
                choice.logprobs += event.logprobs
            case Thinking():
                choice.thinking += event.text
            case Call():
                choice.calls.append(event)
            case Finish():
                choice.reason, choice.stop = event.reason, event.stop
                self._usages[event.index] = event.usage

    def usage(self, per_prompt: int = 1) -> Usage:
        """The tokens of all answers; `per_prompt` of them share a prompt, which counts once."""
        total = NOTHING
        for index, one in sorted(self._usages.items()):
            first = index % per_prompt == 0
            total = Usage(
                total.prompt + (one.prompt if first else 0),
                total.reused + (one.reused if first else 0),
                total.generated + one.generated,
                prompt_seconds=max(total.prompt_seconds, one.prompt_seconds),
                generation_seconds=max(total.generation_seconds, one.generation_seconds),
            )
        return total
