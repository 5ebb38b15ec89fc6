"""The answers of Anthropic's messages, whole or as events: blocks that are opened, filled and closed."""

from collections.abc import Iterable, Iterator
from typing import Any

from wgemma.engine.endings import Usage
from wgemma.serve.anthropic import error
from wgemma.serve.ask import Ask, Call, Event, Finish, Started, Text, Thinking, Whole
from wgemma.serve.problems import Problem
from wgemma.serve.wire import SSE, dumps, fresh_id
from wgemma.serve.wire import event as written

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool": "tool_use", "cancelled": "end_turn"}
SIGNATURE = "wgemma"  # thoughts are not signed, but clients want something to send back


class MessageWriter:
    media_type = SSE

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.id = fresh_id("msg_")
        self._index = -1  # of the last block
        self._open: str | None = None  # its type, while it is open
        self._finish: Finish | None = None

    # -- as events

    def begin(self) -> Iterable[str]:
        return ()  # the start tells how long the prompt is

    def write(self, event: Event) -> Iterable[str]:
        match event:
            case Started():
                used = Usage(event.prompt, event.reused, 0)
                yield written({"type": "message_start", "message": self._message([], None, None, used)})
                yield written({"type": "ping"})
            case Text(text=text) if text:
                yield from self._opened("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Thinking():
                yield from self._opened("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": event.text})
            case Call():
                yield from self._closed()
                block = {"type": "tool_use", "id": fresh_id("toolu_"), "name": event.name, "input": {}}
                yield from self._opened("tool_use", block)
                yield self._delta({"type": "input_json_delta", "partial_json": dumps(event.arguments)})
                yield from self._closed()
            case Finish():
                yield from self._closed()
                self._finish = event

    def end(self) -> Iterable[str]:
        assert self._finish is not None
        reason, stop = _reason(self._finish.reason, self._finish.stop)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        yield written({"type": "message_delta", "delta": delta, "usage": _usage(self._finish.usage)})
        yield written({"type": "message_stop"})

    def fail(self, problem: Problem) -> Iterable[str]:
        yield written(error(problem))

    def _opened(self, kind: str, block: dict[str, Any]) -> Iterator[str]:
        if self._open == kind:
            return
        yield from self._closed()
        self._open = kind
        self._index += 1
        yield written({"type": "content_block_start", "index": self._index, "content_block": block})

    def _closed(self) -> Iterator[str]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._open = None
        yield written({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> str:
        return written({"type": "content_block_delta", "index": self._index, "delta": delta})

    # -- in one piece

    def whole(self, answer: Whole) -> dict[str, Any]:
        choice, blocks = answer.choices[0], list[dict[str, Any]]()
        if choice.thinking:
            blocks.append({"type": "thinking", "thinking": choice.thinking, "signature": SIGNATURE})
        if choice.text:
            blocks.append({"type": "text", "text": choice.text})
        for call in choice.calls:
            blocks.append({"type": "tool_use", "id": fresh_id("toolu_"), "name": call.name, "input": call.arguments})
        return self._message(blocks, *_reason(choice.reason, choice.stop), answer.usage())

    def _message(
        self, blocks: list[dict[str, Any]], reason: str | None, stop: str | None, used: Usage
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.ask.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": _usage(used),
        }


def _reason(reason: str, stop: str | None) -> tuple[str, str | None]:
    return ("stop_sequence", stop) if stop is not None and reason == "stop" else (REASONS[reason], None)


def _usage(used: Usage) -> dict[str, Any]:
    """What was computed before is told apart: the input is the sum of the three."""
    return {
        "input_tokens": used.prompt - used.reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.reused,
        "output_tokens": used.generated,
    }
