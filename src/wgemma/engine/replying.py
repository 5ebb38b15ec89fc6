"""One reply on its way from token ids to parts: text is cut at stop strings and by its markup, thinking is kept within
its budget, and the ids of what was said are remembered.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.backend import Backend
from wgemma.engine.prefix import Replies, marks
from wgemma.engine.sampling import Sampling
from wgemma.engine.session import Token
from wgemma.engine.stops import StopStrings
from wgemma.text.reply import ReplyParser, ToolCall
from wgemma.text.tokenizer import MARKUP, Tokenizer


class Cancel(Protocol):
    """Something that can ask a reply to end: a threading.Event or an asyncio.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt, how many of them were computed before, and tokens generated."""

    prompt: int
    reused: int
    generated: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a reply. The last one has no text, but `finish_reason` (stop, length, tool, cancelled) and `usage`."""

    kind: Literal["thinking", "content", "tool_call"]
    text: str = ""
    tool_call: ToolCall | None = None
    finish_reason: Literal["stop", "length", "tool", "cancelled"] | None = None
    usage: Usage | None = None
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)  # one list per token


class Reply:
    """What a model says to one prompt. `replies` remembers it."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer, replies: Replies, parser: ReplyParser) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.replies = replies
        self.parser = parser
        self.in_thought = False
        self.budget: int | None = None  # tokens to think with
        self.stops = StopStrings(())
        self.cancel: Cancel | None = None
        self.adapter: Setting = BARE
        self.decoder = tokenizer.stream(keep=MARKUP)
        self.generated: list[int] = []
        self.called = False
        self.content: list[str] = []

    async def parts(self, ids: list[int], sampling: Sampling, limit: int) -> AsyncGenerator[Part, None]:
        reason, reused = "", 0
        try:
            while not reason:
                room = limit - len(self.generated)
                places = marks(self.tokenizer, ids)
                said = ids + self.generated
                tokens = self.backend.generate(said, sampling, room, places, self._cancelled, self.adapter)
                async with aclosing(tokens):
                    reason = "length"
                    async for token in tokens:
                        reused = reused or self.backend.reused
                        reason, parts = self._next(token)
                        for part in parts:
                            yield part
                        if reason:
                            break
                        reason = "length"
                if reason == "length" and self._cancelled():  # before the first token, or with the last
                    reason = "cancelled"
                if reason == "budget":
                    forced = self.tokenizer.encode("\n<channel|>", special=True)
                    room = min(limit, self.backend.context - len(ids)) - len(self.generated)
                    reason = "" if room > len(forced) else "length"
                    for part in self._force(forced) if not reason else ():
                        yield part
            for part in self._end():
                yield part
        finally:
            self._remember()
        ended: Any = "tool" if self.called else reason
        yield Part("content", finish_reason=ended, usage=Usage(len(ids), reused, len(self.generated)))

    def _cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()

    def _next(self, token: Token) -> tuple[str, list[Part]]:
        """What a token brings, and why the reply ends with it, if it does; "budget" ends only the thought."""
        if token.id in self.tokenizer.stop_ids:
            return "stop", []
        self.generated.append(token.id)
        parts = self._take(token)
        if self.stops.found:
            return "stop", parts
        if self._cancelled():
            return "cancelled", parts
        over = self.budget is not None and self.in_thought and len(self.generated) >= self.budget
        return "budget" if over else "", parts

    def _take(self, token: Token) -> list[Part]:
        self._follow_thought(token.id)
        found = self._parts(self.stops.feed(self.decoder.push(token.id)))
        if token.logprobs:
            last = found.pop() if found else Part("thinking" if self.in_thought else "content")
            found.append(replace(last, logprobs=[token.logprobs]))
        return found

    def _parts(self, text: str) -> list[Part]:
        return [self._public(part) for part in self.parser.feed(text)]

    def _public(self, part: Any) -> Part:
        self.called = self.called or part.kind == "tool_call"
        if part.kind == "content":
            self.content.append(part.text)
        return Part(part.kind, part.text, part.tool_call)

    def _end(self) -> list[Part]:
        rest = self.stops.feed(self.decoder.finish()) + self.stops.finish()
        return self._parts(rest) + [self._public(part) for part in self.parser.finish()]

    # -- the thinking budget

    def _follow_thought(self, token_id: int) -> None:
        special = self.tokenizer.special
        if token_id == special.get("<|channel>"):
            self.in_thought = True
        elif token_id == special.get("<channel|>"):
            self.in_thought = False

    def _force(self, forced: Sequence[int]) -> list[Part]:
        """Says something in the model's place, such as the end of its thought; it goes on from there."""
        parts = []
        for token_id in forced:
            self.generated.append(token_id)
            self._follow_thought(token_id)
            parts += self._parts(self.stops.feed(self.decoder.push(token_id)))
        return parts

    def _remember(self) -> None:
        """Keeps the ids of the answer, so that it is not tokenised again in the next prompt."""
        tokenizer = self.tokenizer
        end = tokenizer.special.get("<channel|>")
        ids = self.generated
        if end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = "".join(self.content)
        if tokenizer.decode(ids) == text:
            self.replies.remember(text, ids)
