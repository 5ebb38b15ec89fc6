"""Reads the fields of a JSON object that came over the network. Whatever is wrong is a `Problem` that names the field;
null counts as not there."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from wgemma.checks import shown
from wgemma.files.json_text import parse_json
from wgemma.ranges import NUMBERS, WHOLE
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.problems import Problem, bad

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(body: bytes) -> "Fields":
    """The object in a request's body. Halves of surrogate pairs, which no text may hold, become U+FFFD."""
    if not body.strip():
        raise bad("The body is missing; it must be a JSON object.")
    if sum(map(body.count, (b",", b"[", b"{"))) > BOUNDS.values:
        raise Problem(413, f"The body has more than {BOUNDS.values} values.", code="request_too_large")
    try:
        value = parse_json(body)
    except ValueError as error:
        raise bad(f"The body is {error}.") from None
    if not isinstance(value, dict):
        raise bad("The body must be a JSON object.")
    return Fields(_mended(value) if b"\\u" in body else value)


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value


class Fields:
    """A JSON object, `where` in the request it stands."""

    def __init__(self, value: dict[str, Any], where: str = "") -> None:
        self.raw = value
        self.where = where

    def path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def any(self, name: str) -> Any:
        return self.raw.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def needed(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if not value:
            raise bad(f"{self.path(name)} is missing.", self.path(name))
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def whole(self, name: str, least: int, most: int) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        fine = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not fine or value % 1:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        value = self.raw.get(name)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def items(self, name: str, most: int) -> list[Any]:
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        if len(value) > most:
            raise bad(f"{self.path(name)} has {len(value)} items; the limit is {most}.", self.path(name))
        return value

    def objects(self, name: str, most: int) -> "Iterator[Fields]":
        for i, item in enumerate(self.items(name, most)):
            where = f"{self.path(name)}[{i}]"
            if not isinstance(item, dict):
                raise bad(f"{where} must be an object.", where)
            yield Fields(item, where)

    def object(self, name: str) -> "Fields | None":
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, self.path(name))

    def schema(self, name: str) -> dict[str, Any] | None:
        """A JSON schema of a bearable size."""
        found = self.object(name)
        if found is not None and len(json.dumps(found.raw)) > BOUNDS.schema:
            raise bad(f"{found.where} is larger than {BOUNDS.schema >> 10} KiB.", found.where)
        return None if found is None else found.raw

    def stops(self, name: str) -> list[str]:
        """A string, or several."""
        value = self.raw.get(name)
        found = [value] if isinstance(value, str) else self.items(name, BOUNDS.stops)
        if not all(isinstance(text, str) and len(text) <= 1000 for text in found):
            raise self.wrong(name, "a string or a list of short strings")
        return [text for text in found if text]

    def refuse(self, name: str, why: str) -> None:
        """Refuses a field that asks for what the server does not do; an empty one asks for nothing."""
        if self.raw.get(name) not in (None, False, "", [], {}, 0):
            raise bad(f"{self.path(name)} is not supported: {why}", self.path(name))

    def wrong(self, name: str, wanted: str) -> Exception:
        return bad(f"{self.path(name)} is {shown(self.raw.get(name))}; it must be {wanted}.", self.path(name))


def model_of(fields: Fields) -> str:
    name = fields.needed("model")
    if len(name) > BOUNDS.name:
        raise bad(f"model has {len(name)} characters; the limit is {BOUNDS.name}.", "model")
    return name


def named(fields: Fields) -> str:
    """The model that one of Ollama's requests is about: older clients call the field `name`."""
    return fields.text("model") or fields.text("name") or fields.needed("model")


def sampling_of(fields: Fields) -> dict[str, Any]:
    """The settings that all APIs spell alike."""
    found: dict[str, Any] = {name: fields.number(name, *NUMBERS[name]) for name in NUMBERS}
    found |= {name: fields.whole(name, *WHOLE[name]) for name in ("repeat_last_n", "seed")}
    found["top_k"] = fields.whole("top_k", -1, WHOLE["top_k"][1])
    if found["top_k"] is not None:
        found["top_k"] = max(found["top_k"], 0)
    return {name: value for name, value in found.items() if value is not None}
