"""The answers of OpenAI's responses, whole or as events: items that are added, filled and done, one after the other."""

from collections.abc import Iterable, Iterator
from typing import Any

from wgemma.engine.endings import Usage
from wgemma.serve.ask import NOTHING, Ask, Call, Event, Finish, Started, Text, Thinking, Whole
from wgemma.serve.fields import Fields
from wgemma.serve.openai import tokens
from wgemma.serve.problems import Problem
from wgemma.serve.wire import SSE, dumps, fresh_id, now
from wgemma.serve.wire import event as written


class ResponseWriter:
    """One response. `fields` is the request, much of which a response repeats."""

    media_type = SSE

    def __init__(self, ask: Ask, fields: Fields) -> None:
        self.ask = ask
        self.fields = fields
        self.id, self.created = fresh_id("resp_"), now()
        self.output: list[dict[str, Any]] = []  # the items so far; the last may be open
        self._open: str | None = None  # the last item's type, while it is open
        self._number = 0
        self._finish: Finish | None = None

    # -- as events

    def begin(self) -> Iterable[str]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def write(self, event: Event) -> Iterable[str]:
        match event:
            case Started():
                return
            case Text():
                yield from self._opened("message")
                self._part()["text"] += event.text
                told = tokens(event.logprobs)
                self._part()["logprobs"] += told
                yield self._event("response.output_text.delta", **self._place(), delta=event.text, logprobs=told)
            case Thinking():
                yield from self._opened("reasoning")
                self._part()["text"] += event.text
                yield self._event("response.reasoning_text.delta", **self._place(), delta=event.text)
            case Call():
                yield from self._closed()
                yield from self._call(event)
            case Finish():
                yield from self._closed("incomplete" if event.reason == "length" else "completed")
                self._finish = event

    def end(self) -> Iterable[str]:
        status = "incomplete" if self._finish and self._finish.reason == "length" else "completed"
        yield self._event(f"response.{status}", response=self._response(status))

    def fail(self, problem: Problem) -> Iterable[str]:
        response = self._response("failed") | {
            "error": {"code": problem.code or "server_error", "message": problem.message}
        }
        yield self._event("response.failed", response=response)

    def _event(self, kind: str, **values: Any) -> str:
        self._number += 1
        return written({"type": kind, "sequence_number": self._number - 1, **values})

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, "content_index": 0}

    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self.output[-1]["content"][0]
        return part

    def _opened(self, kind: str) -> Iterator[str]:
        """Adds an item for text or thinking, unless one is open."""
        if self._open == kind:
            return
        yield from self._closed()
        self._open = kind
        self.output.append(_item(kind))
        at = {"output_index": len(self.output) - 1}
        yield self._event("response.output_item.added", **at, item=self.output[-1])
        self.output[-1]["content"].append(_part(kind))
        yield self._event("response.content_part.added", **self._place(), part=_part(kind))

    def _closed(self, status: str = "completed") -> Iterator[str]:
        """Ends the open item."""
        if self._open is None:
            return
        item, part = self.output[-1], self._part()
        item["status"] = status
        if self._open == "message":
            logprobs = part["logprobs"]
            yield self._event("response.output_text.done", **self._place(), text=part["text"], logprobs=logprobs)
        else:
            yield self._event("response.reasoning_text.done", **self._place(), text=part["text"])
        yield self._event("response.content_part.done", **self._place(), part=part)
        yield self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)
        self._open = None

    def _call(self, call: Call) -> Iterator[str]:
        item = _called(call)
        self.output.append(item)
        at = {"output_index": len(self.output) - 1}
        place = {"item_id": item["id"], **at}
        yield self._event("response.output_item.added", **at, item={**item, "arguments": "", "status": "in_progress"})
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
        )
        yield self._event("response.output_item.done", **at, item=item)

    # -- in one piece

    def whole(self, answer: Whole) -> dict[str, Any]:
        choice = answer.choices[0]
        for kind, text in (("reasoning", choice.thinking), ("message", choice.text)):
            if text or (kind == "message" and not choice.calls):
                item, part = _item(kind), _part(kind)
                part["text"] = text
                if kind == "message":
                    part["logprobs"] = tokens(choice.logprobs)
                item["content"], item["status"] = [part], "completed"
                self.output.append(item)
        self.output += [_called(call) for call in choice.calls]
        self._finish = Finish(choice.reason, answer.usage())
        return self._response("incomplete" if choice.reason == "length" else "completed")

    def _response(self, status: str) -> dict[str, Any]:
        ask, asked, ended = self.ask, self.fields.raw, status in ("completed", "incomplete")
        text, reasoning = asked.get("text") or {}, asked.get("reasoning") or {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": now() if ended else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": ask.max_tokens,
            "max_tool_calls": None,
            "model": ask.model,
            "output": self.output if ended else [],
            "parallel_tool_calls": ask.parallel,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": ask.sampling.get("temperature", 1.0),
            "text": {"format": text.get("format") or {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": [one for one in asked.get("tools") or [] if one["type"] == "function"],
            "top_logprobs": ask.logprobs or 0,
            "top_p": ask.sampling.get("top_p", 1.0),
            "truncation": asked.get("truncation") or "disabled",
            "usage": _usage(self._finish.usage if self._finish else NOTHING) if ended else None,
            "user": None,
            "metadata": asked.get("metadata") or {},
        }


def _item(kind: str) -> dict[str, Any]:
    """An item of text or thinking that is still empty."""
    if kind == "message":
        return {"id": fresh_id("msg_"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
    return {"id": fresh_id("rs_"), "type": kind, "status": "in_progress", "summary": [], "content": []}


def _part(kind: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": ""}


def _called(call: Call) -> dict[str, Any]:
    return {
        "id": fresh_id("fc_"),
        "type": "function_call",
        "status": "completed",
        "call_id": fresh_id("call_"),
        "name": call.name,
        "arguments": dumps(call.arguments),
    }


def _usage(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.reused},
        "output_tokens": used.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt + used.generated,
    }
