"""Streams one answer from the model to the screen, handling Ctrl-C and timing it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from wgemma.api import Model, Part, Usage
from wgemma.text.reply import ToolCall


@dataclass
class Answer:
    """An answer so far, with timestamps."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None  # when the first part arrived
    ended: float | None = None

    def add(self, part: Part) -> None:
        self.ended = time.perf_counter()
        if self.first is None:
            self.first = self.ended
        if part.kind == "thinking":
            self.thinking += part.text
        elif part.kind == "content":
            self.text += part.text
        if part.tool_call is not None:
            self.tool_calls.append(part.tool_call)
        if part.finish_reason is not None:
            self.finish_reason, self.usage = part.finish_reason, part.usage

    @property
    def kept(self) -> bool:
        """Whether it belongs in the history: it is complete, or was cut short after saying something."""
        return self.finish_reason in ("stop", "length", "tool") or bool(self.text or self.tool_calls)

    def timings(self) -> dict[str, float | None]:
        """Seconds and rates. A rate over no time or no tokens is None."""
        ended = self.ended or self.started
        first = self.first or ended
        computed = self.usage.prompt - self.usage.reused if self.usage else 0
        generated = self.usage.generated - 1 if self.usage else 0  # the first comes with the prompt
        return {
            "first_token_seconds": first - self.started if self.first else None,
            "total_seconds": ended - self.started,
            "prompt_tokens_per_second": _rate(computed, first - self.started),
            "generated_tokens_per_second": _rate(generated, ended - first),
        }

    def record(self) -> dict[str, Any]:
        """The reply as JSON-ready data."""
        calls = [
            {"name": call.name, "arguments": call.arguments}
            | ({"error": call.error, "raw": call.raw} if call.error else {})
            for call in self.tool_calls
        ]
        usage = self.usage and {name: getattr(self.usage, name) for name in ("prompt", "reused", "generated")}
        return {
            "text": self.text,
            "thinking": self.thinking,
            "tool_calls": calls,
            "finish_reason": self.finish_reason,
            "usage": usage,
            "timings": self.timings(),
        }


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def answer(
    model: Model, messages: list[dict[str, Any]], options: dict[str, Any], reply: Answer, hear: Callable[[Part], None]
) -> None:
    """Fills `reply` with the answer to `messages` and calls `hear` with every part. Ctrl-C cancels it."""
    try:
        with Stop() as stop, closing(model.chat(messages, **options)) as parts:
            for part in parts:
                stop.hint = b""
                reply.add(part)
                hear(part)
                if stop.asked and reply.finish_reason is None:
                    reply.finish_reason = "cancelled"
                    break
    except KeyboardInterrupt:
        model.reset()  # interrupted mid-step: the GPU's state cannot be trusted
        reply.finish_reason = "cancelled"


class Stop:
    """Inside this block, the first Ctrl-C is a request, checked between parts; the second interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self.hint = b"\n(stopping after the prompt is read; press Ctrl-C again to stop at once)\n"
        self._mine = threading.current_thread() is threading.main_thread()
        self._before: Any = None

    def __enter__(self) -> "Stop":
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.hint and sys.stderr.isatty():
            os.write(2, self.hint)  # past Python's buffers, which may be in the middle of a write
