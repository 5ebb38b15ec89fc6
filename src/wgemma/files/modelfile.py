"""Reads a Modelfile, Ollama's description of a model: an instruction per line, and its value.

    FROM gemma4:e2b            a model's name, or a .gguf file; a second FROM may name the projector's
    ADAPTER ./lora.gguf
    PARAMETER temperature 0.2
    SYSTEM \"\"\"You are
    a pirate.\"\"\"
    MESSAGE user Who are you?

A value in quotes, one or three of them, may go over several lines. Prompts are rendered by wgemma itself, so a TEMPLATE
is refused.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from wgemma.checks import shown
from wgemma.errors import SettingsError, StoreError
from wgemma.files.manifests import ROLES
from wgemma.files.params import PARAMS, check_param

MAX_MODELFILE = 4 << 20
QUOTES = '"""'
KNOWN = ("FROM", "SYSTEM", "PARAMETER", "ADAPTER", "MESSAGE", "LICENSE")
OURS = "gemma4"  # what RENDERER and PARSER may name: Ollama's names for what wgemma does anyway

_LINE = re.compile(r"\s*([A-Za-z]+)(?:[ \t]+(.*))?")


@dataclass(slots=True)
class Modelfile:
    """What a Modelfile says, as it says it; `bases` and `adapters` with the numbers of their lines."""

    bases: dict[str, int] = field(default_factory=dict)
    adapters: dict[str, int] = field(default_factory=dict)
    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    licenses: list[str] = field(default_factory=list)


def parse_modelfile(data: bytes) -> Modelfile:
    """Raises `StoreError` with the number of the line that is wrong."""
    found = Modelfile()
    for number, word, value in _instructions(_text(data)):
        try:
            _apply(found, number, word, value)
        except (SettingsError, ValueError) as error:
            raise at_line(number, str(error)) from None
    if not found.bases:
        raise StoreError("the Modelfile has no FROM, which names the model to build upon.", "bad_recipe")
    return found


def _text(data: bytes) -> str:
    if data.startswith(b"GGUF"):
        raise StoreError("this is a GGUF file, no Modelfile. Write one that names it: FROM ./NAME.gguf", "bad_recipe")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise at_line(data.count(b"\n", 0, error.start) + 1, "this is not UTF-8. Save the file as UTF-8.") from None
    return re.sub("\r\n?", "\n", text.removeprefix("\ufeff"))


def at_line(number: int, reason: str) -> StoreError:
    return StoreError(f"line {number} of the Modelfile: {reason}", "bad_recipe")


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """(line number, instruction, value) of each."""
    lines, found, at = text.split("\n"), [], 0
    last = {quotes: _last(lines, quotes) for quotes in (QUOTES, '"')}
    while at < len(lines):
        number, line = at + 1, lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise at_line(number, f"{shown(line.strip())} is no instruction.")
        word, value = matched[1].upper(), (matched[2] or "").strip()
        argument = ["", *value.split(None, 1)][-1] if word in ("MESSAGE", "PARAMETER") else value
        quotes = next((quotes for quotes in (QUOTES, '"') if argument.startswith(quotes)), None)
        if quotes is not None and not argument[len(quotes) :].endswith(quotes):
            if at <= last[quotes]:
                end = next(i for i in range(at, len(lines)) if lines[i].rstrip().endswith(quotes))
                value = "\n".join([value, *lines[at:end], lines[end].rstrip()])
                at = end + 1
            elif quotes == QUOTES:
                raise at_line(number, 'the text after """ has no end.')
        found.append((number, word, value))
    return found


def _last(lines: Sequence[str], quotes: str) -> int:
    """The last line that ends with these quotes; −1 if there is none."""
    return next((i for i in reversed(range(len(lines))) if lines[i].rstrip().endswith(quotes)), -1)


def _unquoted(value: str) -> str:
    for quotes in (QUOTES, '"'):
        if len(value) >= 2 * len(quotes) and value.startswith(quotes) and value.endswith(quotes):
            return value[len(quotes) : -len(quotes)]
    return value


def _apply(found: Modelfile, number: int, word: str, value: str) -> None:
    """Adds one instruction; raises `ValueError` or `SettingsError` with what is wrong with it."""
    if not value:
        raise ValueError(f"{word} has no value.")
    first, rest = [*value.split(None, 1), ""][:2]
    text = _unquoted(value)
    match word:
        case "FROM":
            found.bases.setdefault(_named(word, text), number)
        case "ADAPTER":
            found.adapters.setdefault(_named(word, text), number)
        case "SYSTEM":
            found.system = text
        case "LICENSE":
            found.licenses.append(text)
        case "PARAMETER":
            if not rest:
                raise ValueError(f"PARAMETER {first:.80} has no value.")
            _set_parameter(found.parameters, first.lower(), _unquoted(rest))
        case "MESSAGE":
            role = first.lower()
            if role not in ROLES:
                raise ValueError(f"the role {shown(first)} must be {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
            if not rest:
                raise ValueError(f"MESSAGE {role} has no text.")
            found.messages.append({"role": role, "content": _unquoted(rest)})
        case "RENDERER" | "PARSER" if text == OURS:
            pass
        case "REQUIRES":
            pass  # a version of Ollama's
        case "TEMPLATE" if is_no_template(text):
            pass
        case "TEMPLATE":
            raise ValueError("wgemma renders Gemma's prompts itself and runs no templates. Remove the TEMPLATE.")
        case "RENDERER" | "PARSER":
            raise ValueError(f"{word} {shown(text)} is not supported: it must be {OURS}.")
        case _:
            near = get_close_matches(word, KNOWN, n=1, cutoff=0.7)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(KNOWN[:-1])} and {KNOWN[-1]}."
            raise ValueError(f"{word:.40} is not supported. {hint}")


def _named(word: str, text: str) -> str:
    if not text:
        raise ValueError(f"{word} names nothing.")
    return text


def is_no_template(text: str) -> bool:
    """Whether this is what Ollama writes for models whose prompts it renders by code."""
    return "".join(text.split()) == "{{.Prompt}}"


def _set_parameter(parameters: dict[str, Any], key: str, text: str) -> None:
    value: Any = text
    match PARAMS.get(key):
        case "a list of strings":
            value = [text]
        case "true or false":
            value = {"true": True, "false": False}.get(text.lower(), text)
        case "a whole number" if re.fullmatch(r"[+-]?[0-9]{1,40}", text):
            value = int(text)
        case "a number" if "_" not in text:  # as in 1_000, which only Python takes
            with suppress(ValueError):
                value = float(text)
    check_param(key, value)
    if isinstance(value, list):
        parameters.setdefault(key, []).extend(value)
    else:
        parameters[key] = value
