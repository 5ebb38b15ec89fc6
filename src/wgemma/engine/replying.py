"""Turns the token ids of a reply into parts: splits text at stop strings and markup, enforces the thinking budget, and
remembers the reply's ids.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wgemma.engine.backend import Backend
from wgemma.engine.endings import Ending, FinishReason, Measure, TokenLogprob, Usage, scored, spelled
from wgemma.engine.prefix import Replies, marks
from wgemma.engine.request import Origin, Request, Token
from wgemma.engine.stops import StopStrings
from wgemma.text.reply import TAGS, ReplyParser, ReplyPart, ToolCall
from wgemma.text.tokenizer import MARKUP, Tokenizer


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a reply. The last has no text, but `finish_reason` (stop, length, tool, cancelled), `usage`, and the
    `stop` string that ended the reply, if one did."""

    kind: Literal["thinking", "content", "tool_call"]
    text: str = ""
    tool_call: ToolCall | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the tokens that ended up here
    index: int = 0  # which of `n` alternatives it belongs to
    stop: str | None = None


class Reply:
    """A model's reply to one prompt, remembered in `replies`. `dropped` messages were left out of the prompt. `keep`
    is told the ids that are computed in the end."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        replies: Replies,
        parser: ReplyParser,
        request: Request,
        dropped: int = 0,
        keep: Callable[[list[int]], None] = lambda ids: None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.replies = replies
        self.parser = parser
        self.request = request
        self.dropped = dropped
        self.keep = keep
        self.in_thought = request.in_thought
        self.stops = StopStrings(request.stops)
        self.decoder = tokenizer.stream(keep=MARKUP)
        self.generated: list[int] = []
        self.measure = Measure(request)
        self.markup = {tokenizer.special[tag] for tag in TAGS if tag in tokenizer.special}
        self.called = self.complete = self.formatted = False
        self.content: list[str] = []

    async def parts(self) -> AsyncGenerator[Part | Ending, None]:
        """The reply, part by part; its ending comes before the last part, which says the same."""
        if self.request.max_tokens == 0:
            ending = await scored(self.backend, self.tokenizer, self.request)
            ending = replace(ending, usage=replace(ending.usage, dropped=self.dropped))
            yield ending
            yield _last(ending)
            return
        ids, limit = list(self.request.ids), self.request.max_tokens
        places = [*self.request.marks, *marks(self.tokenizer, ids)]
        request = replace(self.measure.request, marks=places, ends=self.tokenizer.stop_ids)
        reason = ""
        try:
            while not reason:
                room = limit - len(self.generated)
                written = len(self.generated)
                rest = replace(request, ids=ids + self.generated, max_tokens=room, written=written)
                async with aclosing(self.backend.generate(rest)) as tokens:
                    reason = "length"
                    async for token in tokens:
                        reason, parts = self._next(token)
                        for part in parts:
                            yield part
                        if reason:
                            break
                        reason = "length"
                if reason == "length" and self.request.cancelled():  # before the first token, or with the last
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
            if self.generated:
                self.keep([*ids, *self.generated][:-1])
        ended: Any = "tool" if self.called else reason
        usage = replace(self.measure.usage(), dropped=self.dropped)
        ending = Ending(ended, usage, complete=self.complete, stop=self.stops.found)
        yield ending
        yield _last(ending)

    def _next(self, token: Token) -> tuple[str, list[Part]]:
        """Why the reply ends with this token, or "", and the parts it completes; "budget" ends only the thought."""
        self.measure.came()
        if token.id in self.tokenizer.stop_ids:
            self.complete = True
            return "stop", []
        self._keep(token.id, token.origin)
        parts = self._take(token)
        if self.stops.found:
            return "stop", parts
        if self.request.cancelled():
            return "cancelled", parts
        budget = self.request.thinking_budget
        over = budget is not None and self.in_thought and len(self.generated) >= budget
        return "budget" if over else "", parts

    def _take(self, token: Token) -> list[Part]:
        self._follow_thought(token.id)
        found = self._read(token.id, formatted=token.plain)
        if token.logprobs:
            last = found.pop() if found else Part("thinking" if self.in_thought else "content")
            found.append(replace(last, logprobs=spelled(self.tokenizer, token.logprobs)))
        return found

    def _read(self, token_id: int, *, formatted: bool = False) -> list[Part]:
        """The parts that a token completes. Only special tokens are markup, whatever others spell; no stop string
        reaches across one, or into the text of a format."""
        found: list[Part] = []
        if token_id in self.markup or formatted != self.formatted:
            found = self._words(self.stops.feed(self.decoder.finish()) + self.stops.finish())
        self.formatted = formatted
        text = self.stops.feed(self.decoder.push(token_id))
        if token_id not in self.markup or self.stops.found:
            return found + self._words(text)
        return found + [self._public(part) for part in self.parser.feed(text + self.stops.finish())]

    def _words(self, text: str) -> list[Part]:
        if self.formatted:  # to the letter
            return [self._public(ReplyPart("content", text))] if text else []
        return [self._public(part) for part in self.parser.feed_words(text)]

    def _public(self, part: Any) -> Part:
        self.called = self.called or part.kind == "tool_call"
        if part.kind == "content":
            self.content.append(part.text)
        return Part(part.kind, part.text, part.tool_call)

    def _end(self) -> list[Part]:
        rest = self._words(self.stops.feed(self.decoder.finish()) + self.stops.finish())
        last = self.parser.finish(cut=not self.complete)
        whole = self.called and not any(part.kind == "tool_call" for part in last)
        rest += [self._public(part) for part in last]
        self.called = self.called and (self.complete or whole)
        return rest

    def _keep(self, token_id: int, origin: Origin = "drawn") -> None:
        self.generated.append(token_id)
        self.measure.kept(origin)

    # -- the thinking budget

    def _follow_thought(self, token_id: int) -> None:
        special = self.tokenizer.special
        if token_id == special.get("<|channel>"):
            self.in_thought = True
        elif token_id == special.get("<channel|>"):
            self.in_thought = False

    def _force(self, forced: Sequence[int]) -> list[Part]:
        """Appends tokens on the model's behalf, such as the end of its thought; generation continues after them."""
        parts = []
        for token_id in forced:
            self._keep(token_id)
            self._follow_thought(token_id)
            parts += self._read(token_id)
        return parts

    def _remember(self) -> None:
        """Remembers the answer's ids, so that the next prompt does not tokenise it again."""
        tokenizer = self.tokenizer
        end = tokenizer.special.get("<channel|>")
        ids = self.generated
        if end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = "".join(self.content)
        if tokenizer.decode(ids) == text:
            self.replies.remember(text, ids)


def _last(ending: Ending) -> Part:
    return Part("content", finish_reason=ending.finish_reason, usage=ending.usage, stop=ending.stop)
