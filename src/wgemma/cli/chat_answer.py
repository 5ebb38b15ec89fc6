"""Streams one answer from the model to the screen, handling Ctrl-C and timing it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from wgemma.api import Model, Part, PromptProgress, Usage
from wgemma.cli.progress_line import ProgressLine
from wgemma.text.reply import ToolCall


@dataclass
class Answer:
    """An answer so far, with timestamps."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    parsed: Any = None  # the JSON value, if a format asks for one
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None  # when the first token came, or else the first part
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
        """Seconds and rates, by tokens, whenever their text came. A rate over no time or no tokens is None."""
        used = self.usage or Usage(0, 0, 0)
        return {
            "first_token_seconds": self.first - self.started if self.first and used.generated else None,
            "total_seconds": (self.ended or self.started) - self.started,
            "prompt_tokens_per_second": _rate(used.computed, used.prompt_seconds),
            "generated_tokens_per_second": _rate(used.generated - 1, used.generation_seconds),
        }

    def record(self) -> dict[str, Any]:
        """The reply as JSON-ready data."""
        calls = [
            {"name": call.name, "arguments": call.arguments}
            | ({"error": call.error, "raw": call.raw} if call.error else {})
            for call in self.tool_calls
        ]
        usage = self.usage and {
            name: getattr(self.usage, name) for name in ("prompt", "reused", "computed", "generated", "dropped")
        }
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
    model: Model,
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    reply: Answer,
    hear: Callable[[Part], None],
    *,
    quiet: bool = False,
) -> None:
    """Fills `reply` with the answer to `messages` and calls `hear` with every part. Ctrl-C cancels it. Unless `quiet`,
    a line on a terminal says how far the prompt is."""

    def follow(progress: PromptProgress) -> None:
        if progress.finished:
            reply.first = time.perf_counter()
        line.hear(progress)

    try:
        with (
            Stop() as stop,
            ProgressLine(stop.is_set, shown=not quiet) as line,
            closing(model.chat(messages, cancel=stop, progress=follow, **options)) as parts,
        ):
            for part in parts:
                line.end()
                reply.add(part)
                hear(part)
            if options.get("format") is not None:
                reply.parsed = parts.parsed
    except KeyboardInterrupt:
        model.reset()  # NumPy may have been interrupted in the middle of a step
        reply.finish_reason = "cancelled"


class Stop:
    """An event: inside this block, the first Ctrl-C, or another of `signals`, sets it and prints `hint` on a terminal;
    the second interrupts at once."""

    def __init__(self, hint: bytes = b"", signals: Sequence[int] = (signal.SIGINT,)) -> None:
        self.signal = 0  # the one that came
        self._hint = hint
        self._signals = signals if threading.current_thread() is threading.main_thread() else ()
        self._before: list[Any] = []

    @property
    def exit_code(self) -> int:
        """What a program that was stopped by this signal returns."""
        return 128 + self.signal

    def is_set(self) -> bool:
        return self.signal != 0

    def __enter__(self) -> "Stop":
        self._before = [signal.signal(number, self._handle) for number in self._signals]
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in zip(self._signals, self._before, strict=True):
            signal.signal(number, before)

    def _handle(self, number: int, _: object) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal:
            raise SystemExit(self.exit_code)
        self.signal = number
        if self._hint and sys.stderr.isatty():
            os.write(2, self._hint)  # past Python's buffers, which may be in the middle of a write
