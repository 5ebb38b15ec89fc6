"""Model output → thinking, content and tool calls, as it streams.

The stream is split into tags and the text between them; the parser has three states:

  content   --<|channel>-->   thinking  --<channel|>-->   content
  content   --<|tool_call>--> tool call --<tool_call|>--> content

White space before a tag and after a closing tag is dropped, and stray closing tags are swallowed. So white space is
held back until other text follows, and a `<` until it can no longer become a tag. The result does not depend on where
the stream was split. Each character is looked at a fixed number of times.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wgemma.text.arguments import ToolCall, parse_call

__all__ = ["ReplyParser", "ReplyPart", "ToolCall"]

_OPEN_CHANNEL = "<|channel>"
_CLOSE_CHANNEL = "<channel|>"
_OPEN_CALL = "<|tool_call>"
_CLOSE_CALL = "<tool_call|>"
_OPEN_RESPONSE = "<|tool_response>"  # where the model hands over to the tool
_TAGS = (_OPEN_CHANNEL, _CLOSE_CHANNEL, _OPEN_CALL, _CLOSE_CALL, _OPEN_RESPONSE)
_TAG = re.compile("(" + "|".join(map(re.escape, _TAGS)) + ")")
# `<` occurs only at the start of a tag, so only the text from the last `<` on can be an unfinished one.
_UNFINISHED = frozenset(tag[:length] for tag in _TAGS for length in range(1, len(tag)))

_THOUGHT = "thought\n"  # the channel's name

Kind = Literal["thinking", "content", "tool_call"]


@dataclass(frozen=True)
class ReplyPart:
    kind: Kind
    text: str = ""
    tool_call: ToolCall | None = None


class ReplyParser:
    """Call `feed` with text as it arrives, then `finish`. Text may come in many parts; a tool call is always complete.

    `in_thought`: the prompt ended inside an open thought. `tools` help repair broken calls. With `think` off, the
    model's thinking is dropped.
    """

    def __init__(self, *, think: bool = False, in_thought: bool = False, tools: Sequence[Any] | None = None) -> None:
        self._think = think
        self._tools = tools
        self._state: Kind = "thinking" if in_thought else "content"
        self._unfinished = ""  # text that may still become a tag
        self._name: str | None = None  # the channel's name so far, while it may still be one
        self._space: list[str] = []  # white space held back until text follows
        self._skip_space = False  # after a closing tag
        self._call: list[str] = []
        self._parts: list[tuple[Kind, list[str] | ToolCall]] = []

    def feed(self, text: str) -> list[ReplyPart]:
        text = self._unfinished + text
        last = text.rfind("<")
        cut = last if last >= 0 and text[last:] in _UNFINISHED else len(text)
        self._unfinished = text[cut:]
        # With a group in the pattern, split alternates between text and tags.
        for i, piece in enumerate(_TAG.split(text[:cut])):
            if i % 2:
                self._on_tag(piece)
            elif piece:
                self._on_text(piece)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[ReplyPart]:
        """Ends the stream: flushes what was held back and closes an open tool call, which is an error if the reply was
        `cut` there."""
        rest, self._unfinished = self._unfinished, ""
        if rest:
            self._on_text(rest)
        if self._state == "tool_call":
            self._end_call(cut=cut)
        else:
            self._end_name()
            self._emit("".join(self._space))
            self._space = []
        return self._take()

    def _on_text(self, text: str) -> None:
        if self._state == "tool_call":
            self._call.append(text)
        elif self._name is not None:
            self._on_name(text)
        else:
            self._on_words(text)

    def _on_tag(self, tag: str) -> None:
        if self._state == "tool_call":
            self._tag_in_call(tag)
        elif self._state == "thinking":
            self._tag_in_thinking(tag)
        else:
            self._tag_in_content(tag)

    def _tag_in_content(self, tag: str) -> None:
        if tag == _OPEN_CHANNEL:
            self._state, self._name = "thinking", ""
            self._space, self._skip_space = [], False
        elif tag == _OPEN_CALL:
            self._state = "tool_call"
            self._space, self._skip_space = [], False
        elif tag == _CLOSE_CHANNEL:
            self._skip_space = True

    def _tag_in_thinking(self, tag: str) -> None:
        self._end_name()
        if tag == _CLOSE_CHANNEL:
            self._state = "content"
            self._space, self._skip_space = [], True
        elif tag == _OPEN_CHANNEL:
            self._name = ""
        else:
            self._on_words(tag)

    def _tag_in_call(self, tag: str) -> None:
        if tag in (_CLOSE_CALL, _OPEN_RESPONSE):
            self._end_call()
        elif tag == _OPEN_CALL:
            # The previous call was never closed; a doubled opening tag is not a call.
            if "".join(self._call).strip():
                self._end_call()
            self._state, self._call = "tool_call", []
        else:
            self._call.append(tag)

    def _on_name(self, text: str) -> None:
        """Drops `thought\\n` at the start of a channel; anything else is part of the thought."""
        head = (self._name or "") + text[: len(_THOUGHT)]
        if head.startswith(_THOUGHT):
            rest = text[len(_THOUGHT) - len(self._name or "") :]
        elif _THOUGHT.startswith(head):
            self._name = head
            return
        else:
            rest = (self._name or "") + text
        self._name = None
        if rest:
            self._on_words(rest)

    def _end_name(self) -> None:
        name, self._name = self._name, None
        if name and name != _THOUGHT.strip():
            self._on_words(name)

    def _on_words(self, text: str) -> None:
        if self._skip_space:
            text = text.lstrip()
        words = text.rstrip()
        if words:
            self._skip_space = False
            self._emit("".join(self._space) + words)
            self._space = []
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def _end_call(self, *, cut: bool = False) -> None:
        text = "".join(self._call)
        call = parse_call(text, self._tools)
        if cut:
            call = ToolCall(call.name, error="the reply was cut before the call ended", raw=text)
        self._parts.append(("tool_call", call))
        self._call = []
        self._state, self._skip_space = "content", True

    def _emit(self, text: str) -> None:
        if not text or (self._state == "thinking" and not self._think):
            return
        if self._parts and self._parts[-1][0] == self._state:
            pieces = self._parts[-1][1]
            assert isinstance(pieces, list)
            pieces.append(text)
        else:
            self._parts.append((self._state, [text]))

    def _take(self) -> list[ReplyPart]:
        parts, self._parts = self._parts, []
        return [
            ReplyPart(kind, tool_call=body) if isinstance(body, ToolCall) else ReplyPart(kind, "".join(body))
            for kind, body in parts
        ]
