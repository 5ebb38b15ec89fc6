"""A chat: its settings, its messages, and the file they can be saved to. Knows no terminal."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from wgemma.checks import shown
from wgemma.cli.chat_answer import Answer
from wgemma.cli.chat_media import Content, packed, unpacked
from wgemma.engine.sampling import Sampling
from wgemma.engine.thinking import LEVELS
from wgemma.errors import SessionError, SettingsError
from wgemma.text.template import render

FORMAT, VERSION = "wgemma chat", 1
MAX_FILE = 64 << 20
NO_TOOLS = "There are no tools in this chat."

# All parameters, in the order they are shown.
PARAMETERS: dict[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repeat_penalty": float,
    "repeat_last_n": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
    "thinking_budget": int,
    "stop": list,
}
THINK: dict[str, bool | str] = {"false": False, "true": True, **{level: level for level in LEVELS}}
OLLAMA_NAMES = {"num_predict": "max_tokens"}
RANGES = {"max_tokens": (1, 1 << 31), "thinking_budget": (0, 1 << 31)}


@dataclass
class ChatSettings:
    """`values` holds what the user has set; the model's own settings apply to the rest."""

    values: dict[str, Any] = field(default_factory=dict)
    think: bool | str = False  # or a level of engine/thinking.py
    hide_thinking: bool = False
    verbose: bool = False
    shift: bool = True  # whether old messages are dropped once the context is full
    format: Any = None  # what answers must look like: a JSON schema, or "json"

    def put(self, name: str, value: Any) -> str:
        """Sets a parameter from text or a value; raises `SettingsError` if invalid. Returns its canonical name."""
        name = OLLAMA_NAMES.get(name, name)
        if name in ("context", "num_ctx"):
            raise SettingsError("the context is fixed when the model is loaded; restart with --context N.")
        if name not in PARAMETERS:
            near = get_close_matches(name, PARAMETERS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(PARAMETERS)}."
            raise SettingsError(f"there is no parameter {name!r:.80}. {hint}")
        self.values[name] = _texts(name, value) if name == "stop" else _number(name, value)
        return name

    def put_think(self, level: str) -> None:
        """Sets `think` from text."""
        if level not in THINK:
            raise SettingsError(f"think is {shown(level)}; it must be one of {', '.join(THINK)}.")
        self.think = THINK[level]

    def options(self) -> dict[str, Any]:
        """The options for `Model.chat`."""
        format = {} if self.format is None else {"format": self.format}
        return {"think": self.think, "shift": self.shift, **format, **self.values}

    def effective(self, own: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
        """Every parameter's value and where it comes from: set here, the model's own, or the default."""
        names = {ours: theirs for theirs, ours in OLLAMA_NAMES.items()}
        found = {}
        for name in PARAMETERS:
            if name in self.values:
                found[name] = self.values[name], "set"
            elif (theirs := names.get(name, name)) in own:
                found[name] = own[theirs], "model"
            else:
                found[name] = getattr(Sampling(), name, None), "default"
        return found


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            raise SettingsError(f"{name} has an unclosed quotation mark.") from None
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise SettingsError(f"{name} must be one or more strings.")
    return value


def _number(name: str, value: Any) -> Any:
    kind = PARAMETERS[name]
    try:
        number: Any = kind(str(value))
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise SettingsError(f"{name} is {shown(value)}; it must be {whole}.") from None
    if name in Sampling.__dataclass_fields__:
        Sampling(**{name: number})  # checks its own ranges
    least, most = RANGES.get(name, (number, number))
    if not least <= number <= most:
        raise SettingsError(f"{name} is {shown(number)}; it must be a number from {least} to {most}.")
    return number


class Conversation:
    """Messages in order, without those that a stored model begins every chat with. While `system` is None, the model's
    own system prompt applies."""

    def __init__(self, settings: ChatSettings, system: str | None = None):
        self.settings = settings
        self.system = system
        self.messages: list[dict[str, Any]] = []

    def asking(self, question: Content) -> list[dict[str, Any]]:
        """The messages to send when `question` comes next."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages, {"role": "user", "content": question}]

    def keep(self, question: Content, reply: Answer) -> None:
        """Adds the question and its answer, however far it got; a question without any answer is dropped."""
        if not reply.kept:
            return
        answer: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.thinking:
            answer["thinking"] = reply.thinking
        calls = [call for call in reply.tool_calls if call.error is None]
        if calls:
            answer["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in calls]
        self.messages += [{"role": "user", "content": question}, answer]
        self.messages += [{"role": "tool", "name": call.name, "content": NO_TOOLS} for call in calls]

    def clear(self) -> None:
        """Forgets the messages; the system prompt and the settings stay."""
        self.messages.clear()

    # -- in a file

    def save(self, path: Path, model: str) -> None:
        """Writes the chat to a file. An existing file is replaced only if it is a saved chat, too."""
        settings = {"think": self.settings.think, "parameters": self.settings.values}
        head = {"format": FORMAT, "version": VERSION, "model": model, "system": self.system, "settings": settings}
        text = json.dumps({**head, "messages": packed(self.messages)}, indent=1)
        try:
            if path.exists() and (not path.is_file() or _read(path).get("format") != FORMAT):
                raise SessionError(f"{path} already exists and is not a saved chat. Choose another name.")
            draft = path.with_name(path.name + ".new")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        except (OSError, ValueError) as error:
            raise SessionError(f"{path} cannot be written: {getattr(error, 'strerror', error)}.") from None

    def load(self, path: Path) -> str:
        """Reads messages, system prompt and settings from a file; returns the model it was saved with."""
        found = _read(path)
        if found.get("format") != FORMAT:
            raise SessionError(f"{path} is not a saved chat. `/save FILE` writes one.")
        if found.get("version") != VERSION:
            raise SessionError(f"{path} has version {found.get('version')!r:.20}; this wgemma reads version {VERSION}.")
        messages, system, settings = found.get("messages"), found.get("system"), found.get("settings")
        if not isinstance(system, str | None) or not isinstance(settings, dict) or not isinstance(messages, list):
            raise SessionError(f"{path} is damaged: its messages, system prompt or settings have the wrong type.")
        render(messages)  # rejects what could not be sent
        messages = unpacked(messages)
        fresh = ChatSettings()
        fresh.put_think(str(settings.get("think", False)).lower())
        parameters = settings.get("parameters")
        for name, value in parameters.items() if isinstance(parameters, dict) else ():
            fresh.put(name, value)
        self.settings.values, self.settings.think = fresh.values, fresh.think
        self.messages, self.system = messages, system
        return str(found.get("model"))


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file holds anything else."""
    try:
        if not path.is_file():
            raise SessionError(f"{path}: no such file.")
        if path.stat().st_size > MAX_FILE:
            return {}
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
