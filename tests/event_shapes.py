"""What clients require of every event that a server sends, as schemas, and of their order, as checks.

Every streaming test reads its stream through one of the `check_` functions, so a reply that would break a client
cannot come from us unnoticed.
"""

import json
from typing import Any

from json_checker import valid

STRING, WHOLE, FLAG, NULL = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}, {"type": "null"}
FILLED = {"type": "string", "minLength": 1}
ARRAY = {"type": "array"}


def thing(optional: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": {**members, **(optional or {})},
        "required": list(members),
        "additionalProperties": False,
    }


def const(value: Any) -> dict[str, Any]:
    return {"const": value}


def either(*schemas: Any) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def check(schema: Any, value: Any) -> Any:
    assert valid(schema, value), f"{json.dumps(value)[:600]} does not fit"
    return value


# -- OpenAI

_TOP = thing(token=STRING, logprob={"type": "number", "maximum": 1e-3}, bytes={"type": "array", "items": WHOLE})
TOKEN = thing(**_TOP["properties"], top_logprobs={"type": "array", "items": _TOP})
LOGPROBS = either(NULL, thing(content={"type": "array", "items": TOKEN}, refusal=NULL))
USAGE = thing(
    prompt_tokens=WHOLE,
    completion_tokens=WHOLE,
    total_tokens=WHOLE,
    prompt_tokens_details=thing(cached_tokens=WHOLE),
)
REASON = {"enum": ["stop", "length", "tool_calls"]}
CALL_OPENED = thing(
    index=WHOLE,
    id={"type": "string", "pattern": "^call_"},
    type=const("function"),
    function=thing(name=FILLED, arguments=const("")),
)
CALL_FILLED = thing(index=WHOLE, function=thing(arguments=STRING))
DELTA = either(
    thing(role=const("assistant"), content=NULL),
    thing(content=STRING),
    thing(reasoning_content=FILLED, reasoning=FILLED),
    thing(tool_calls={"type": "array", "items": either(CALL_OPENED, CALL_FILLED), "minItems": 1, "maxItems": 1}),
    thing(),
)
_HEAD = {"id": FILLED, "created": WHOLE, "model": FILLED, "system_fingerprint": FILLED}
CHUNK = thing(
    {"usage": either(NULL, USAGE)},
    **_HEAD,
    object=const("chat.completion.chunk"),
    choices={
        "type": "array",
        "items": thing(index=WHOLE, delta=DELTA, logprobs=LOGPROBS, finish_reason=either(NULL, REASON)),
    },
)
OPENAI_ERROR = thing(
    error=thing(message=FILLED, type=FILLED, param=either(NULL, STRING), code=either(NULL, STRING)),
)
CALL = thing(id=FILLED, type=const("function"), function=thing(name=FILLED, arguments=STRING))
CHAT = thing(
    **_HEAD,
    object=const("chat.completion"),
    usage=USAGE,
    choices={
        "type": "array",
        "minItems": 1,
        "items": thing(
            index=WHOLE,
            message=thing(
                {"reasoning_content": FILLED, "reasoning": FILLED, "tool_calls": {"type": "array", "items": CALL}},
                role=const("assistant"),
                content=either(NULL, STRING),
                refusal=NULL,
            ),
            logprobs=LOGPROBS,
            finish_reason=REASON,
        ),
    },
)
LEGACY_LOGPROBS = either(NULL, thing(tokens=ARRAY, token_logprobs=ARRAY, top_logprobs=ARRAY, text_offset=ARRAY))
COMPLETION = thing(
    {"usage": either(NULL, USAGE)},
    **_HEAD,
    object=const("text_completion"),
    choices={
        "type": "array",
        "items": thing(index=WHOLE, text=STRING, logprobs=LEGACY_LOGPROBS, finish_reason=either(NULL, REASON)),
    },
)


def _data(text: str) -> list[Any]:
    """The values of unnamed events; the last must be [DONE]."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "" and blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def check_chat_stream(text: str, usage: bool = False, n: int = 1) -> list[Any]:
    """The chunks of a chat completion: each choice has its role, its deltas and one finish, in this order."""
    chunks = [check(CHUNK, chunk) for chunk in _data(text)]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(("usage" in chunk) == usage for chunk in chunks)
    if usage:
        last = chunks[-1]
        assert last["choices"] == [] and last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    choices = [chunk["choices"][0] for chunk in (chunks[:-1] if usage else chunks)]
    assert {choice["index"] for choice in choices} == set(range(n))
    for index in range(n):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
        assert all("role" not in choice["delta"] for choice in own[1:])
        calls = [call for choice in own for call in choice["delta"].get("tool_calls", ())]
        opened = [call["index"] for call in calls if "id" in call]
        assert opened == list(range(len(opened)))
        assert (own[-1]["finish_reason"] == "tool_calls") == bool(opened)
        for i in opened:
            mine = [call for call in calls if call["index"] == i]
            assert "id" in mine[0] and all("id" not in call for call in mine[1:])
            assert isinstance(json.loads("".join(call["function"]["arguments"] for call in mine)), dict)
    return chunks


def check_completion_stream(text: str, choices: int = 1) -> list[Any]:
    chunks = [check(COMPLETION, chunk) for chunk in _data(text)]
    for index in range(choices):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
    return chunks


# -- OpenAI's responses

_PART = either(
    thing(type=const("output_text"), text=STRING, annotations=const([]), logprobs={"type": "array", "items": TOKEN}),
    thing(type=const("reasoning_text"), text=STRING),
)
_STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
ITEM = either(
    thing(
        id={"type": "string", "pattern": "^msg_"},
        type=const("message"),
        role=const("assistant"),
        status=_STATUS,
        content={"type": "array", "items": _PART},
    ),
    thing(
        id={"type": "string", "pattern": "^rs_"},
        type=const("reasoning"),
        status=_STATUS,
        summary=const([]),
        content={"type": "array", "items": _PART},
    ),
    thing(
        id={"type": "string", "pattern": "^fc_"},
        type=const("function_call"),
        status=_STATUS,
        call_id={"type": "string", "pattern": "^call_"},
        name=FILLED,
        arguments=STRING,
    ),
)
RESPONSE_USAGE = thing(
    input_tokens=WHOLE,
    input_tokens_details=thing(cached_tokens=WHOLE),
    output_tokens=WHOLE,
    output_tokens_details=thing(reasoning_tokens=WHOLE),
    total_tokens=WHOLE,
)
RESPONSE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^resp_"},
        "object": const("response"),
        "created_at": WHOLE,
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        "model": FILLED,
        "output": {"type": "array", "items": ITEM},
        "parallel_tool_calls": FLAG,
        "tools": ARRAY,
        "usage": either(NULL, RESPONSE_USAGE),
        "error": either(NULL, thing(code=FILLED, message=FILLED)),
        "incomplete_details": either(NULL, thing(reason=const("max_output_tokens"))),
        "text": {"type": "object", "required": ["format"]},
    },
    "required": [
        *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls", "tool_choice", "tools"),
        *("usage", "error", "incomplete_details", "text", "instructions", "metadata", "temperature", "top_p"),
    ],
}
_AT = {"output_index": WHOLE}
_IN = {**_AT, "item_id": FILLED}
_WITHIN = {**_IN, "content_index": WHOLE}
_LOGS = {"type": "array", "items": TOKEN}
RESPONSE_EVENTS: dict[str, dict[str, Any]] = {
    "response.created": {"response": RESPONSE},
    "response.in_progress": {"response": RESPONSE},
    "response.output_item.added": {**_AT, "item": ITEM},
    "response.content_part.added": {**_WITHIN, "part": _PART},
    "response.output_text.delta": {**_WITHIN, "delta": STRING, "logprobs": _LOGS},
    "response.output_text.done": {**_WITHIN, "text": STRING, "logprobs": _LOGS},
    "response.reasoning_text.delta": {**_WITHIN, "delta": FILLED},
    "response.reasoning_text.done": {**_WITHIN, "text": FILLED},
    "response.content_part.done": {**_WITHIN, "part": _PART},
    "response.function_call_arguments.delta": {**_IN, "delta": FILLED},
    "response.function_call_arguments.done": {**_IN, "name": FILLED, "arguments": FILLED},
    "response.output_item.done": {**_AT, "item": ITEM},
    "response.completed": {"response": RESPONSE},
    "response.incomplete": {"response": RESPONSE},
    "response.failed": {"response": RESPONSE},
}


def named_events(text: str) -> list[Any]:
    """Events whose name is their type."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def check_response_stream(text: str) -> list[Any]:
    """The events of a response: each item is added, filled and done before the next."""
    events = named_events(text)
    for number, event in enumerate(events):
        kind = event["type"]
        check(thing(type=const(kind), sequence_number=const(number), **RESPONSE_EVENTS[kind]), event)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
    final, done, at = events[-1]["response"], list[Any](), 2
    while at < len(events) - 1:
        item = events[at]["item"]
        call = item["type"] == "function_call"
        word = "output_text" if item["type"] == "message" else "reasoning_text"
        added, deltas, ends = (
            ([], "function_call_arguments.delta", ["function_call_arguments.done"])
            if call
            else (["content_part.added"], f"{word}.delta", [f"{word}.done", "content_part.done"])
        )
        end = kinds.index("response.output_item.done", at)
        inner = [kind.removeprefix("response.") for kind in kinds[at + 1 : end]]
        assert kinds[at] == "response.output_item.added" and item["status"] == "in_progress"
        assert inner[: len(added)] == added and inner[len(inner) - len(ends) :] == ends
        middle = inner[len(added) : len(inner) - len(ends)]
        assert middle and set(middle) == {deltas}
        assert all(event["output_index"] == len(done) for event in events[at : end + 1])
        assert all(event.get("item_id", item["id"]) == item["id"] for event in events[at : end + 1])
        whole = "".join(event["delta"] for event in events[at:end] if "delta" in event)
        last = events[end]["item"]
        assert whole == (last["arguments"] if call else last["content"][0]["text"])
        done.append(last)
        at = end + 1
    if kinds[-1] != "response.failed":
        assert final["output"] == done and final["usage"]
    return events


# -- Anthropic

MESSAGE_USAGE = thing(
    input_tokens=WHOLE, cache_creation_input_tokens=WHOLE, cache_read_input_tokens=WHOLE, output_tokens=WHOLE
)
BLOCK = either(
    thing(type=const("text"), text=STRING),
    thing(type=const("thinking"), thinking=STRING, signature=STRING),
    thing(type=const("tool_use"), id={"type": "string", "pattern": "^toolu_"}, name=FILLED, input={"type": "object"}),
)
STOP_REASON = {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}
MESSAGE = thing(
    id={"type": "string", "pattern": "^msg_"},
    type=const("message"),
    role=const("assistant"),
    model=FILLED,
    content={"type": "array", "items": BLOCK},
    stop_reason=either(NULL, STOP_REASON),
    stop_sequence=either(NULL, STRING),
    usage=MESSAGE_USAGE,
)
DELTAS = {
    "text": ["text_delta"],
    "thinking": ["thinking_delta", "signature_delta"],
    "tool_use": ["input_json_delta"],
}
MESSAGE_EVENTS: dict[str, dict[str, Any]] = {
    "message_start": {"message": MESSAGE},
    "ping": {},
    "content_block_start": {"index": WHOLE, "content_block": BLOCK},
    "content_block_delta": {
        "index": WHOLE,
        "delta": either(
            thing(type=const("text_delta"), text=FILLED),
            thing(type=const("thinking_delta"), thinking=FILLED),
            thing(type=const("signature_delta"), signature=FILLED),
            thing(type=const("input_json_delta"), partial_json=STRING),
        ),
    },
    "content_block_stop": {"index": WHOLE},
    "message_delta": {
        "delta": thing(stop_reason=STOP_REASON, stop_sequence=either(NULL, STRING)),
        "usage": MESSAGE_USAGE,
    },
    "message_stop": {},
}
ANTHROPIC_ERROR = thing(type=const("error"), error=thing(type=FILLED, message=FILLED))


def check_message_stream(text: str) -> list[Any]:
    """The events of a message: blocks one after the other, each with deltas of its own kind."""
    events = named_events(text)
    for event in events:
        check(thing(type=const(event["type"]), **MESSAGE_EVENTS[event["type"]]), event)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_delta") == kinds.count("message_stop") == 1
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and sum(start["usage"].values()) > 0
    blocks = [event for event in events[1:-2] if event["type"] != "ping"]
    index, opened = 0, None
    for event in blocks:
        assert event["index"] == index
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened = event["content_block"]
                assert not (opened.get("text") or opened.get("thinking") or opened.get("input"))
            case "content_block_delta":
                assert opened is not None and event["delta"]["type"] in DELTAS[opened["type"]]
            case "content_block_stop":
                assert opened is not None
                index, opened = index + 1, None
    assert opened is None
    return events


# -- Ollama

CALLS = {
    "type": "array",
    "minItems": 1,
    "items": thing(id=FILLED, function=thing(index=WHOLE, name=FILLED, arguments={"type": "object"})),
}
_STAMP = {"type": "string", "pattern": "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d+Z$"}
_SAID = {"thinking": FILLED, "tool_calls": CALLS}
_ENDING = {
    "done": const(True),
    "done_reason": {"enum": ["stop", "length"]},
    **dict.fromkeys(("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"), WHOLE),
    **dict.fromkeys(("prompt_eval_count", "eval_count"), WHOLE),
}
_OLLAMA_LOGS = {"type": "array", "items": TOKEN}
LINES = {
    chat: {
        ended: thing(
            {"logprobs": _OLLAMA_LOGS, **({} if chat else _SAID)},
            model=FILLED,
            created_at=_STAMP,
            **({"message": thing(_SAID, role=const("assistant"), content=STRING)} if chat else {"response": STRING}),
            **(_ENDING if ended else {"done": const(False)}),
        )
        for ended in (False, True)
    }
    for chat in (False, True)
}
OLLAMA_ERROR = thing(error=FILLED)


def check_lines(text: str, *, chat: bool) -> list[Any]:
    """The lines of Ollama: all but the last are not done."""
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    for i, line in enumerate(lines):
        check(LINES[chat][i == len(lines) - 1], line)
    return lines
