"""Parts of a reply → text for the terminal. Pure: text in, text out.

Model output is treated as hostile. Each character is checked by itself, so it does not matter where the stream was
split: an escape sequence comes out as harmless text, with its escape character spelled out.
"""

import json
import os
from typing import TextIO
from unicodedata import category

from wgemma.api import Part
from wgemma.checks import counted
from wgemma.cli.chat_answer import Answer
from wgemma.cli.output import clean
from wgemma.text.reply import ToolCall

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
JOINERS = "\u200c\u200d"  # scripts and emoji need them, and they do not move the cursor


def safe(text: str) -> str:
    """Text in any script, with control characters other than newline and tab made visible."""
    return "".join(c if c in JOINERS or category(c) == "Zs" else clean(c) for c in text)


def coloured(stream: TextIO) -> bool:
    """Whether this stream is a terminal that supports escape sequences, and the user wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Painter:
    """Renders one reply. `colour` dims the thinking; `hide_thinking` shows only that there is some, if `watched`."""

    def __init__(self, *, colour: bool = False, watched: bool = False, hide_thinking: bool = False) -> None:
        self._dim, self._plain = (DIM, PLAIN) if colour else ("", "")
        self._watched = watched
        self._hide = hide_thinking
        self._thinking = False
        self._column = 0  # 0 at the start of a line

    def part(self, part: Part) -> str:
        """What to write for this part."""
        if part.kind == "thinking":
            return self._thought(part.text)
        if part.tool_call is not None:
            return self._leave_thought() + self._line(f"→ {describe(part.tool_call)}")
        return self._leave_thought() + self._track(safe(part.text)) if part.text else ""

    def end(self) -> str:
        """Closes the reply: leaves the cursor at the start of a line, with no style on."""
        return self._leave_thought(last=True) + ("\n" if self._column else "")

    def _thought(self, text: str) -> str:
        if self._hide and not self._watched:
            return ""
        opening = ""
        if not self._thinking:
            opening = self._fresh_line() + self._dim + "thinking…" + ("" if self._hide else "\n")
            self._thinking, self._column = True, 0
        return opening + ("" if self._hide else self._track(safe(text)))

    def _leave_thought(self, *, last: bool = False) -> str:
        if not self._thinking:
            return ""
        self._thinking = False
        before = " " if self._hide else self._fresh_line()
        self._column = 0
        return f"{before}…done{self._plain}\n" + ("" if last else "\n")

    def _line(self, text: str) -> str:
        before = self._fresh_line()
        self._column = 0
        return f"{before}{text}\n"

    def _fresh_line(self) -> str:
        return "\n" if self._column else ""

    def _track(self, text: str) -> str:
        if text:
            self._column = 0 if text.endswith("\n") else 1
        return text


def describe(call: ToolCall) -> str:
    """get_weather(city="Paris", days=3)"""
    if call.error is not None:
        return safe(f"invalid tool call ({call.error}): {call.raw}").replace("\n", "⏎")
    values = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return safe(f"{call.name}({', '.join(values)})").replace("\n", "⏎")


def remark(reply: Answer, context: int) -> str:
    """Why the answer ended, if that is not obvious."""
    if reply.finish_reason == "cancelled":
        return "(stopped)" if reply.kept else "(stopped before the answer; the question is dropped)"
    if reply.finish_reason != "length" or reply.usage is None:
        return ""
    if reply.usage.prompt + reply.usage.generated >= context:
        return f"(cut off: the context of {context} tokens is full)"
    return f"(cut off after {counted(reply.usage.generated, 'token')}: max_tokens)"


def forgotten(reply: Answer, before: int = 0) -> str:
    """That the model no longer sees the oldest messages, if there are more of them than before."""
    dropped = reply.usage.dropped if reply.usage else 0
    which = "oldest message" if dropped == 1 else f"{dropped} oldest messages"
    return f"(the context is full: the model no longer sees the {which})" if dropped > before else ""


def statistics(reply: Answer, load_seconds: float | None = None) -> str:
    """What `--verbose` prints, one fact per line."""
    timings, usage = reply.timings(), reply.usage
    facts = {} if load_seconds is None else {"load": f"{load_seconds:.2f} s"}
    if usage is not None:
        facts["prompt"] = f"{counted(usage.prompt, 'token')}{_speed(timings['prompt_tokens_per_second'])}"
        if usage.reused:
            facts["re-used"] = f"{counted(usage.reused, 'token')}; {usage.computed} computed"
        elif usage.computed < usage.prompt:
            facts["computed"] = counted(usage.computed, "token")
        if usage.dropped:
            facts["dropped"] = counted(usage.dropped, "message")
        facts["generated"] = f"{counted(usage.generated, 'token')}{_speed(timings['generated_tokens_per_second'])}"
    if (first := timings["first_token_seconds"]) is not None:
        facts["first token"] = f"after {first:.2f} s"
    facts["total"] = f"{timings['total_seconds']:.2f} s"
    return "".join(f"{name:<13}{fact}\n" for name, fact in facts.items())


def _speed(rate: float | None) -> str:
    return "" if rate is None else f", {rate:.1f} tokens/s"
