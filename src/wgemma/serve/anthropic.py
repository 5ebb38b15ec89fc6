"""Anthropic's messages: JSON → Ask. `anthropic_events.py` writes the answers.

A user's message may hold the results of tools beside text; here they become tool messages, right after the calls. The
thoughts of earlier turns come back as blocks, and the model sees those that it should.
"""

import re
from typing import Any

from wgemma.serve.ask import Ask
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

# A line that Claude Code changes with every request; with it no prompt would begin like the one before.
_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def read_message(fields: Fields) -> Ask:
    if not fields.has("max_tokens"):
        raise bad("max_tokens is missing.", "max_tokens")
    ask = read_prompt(fields)
    sampling = sampling_of(fields)
    return Ask(
        model=ask.model,
        messages=ask.messages,
        tools=ask.tools,
        think=ask.think,
        thinking_budget=_budget(fields),
        stream=fields.flag("stream"),
        max_tokens=fields.whole("max_tokens", 1, BOUNDS.tokens),
        stop=fields.stops("stop_sequences"),
        sampling={key: sampling[key] for key in ("temperature", "top_k", "top_p", "min_p", "seed") if key in sampling},
        tool_choice=_choice(fields, ask.tools),
        parallel=_parallel(fields),
        format=_format(fields),
        shift=False,
    )


def read_prompt(fields: Fields) -> Ask:
    """What of a request makes up its prompt: enough to count its tokens."""
    fields.refuse("mcp_servers", "the server calls no tools itself.")
    fields.refuse("container", "the server runs no code.")
    return Ask(
        model=model_of(fields), messages=_messages(fields), tools=_tools(fields), think=_thinks(fields), shift=False
    )


def _thinks(fields: Fields) -> bool | str:
    thinking = fields.object("thinking")
    kind = thinking.choice("type", ("enabled", "adaptive", "disabled")) if thinking else None
    if kind == "adaptive":
        config = fields.object("output_config")
        level = config.choice("effort", _EFFORTS) if config else None
        return level if level in ("low", "medium", "high") else True
    return kind == "enabled"


def _budget(fields: Fields) -> int | None:
    thinking = fields.object("thinking")
    return thinking.whole("budget_tokens", 0, BOUNDS.tokens) if thinking else None


def _format(fields: Fields) -> Any:
    config = fields.object("output_config")
    given = (config.object("format") if config else None) or fields.object("output_format")
    if given is None:
        return None
    given.choice("type", ("json_schema",))
    schema = given.schema("schema")
    if schema is None:
        raise bad(f"{given.where} has no schema.", given.where)
    return schema


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """The caller's own tools; those that only Anthropic's servers have are skipped."""
    own = (one for one in fields.objects("tools", BOUNDS.tools) if one.text("type", "custom") == "custom")
    return checked_tools([tool(t.needed("name"), t.text("description"), t.schema("input_schema")) for t in own])


def _choice(fields: Fields, tools: Any) -> str:
    given = fields.object("tool_choice")
    if given is None:
        return "auto"
    kind = given.choice("type", ("auto", "any", "tool", "none"))
    wanted = {"any": "required", "none": "none"}.get(kind or "auto", "auto")
    return checked_choice(given.needed("name") if kind == "tool" else wanted, tools)


def _parallel(fields: Fields) -> bool:
    given = fields.object("tool_choice")
    return not (given and given.flag("disable_parallel_tool_use"))


# -- messages


def _messages(fields: Fields) -> list[dict[str, Any]]:
    media = Media()
    found: list[dict[str, Any]] = []
    system = _system(fields)
    if system:
        found.append({"role": "system", "content": system})
    for given in fields.objects("messages", BOUNDS.messages):
        role = given.choice("role", ("user", "assistant", "system"))
        if role == "assistant":
            found.append(_said(given))
        elif role == "system":
            found.append({"role": "system", "content": _plain(given, "content")})
        elif role == "user":
            found += _asked(given, media)
        else:
            raise bad(f"{given.where}.role is missing.", given.where)
    return checked_chat(found)


def _system(fields: Fields) -> str:
    return _BILLING.sub("", _plain(fields, "system")).strip()


def _plain(fields: Fields, name: str) -> str:
    """Text, or blocks of it."""
    given = text_or_parts(fields, name)
    if isinstance(given, str):
        return given
    for block in given:
        block.choice("type", ("text",))
    return "\n".join(block.text("text") for block in given)


def _asked(given: Fields, media: Media) -> list[dict[str, Any]]:
    """A user's message: first the results of tools, then what the user says."""
    content = text_or_parts(given, "content")
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results = [_result(block, media) for block in content if block.text("type") == "tool_result"]
    said = [_block(block, media) for block in content if block.text("type") != "tool_result"]
    return [*results, {"role": "user", "content": simplest(said)}] if said or not results else results


def _result(block: Fields, media: Media) -> dict[str, Any]:
    content = text_or_parts(block, "content")
    told = content if isinstance(content, str) else simplest([_block(part, media) for part in content])
    if block.flag("is_error"):
        told = f"Error: {told}" if isinstance(told, str) else [{"type": "text", "text": "Error:"}, *told]
    return {"role": "tool", "tool_call_id": block.needed("tool_use_id"), "content": told}


def _block(block: Fields, media: Media) -> dict[str, Any]:
    kind = block.needed("type")
    source = block.object("source")
    if kind == "text":
        return {"type": "text", "text": block.text("text")}
    if kind == "image" and source is not None:
        if source.choice("type", ("base64", "url", "file")) != "base64":
            raise bad(f"{source.where} must be base64; the server fetches nothing from elsewhere.", source.where)
        return media.picture(source.any("data"), source.path("data"))
    if kind == "document" and source is not None and source.text("type") == "text":
        return {"type": "text", "text": source.text("data")}
    raise bad(f"{block.where} is of type {kind[:40]}; text and images in base64 are supported.", block.where)


def _said(given: Fields) -> dict[str, Any]:
    """An assistant's message."""
    content = text_or_parts(given, "content")
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for block in content:
        match block.needed("type"):
            case "text":
                message["content"] += block.text("text")
            case "thinking":
                message["thinking"] = message.get("thinking", "") + block.text("thinking")
            case "redacted_thinking":
                pass
            case "tool_use":
                values = arguments(block.any("input"), block.path("input"))
                call = {"id": block.needed("id"), "function": {"name": block.needed("name"), "arguments": values}}
                message.setdefault("tool_calls", []).append(call)
            case kind:
                raise bad(f"{block.where} is of type {kind[:40]}, which is not supported.", block.where)
    return message


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error(problem: Problem) -> dict[str, Any]:
    kind = _KINDS.get(problem.status) or ("invalid_request_error" if problem.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}
