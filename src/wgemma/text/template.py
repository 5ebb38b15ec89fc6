"""Messages and tools → the exact prompt the model was trained on.

prompt = <bos> [<|turn>system\\n [<|think|>\\n] text {<|tool>declaration<tool|>} <turn|>\\n] {turn} [opening]
turn   = <|turn>ROLE\\n {[thought] {call} {response} content} <turn|>\\n
call   = <|tool_call>call:NAME{key:value,…}<tool_call|>
response = <|tool_response>response:NAME{value:"…"}<tool_response|> {placeholder}

Consecutive assistant messages share one turn, and tool messages belong to the assistant message before them. A turn
that ends in tool calls or their results stays open for the model to continue. This module knows nothing of token ids.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wgemma.checks import checked, kind_of, shown
from wgemma.errors import TemplateError
from wgemma.text.arguments import ToolCall
from wgemma.text.declaration import write_declaration
from wgemma.text.segments import Segment, Writer, write_entries, write_value

__all__ = ["Segment", "awaits_tools", "lesson", "opens_in_thought", "render", "segments"]

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "model",
    "model": "model",
    "tool": "tool",
}
_PLACEHOLDERS = {
    "image": "<|image|>",
    "image_url": "<|image|>",
    "audio": "<|audio|>",
    "input_audio": "<|audio|>",
    "video": "<|video|>",
}
# What a message may say, and the types it may say it in.
_KEYS = (
    "content",
    "images",
    "name",
    "reasoning",
    "reasoning_content",
    "thinking",
    "tool_call_id",
    "tool_calls",
    "tool_name",
)
_TYPES = (str, int, float, list, dict, type(None))
_OPEN_THOUGHT = "<|channel>thought\n"
_CLOSE_THOUGHT = "<channel|>"


@dataclass
class _Entry:
    """A message, the role of its turn, and the tool messages that answer it."""

    index: int
    role: str
    message: dict[str, Any]
    results: list["_Entry"] = field(default_factory=list)

    @property
    def calls(self) -> Any:
        return self.message.get("tool_calls")


@checked
def render(
    messages: Sequence[Any],
    *,
    tools: Sequence[Any] | None = None,
    think: bool = False,
    size: Literal["small", "large"] = "small",
    open_reply: bool = True,
) -> str:
    """The prompt as one string, for reading and comparing; to compute it, pass the messages to `Model.chat`.

    Options:
        tools, think: as in `Model.chat`.
        size: "small" for E2B and E4B, "large" for 12B, 26B and 31B.
        open_reply: ends with the beginning of the reply, or with a last assistant message left open to be continued.
    """
    pieces = segments(messages, tools=tools, think=think, size=size, open_reply=open_reply)
    return "".join(piece.text for piece in pieces)


def segments(
    messages: Sequence[Any],
    *,
    tools: Sequence[Any] | None = None,
    think: bool = False,
    size: Literal["small", "large"] = "small",
    open_reply: bool = True,
) -> list[Segment]:
    """The prompt as segments; earlier replies are `own`. With `open_reply`, a last assistant message without tool calls
    begins the reply."""
    entries = _entries(_sequence(messages, "messages"))
    out, turns = _begin(entries, tools, think=think, size=size)
    last_user = _last_user(turns)
    continued = turns[-1] if open_reply and turns and turns[-1].role == "model" and not turns[-1].calls else None
    for i, entry in enumerate(turns):
        before, after = _neighbours(turns, i)
        hushed = entry is continued and size == "large" and not think and not _thought(entry)
        own, stays_open = entry.role == "model", entry is continued
        _write_turn(
            out, entry, before, after, recent=entry.index > last_user, own=own, hushed=hushed, stays_open=stays_open
        )
    if open_reply and not continued:
        _open_reply(out, turns[-1] if turns else None, think=think, size=size)
    return out.segments()


def lesson(
    messages: Sequence[Any],
    *,
    tools: Sequence[Any] | None = None,
    size: Literal["small", "large"] = "small",
    first: int = 0,
) -> list[Segment]:
    """A conversation to train on. Replies from messages[first] on are `own`: thoughts, calls, text, and the token that
    ends them. If the last reply thinks, the prompt asks for thinking; if a large model's does not, it starts with an
    empty thought, like any answer without thinking."""
    entries = _entries(_sequence(messages, "messages"))
    last_user = _last_user(entries)
    think = any(entry.index > last_user and _thought(entry) for entry in entries)
    out, turns = _begin(entries, tools, think=think, size=size)
    for i, entry in enumerate(turns):
        before, after = _neighbours(turns, i)
        hushed = size == "large" and not think and after is None and not entry.results
        own = entry.role == "model" and entry.index >= first
        _write_turn(out, entry, before, after, recent=entry.index > last_user, own=own, hushed=hushed)
    return out.segments()


def _begin(
    entries: list[_Entry], tools: Sequence[Any] | None, *, think: bool, size: str
) -> tuple[Writer, list[_Entry]]:
    """The prompt up to and including the system turn, and the remaining turns."""
    if not isinstance(size, str) or size not in ("small", "large"):
        raise TemplateError(f'there is no template size {shown(size)}. Use "small" (E2B, E4B) or "large" (12B and up).')
    out = Writer()
    declared = [] if tools is None else _sequence(tools, "tools")
    out.mark("<bos>")
    system = entries[0] if entries and entries[0].role in ("system", "developer") else None
    if system or declared or think:
        _write_system(out, system, declared, think=think)
    return out, entries[1:] if system else entries


def _last_user(turns: list[_Entry]) -> int:
    return max((entry.index for entry in turns if entry.role == "user"), default=-1)


def _neighbours(turns: list[_Entry], i: int) -> tuple[str | None, str | None]:
    """The roles before and after a turn."""
    return turns[i - 1].role if i else None, turns[i + 1].role if i + 1 < len(turns) else None


def opens_in_thought(pieces: Sequence[Segment]) -> bool:
    """Whether the prompt ends inside an open thought, so the reply starts as thinking."""
    return bool(pieces) and pieces[-1].trusted and pieces[-1].text.endswith(_OPEN_THOUGHT)


def awaits_tools(pieces: Sequence[Segment]) -> bool:
    """Whether the prompt ends in calls without results, so that the model would make these up."""
    return bool(pieces) and pieces[-1].trusted and pieces[-1].text.endswith("<|tool_response>")


def _sequence(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        sample = {"messages": '[{"role": "user", "content": "Hello"}]'}.get(name, "[{…}, …]")
        raise TemplateError(f"{name} must be a list such as {sample}, not {shown(value)}.")
    return list(value)


def _entries(messages: list[Any]) -> list[_Entry]:
    entries: list[_Entry] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise TemplateError(f'messages[{index}] must be an object such as {{"role": "user", "content": "Hello"}}.')
        name = message.get("role")
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            told = f"the role {name[:40]!r}" if isinstance(name, str) else "no role"
            raise TemplateError(f"messages[{index}] has {told}; use system, user, assistant or tool.")
        for key in _KEYS:
            if not isinstance(message.get(key), _TYPES):
                told = f"{kind_of(message[key])} as its {key}"
                raise TemplateError(f"messages[{index}] has {told}; use strings, numbers, lists and dicts.")
        entry = _Entry(index, role, message)
        if entry.calls and role != "model":
            raise TemplateError(
                f'messages[{index}] has tool_calls; only messages with role "assistant" can call tools.'
            )
        if role != "tool":
            entries.append(entry)
        elif entries and entries[-1].calls:
            entries[-1].results.append(entry)
        else:
            raise TemplateError(
                f"messages[{index}] is a tool result, but the message before it calls no tool; "
                "put it right after the assistant message with its tool_calls."
            )
    return entries


def _write_system(out: Writer, system: _Entry | None, tools: list[Any], *, think: bool) -> None:
    out.mark("<|turn>system\n")
    if think:
        out.mark("<|think|>\n")
    if system:
        out.where = f"messages[{system.index}]"
        if system.message.get("images"):
            raise out.error("is a system message with images; put them in a user message")
        content = system.message.get("content")
        if isinstance(content, list):
            out.write("".join(_system_part(out, part) + " " for part in content))
        else:
            out.write(_text(out, content).strip())
    for index, tool in enumerate(tools):
        out.where = f"tools[{index}]"
        out.mark("<|tool>")
        write_declaration(out, tool)
        out.mark("<tool|>")
    out.mark("<turn|>\n")


def _system_part(out: Writer, part: Any) -> str:
    if _part_type(out, part) != "text":
        raise out.error("is a system message with a picture or sound; put it in a user message")
    return _text(out, part.get("text")).strip()


def _write_turn(
    out: Writer,
    entry: _Entry,
    before: str | None,
    after: str | None,
    *,
    recent: bool,
    own: bool,
    hushed: bool = False,
    stays_open: bool = False,
) -> None:
    """Writes one message with its calls and results. `recent`: no user message follows, so its thinking is kept;
    `hushed`: the model's turn opens with an empty thought; `stays_open`: its turn does not end."""
    out.where = f"messages[{entry.index}]"
    if not (entry.role == "model" and before == "model"):
        out.mark(f"<|turn>{entry.role}\n")
        if entry.role == "model" and hushed:
            out.mark(_OPEN_THOUGHT + _CLOSE_THOUGHT)
    out.own = own
    if recent:
        _write_thought(out, entry)
    names = _write_calls(out, entry.calls) if entry.calls else {}
    for position, result in enumerate(entry.results):
        out.mark("<|tool_response>")  # the first one ends the model's own text
        out.own = False
        _write_result(out, result, names, position)
    out.where = f"messages[{entry.index}]"
    out.own = own
    spoke = _write_content(out, entry)
    if entry.calls and not entry.results:
        out.mark("<|tool_response>")
    elif not (stays_open or (entry.role == "model" and after == "model")) and (spoke or after or not entry.results):
        out.mark("<turn|>")
        out.own = False
        out.mark("\n")
    out.own = False


def _open_reply(out: Writer, last: _Entry | None, *, think: bool, size: str) -> None:
    if last is None or not last.calls:
        out.mark("<|turn>model\n")
        if size == "large" and not think:
            out.mark(_OPEN_THOUGHT + _CLOSE_THOUGHT)
    elif last.results and think:
        out.mark(_OPEN_THOUGHT)


def _thought(entry: _Entry) -> tuple[str, Any] | None:
    """An assistant message's thinking, and its key."""
    keys = ("thinking", "reasoning", "reasoning_content") if entry.role == "model" else ()
    return next(((key, entry.message[key]) for key in keys if entry.message.get(key)), None)


def _write_thought(out: Writer, entry: _Entry) -> None:
    found = _thought(entry)
    if found:
        key, text = found
        out.mark(_OPEN_THOUGHT)
        out.write(_text(out, text, key))
        out.mark("\n" + _CLOSE_THOUGHT)


def _write_calls(out: Writer, calls: Any) -> dict[str | int, str]:
    """Writes the calls; returns their function names by call id and by position."""
    if not isinstance(calls, list):
        raise out.error("has tool_calls that are not a list")
    names: dict[str | int, str] = {}
    for position, call in enumerate(calls):
        out.mark("<|tool_call>")
        if isinstance(call, ToolCall):
            names[position] = call.name or "unknown"
            _write_own_call(out, call)
        else:
            function = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(function, dict) or not isinstance(name, str) or not name:
                raise out.error('has a tool call without a name; write {"function": {"name": …, "arguments": {…}}}')
            names[position] = name
            if isinstance(call.get("id"), str):
                names[call["id"]] = name
            _write_call(out, name, _arguments(out, function.get("arguments")))
        out.mark("<tool_call|>")
    return names


def _write_own_call(out: Writer, call: ToolCall) -> None:
    """A call as an answer had it; one that could not be read is repeated as the model wrote it."""
    if call.error is None:
        _write_call(out, call.name, call.arguments)
    else:
        out.write(call.raw)


def _write_call(out: Writer, name: str, arguments: dict[str, Any]) -> None:
    out.mark("call:")
    out.write(name)
    out.mark("{")
    write_entries(out, arguments, quote_keys=False, depth=1)
    out.mark("}")


def _arguments(out: Writer, arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments.strip() or "{}")
        except (ValueError, RecursionError):
            raise out.error('has tool call arguments that are not JSON; write {"city": "Paris"}') from None
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise out.error('has tool call arguments that are not an object; write {"city": "Paris"}')
    return arguments


def _write_result(out: Writer, result: _Entry, names: dict[str | int, str], position: int) -> None:
    out.where = f"messages[{result.index}]"
    out.mark("response:")
    out.write(_result_name(out, result.message, names, position))
    out.mark("{")
    content = result.message.get("content")
    parts = content if isinstance(content, list) else []
    if isinstance(content, dict):
        write_entries(out, content, quote_keys=False, depth=1)
    else:
        out.mark("value:")
        if isinstance(content, list):
            content = "".join(_text(out, part.get("text")) for part in parts if _part_type(out, part) == "text")
        write_value(out, content, quote_keys=False)
    out.mark("}<tool_response|>")
    for part in _images(out, result.message) + parts:
        if part["type"] != "text":
            out.place(_PLACEHOLDERS[part["type"]], part)


def _result_name(out: Writer, message: dict[str, Any], names: dict[str | int, str], position: int) -> str:
    """The tool's name: by call id, else as the message says, else, if it says neither, by position."""
    call_id = message.get("tool_call_id")
    if isinstance(call_id, str) and call_id in names:
        return names[call_id]
    name = message.get("name") or message.get("tool_name")
    if name:
        return _text(out, name, "name")
    return names.get(position, "unknown") if call_id is None else "unknown"


def _write_content(out: Writer, entry: _Entry) -> bool:
    """Writes the message's text and media in order; returns whether there was anything but white space."""
    clean = _without_thoughts if entry.role == "model" else str.strip
    content = entry.message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    spoke = False
    for part in _images(out, entry.message) + parts:
        kind = _part_type(out, part)
        if kind == "text":
            text = clean(_text(out, part.get("text")))
            out.write(text)
            spoke = spoke or bool(text)
        else:
            out.place(_PLACEHOLDERS[kind], part)
            spoke = True
    return spoke


def _without_thoughts(text: str) -> str:
    """Drops text between `<|channel>` and `<channel|>`: old thinking does not stay in the history."""
    pieces = text.split(_CLOSE_THOUGHT)
    return "".join(piece.split("<|channel>", 1)[0] for piece in pieces).strip()


def _images(out: Writer, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Ollama's `images` field as parts."""
    images = message.get("images")
    if images is None:
        return []
    if not isinstance(images, list):
        raise out.error('has "images" that are not a list')
    return [{"type": "image", "image": image} for image in images]


def _part_type(out: Writer, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or (kind != "text" and kind not in _PLACEHOLDERS):
        raise out.error('has a content part of unknown type; write {"type": "text", "text": …} or type image or audio')
    return kind


def _text(out: Writer, value: Any, key: str = "content") -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise out.error(f"has {kind_of(value)} as its {key}; write a string")
    return value
