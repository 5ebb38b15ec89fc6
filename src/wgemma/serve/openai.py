"""OpenAI's chat completions: JSON → Ask, Events → JSON or chunks. Also what its other endpoints share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wgemma.engine.endings import TokenLogprob, Usage
from wgemma.engine.thinking import LEVELS
from wgemma.serve.ask import Ask, Call, Choice, Event, Finish, Started, Text, Thinking, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.content import (
    Media,
    arguments,
    checked_chat,
    checked_choice,
    checked_tools,
    simplest,
    text_or_parts,
    tool,
)
from wgemma.serve.fields import Fields, model_of, sampling_of
from wgemma.serve.problems import Problem, bad
from wgemma.serve.wire import SSE, data, dumps, fresh_id, now

REASONS = {"stop": "stop", "length": "length", "tool": "tool_calls", "cancelled": "stop"}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_ROLES = ("system", "developer", "user", "assistant", "tool")


# -- requests


def read_chat(fields: Fields) -> Ask:
    for name, why in (
        ("functions", "use tools."),
        ("function_call", "use tool_choice."),
        ("audio", "the model writes text only."),
        ("prediction", "leave it out."),
    ):
        fields.refuse(name, why)
    if "audio" in fields.items("modalities", 10):
        raise bad("modalities: the model writes text only.", "modalities")
    tools = read_tools(fields)
    choice, tools = read_choice(fields, tools)
    return Ask(
        model=model_of(fields),
        messages=read_messages(fields),
        stream=fields.flag("stream"),
        max_tokens=_most(fields),
        stop=fields.stops("stop"),
        n=fields.whole("n", 1, BOUNDS.n) or 1,
        sampling=sampling(fields),
        logprobs=_logprobs(fields),
        tools=tools,
        tool_choice=choice,
        parallel=fields.flag("parallel_tool_calls", True),
        format=_format(fields),
        think=_thinks(fields),
        shift=False,
    )


def includes_usage(fields: Fields) -> bool:
    options = fields.object("stream_options")
    return options is not None and options.flag("include_usage")


def _most(fields: Fields) -> int | None:
    newer, older = (fields.whole(name, 0, BOUNDS.tokens) for name in ("max_completion_tokens", "max_tokens"))
    return older if newer is None else newer


def sampling(fields: Fields) -> dict[str, Any]:
    """OpenAI's settings, and those that other servers added."""
    found = sampling_of(fields)
    penalty = fields.number("repetition_penalty", 1e-3, 1e3)
    if penalty is not None:
        found["repeat_penalty"] = penalty
    if {"presence_penalty", "frequency_penalty"} & found.keys():
        found.setdefault("repeat_last_n", -1)  # OpenAI's penalties count the whole text
    bias = fields.object("logit_bias")
    if bias is not None and bias.raw:
        found["logit_bias"] = _biases(bias)
    return found


def _biases(bias: Fields) -> dict[int, float]:
    if len(bias.raw) > BOUNDS.biases:
        raise bad(f"logit_bias has more than {BOUNDS.biases} tokens.", "logit_bias")
    found = {}
    for token in bias.raw:
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise bad("logit_bias must map token ids to numbers.", "logit_bias")
        found[int(token)] = bias.number(token, -100, 100) or 0.0
    return found


def _logprobs(fields: Fields) -> int | None:
    most = fields.whole("top_logprobs", 0, BOUNDS.logprobs)
    if not fields.flag("logprobs"):
        if most:
            raise bad("top_logprobs needs logprobs to be true.", "top_logprobs")
        return None
    return most or 0


def _format(fields: Fields) -> Any:
    given = fields.object("response_format")
    return None if given is None else read_format(given, given.object("json_schema"))


def read_format(given: Fields, inner: Fields | None) -> Any:
    """What `Model.chat` takes as its format; the schema is in `inner`."""
    kind = given.choice("type", ("text", "json_object", "json_schema"))
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        return None
    schema = inner.schema("schema") if inner else None
    if schema is None:
        raise bad(f"{given.where} has no schema.", given.where)
    return schema


def _thinks(fields: Fields) -> bool | str:
    options = fields.object("chat_template_kwargs")  # how vLLM and llama.cpp are asked
    if options is not None and options.has("enable_thinking"):
        return options.flag("enable_thinking")
    return effort(fields.choice("reasoning_effort", EFFORTS))


def effort(level: str | None) -> bool | str:
    if level in (None, "none"):
        return False
    return "low" if level == "minimal" else level if level in LEVELS else True


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    found = []
    for given in fields.objects("tools", BOUNDS.tools):
        given.choice("type", ("function",))
        function = given.object("function")
        if function is None:
            raise bad(f"{given.where} has no function.", given.where)
        found.append(tool(function.needed("name"), function.text("description"), function.schema("parameters")))
    return checked_tools(found)


def read_choice(fields: Fields, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The tool choice, and the tools it leaves."""
    given = fields.any("tool_choice")
    if given is None or isinstance(given, str):
        return checked_choice(fields.choice("tool_choice", ("none", "auto", "required")) or "auto", tools), tools
    chosen = fields.object("tool_choice")
    assert chosen is not None
    if chosen.choice("type", ("function", "allowed_tools")) == "allowed_tools":
        allowed = chosen.object("allowed_tools") or chosen
        names = [_named(one) for one in allowed.objects("tools", BOUNDS.tools)]
        left = [tool for tool in tools if tool["function"]["name"] in names]
        return checked_choice(allowed.choice("mode", ("auto", "required")) or "auto", left), left
    return checked_choice(_named(chosen), tools), tools


def _named(chosen: Fields) -> str:
    return (chosen.object("function") or chosen).needed("name")


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    media, found = Media(), []
    for given in fields.objects("messages", BOUNDS.messages):
        role = given.choice("role", _ROLES)
        if role is None:
            raise bad(f"{given.where}.role is missing.", given.where)
        message: dict[str, Any] = {
            "role": "system" if role == "developer" else role,
            "content": simplest(parts) if (parts := read_parts(given, media)) else "",
        }
        if role == "assistant":
            message |= _said(given)
        if role == "tool":
            message |= {key: given.needed(key) for key in ("tool_call_id",)}
            if given.has("name"):
                message["name"] = given.text("name")
        found.append(message)
    return checked_chat(found)


def _said(given: Fields) -> dict[str, Any]:
    """What only an assistant's message has."""
    said: dict[str, Any] = {}
    thought = given.text("reasoning_content") or given.text("reasoning")
    if thought:
        said["thinking"] = thought
    calls = []
    for call in given.objects("tool_calls", BOUNDS.tools):
        function = call.object("function")
        if function is None:
            raise bad(f"{call.where} has no function.", call.where)
        name = function.needed("name")
        values = arguments(function.any("arguments"), function.path("arguments"))
        calls.append({"id": call.text("id"), "function": {"name": name, "arguments": values}})
    return {**said, "tool_calls": calls} if calls else said


def read_parts(given: Fields, media: Media) -> list[dict[str, Any]]:
    content = text_or_parts(given, "content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part, media) for part in content]


def _part(part: Fields, media: Media) -> dict[str, Any]:
    kind = part.needed("type")
    match kind:
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": part.text("text")}
        case "refusal":
            return {"type": "text", "text": part.text("refusal")}
        case "image_url" | "input_image":
            url = part.any("image_url")
            url = url.get("url") if isinstance(url, dict) else url
            return media.picture(_data_url(url, part.path("image_url")), part.path("image_url"))
        case "input_audio":
            inner = part.object("input_audio")
            return media.sound(inner.any("data") if inner else None, part.path("input_audio"))
    raise bad(f"{part.where} is of type {kind[:40]}; text, image_url and input_audio are supported.", part.where)


def _data_url(url: Any, where: str) -> str:
    if not isinstance(url, str) or url[:5].lower() != "data:":
        raise bad(f"{where} must be a data: URL; the server fetches nothing from elsewhere.", where)
    return url


# -- answers


class ChatWriter:
    """A chat completion, whole or in chunks."""

    media_type = SSE

    def __init__(self, ask: Ask, usage: bool = False) -> None:
        self.ask = ask
        self.usage = usage
        self.id, self.created = fresh_id("chatcmpl-"), now()
        self._answer = Whole()  # for the sums

    def begin(self) -> Iterable[str]:
        for index in range(self.ask.n):
            yield self._chunk(index, {"role": "assistant", "content": None})

    def write(self, event: Event) -> Iterable[str]:
        match event:
            case Started():
                return
            case Text():
                yield self._chunk(event.index, {"content": event.text}, logprobs=event.logprobs)
            case Thinking():
                delta = {"reasoning_content": event.text, "reasoning": event.text}
                yield self._chunk(event.index, delta)
            case Call():
                function = {"name": event.name, "arguments": ""}
                opened = {"index": event.number, "id": fresh_id("call_"), "type": "function", "function": function}
                yield self._chunk(event.index, {"tool_calls": [opened]})
                filled = {"index": event.number, "function": {"arguments": dumps(event.arguments)}}
                yield self._chunk(event.index, {"tool_calls": [filled]})
            case Finish():
                self._answer.add(event)
                yield self._chunk(event.index, {}, REASONS[event.reason])

    def end(self) -> Iterable[str]:
        if self.usage:
            yield data({**self._head("chat.completion.chunk"), "choices": [], "usage": usage(self._sums())})
        yield "data: [DONE]\n\n"

    def fail(self, problem: Problem) -> Iterable[str]:
        yield data(error(problem))

    def whole(self, answer: Whole) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": None
                if self.ask.logprobs is None
                else {"content": tokens(choice.logprobs), "refusal": None},
                "finish_reason": REASONS[choice.reason],
            }
            for index, choice in enumerate(answer.choices)
        ]
        self._answer = answer
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(self._sums())}

    def _sums(self) -> Usage:
        return self._answer.usage(self.ask.n)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.ask.model,
            "system_fingerprint": "wgemma",
        }

    def _chunk(
        self, index: int, delta: Mapping[str, Any], reason: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> str:
        told = _told(logprobs) if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return data({**chunk, "usage": None} if self.usage else chunk)


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thinking:
        message |= {"reasoning_content": choice.thinking, "reasoning": choice.thinking}
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": fresh_id("call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": dumps(call.arguments)},
            }
            for call in choice.calls
        ]
    return message


def usage(used: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.generated,
        "total_tokens": used.prompt + used.generated,
        "prompt_tokens_details": {"cached_tokens": used.reused},
    }


def _told(found: Iterable[TokenLogprob]) -> dict[str, Any]:
    return {"content": tokens(found), "refusal": None}


def tokens(found: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities, each with its alternatives."""
    return [{**_token(one), "top_logprobs": [_token(other) for other in one.alternatives]} for one in found]


def _token(one: TokenLogprob) -> dict[str, Any]:
    return {"token": one.text, "logprob": max(one.logprob, -9999.0), "bytes": list(one.text.encode(errors="replace"))}


def error(problem: Problem) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(problem.status) or ("invalid_request_error" if problem.status < 500 else "server_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}
