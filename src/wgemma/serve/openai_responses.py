"""OpenAI's responses, without their memory: JSON → Ask. `openai_events.py` writes the answers.

The input is a list of items in which an assistant's turn comes apart: its reasoning, its text and each of its calls are
items of their own. Here they become one message again, and outputs of calls become tool messages.
"""

from typing import Any

from wgemma.serve.ask import Ask
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.content import Media, arguments, checked_chat, checked_tools, simplest, text_or_parts, tool
from wgemma.serve.fields import Fields, model_of, sampling_of
from wgemma.serve.openai import EFFORTS, effort, read_choice, read_format, read_parts
from wgemma.serve.problems import bad

_ROLES = ("system", "developer", "user", "assistant")


def read_response(fields: Fields) -> Ask:
    for name, why in (
        ("previous_response_id", "the server keeps no responses; send the whole conversation as input."),
        ("conversation", "the server keeps no conversations; send all of it as input."),
        ("background", "leave it out."),
        ("prompt", "the server has no stored prompts; send instructions."),
    ):
        fields.refuse(name, why)
    tools = _tools(fields)
    choice, tools = read_choice(fields, tools)
    reasoning, text = fields.object("reasoning"), fields.object("text")
    form = text.object("format") if text else None
    most = fields.whole("top_logprobs", 0, BOUNDS.logprobs)
    wants_logprobs = "message.output_text.logprobs" in fields.items("include", 32)
    return Ask(
        model=model_of(fields),
        messages=_messages(fields),
        stream=fields.flag("stream"),
        max_tokens=fields.whole("max_output_tokens", 1, BOUNDS.tokens),
        sampling=sampling_of(fields),
        logprobs=(most or 0) if most is not None or wants_logprobs else None,
        tools=tools,
        tool_choice=choice,
        parallel=fields.flag("parallel_tool_calls", True),
        format=read_format(form, form) if form else None,
        shift=fields.choice("truncation", ("auto", "disabled")) == "auto",
        think=effort(reasoning.choice("effort", EFFORTS)) if reasoning else False,
    )


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """The functions; tools that only OpenAI's own servers have are skipped."""
    functions = (one for one in fields.objects("tools", BOUNDS.tools) if one.needed("type") == "function")
    return checked_tools([tool(f.needed("name"), f.text("description"), f.schema("parameters")) for f in functions])


def _messages(fields: Fields) -> list[dict[str, Any]]:
    found, media = _Turns(), Media()
    if fields.text("instructions"):
        found.add({"role": "system", "content": fields.text("instructions")})
    if isinstance(fields.any("input"), str):
        found.add({"role": "user", "content": fields.text("input")})
    else:
        for item in fields.objects("input", BOUNDS.messages):
            _item(item, found, media)
    if not fields.has("input"):
        raise bad("input is missing.", "input")
    return checked_chat(found.messages)


def _item(item: Fields, found: "_Turns", media: Media) -> None:
    kind = item.text("type") or "message"
    match kind:
        case "message":
            role = item.choice("role", _ROLES)
            if role is None:
                raise bad(f"{item.where}.role is missing.", item.where)
            content = simplest(parts) if (parts := read_parts(item, media)) else ""
            found.add({"role": "system" if role == "developer" else role, "content": content})
        case "function_call":
            values = arguments(item.any("arguments"), item.path("arguments"))
            call = {"id": item.needed("call_id"), "function": {"name": item.needed("name"), "arguments": values}}
            found.call(call)
        case "function_call_output":
            output = text_or_parts(item, "output")
            parts = read_parts(Fields({"content": item.any("output")}, item.where), media)
            content = output if isinstance(output, str) else simplest(parts) if parts else ""
            found.add({"role": "tool", "tool_call_id": item.needed("call_id"), "content": content})
        case "reasoning":
            found.think("".join(part.text("text") for part in item.objects("content", BOUNDS.messages)))
        case _:
            raise bad(f"{item.where} is of type {kind[:40]}, which is not supported.", item.where)


class _Turns:
    """Puts an assistant's items together again."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._thought = ""

    def think(self, text: str) -> None:
        self._thought += text

    def add(self, message: dict[str, Any]) -> None:
        if message["role"] == "assistant" and self._thought:
            message["thinking"] = self._thought
        if message["role"] != "system":
            self._thought = ""
        self.messages.append(message)

    def call(self, call: dict[str, Any]) -> None:
        """A call belongs to the assistant's message before it, unless a thought or a result came between."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or self._thought:
            self.add({"role": "assistant", "content": ""})
        self.messages[-1].setdefault("tool_calls", []).append(call)
