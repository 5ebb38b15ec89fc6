"""A prompt as segments that know who wrote them.

Text from a user, a tool or a schema must never turn into control tokens, however it is spelled. So the template
produces segments: special tokens are recognised in trusted ones; in all others they are plain text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgemma.checks import kind_of
from wgemma.errors import TemplateError

QUOTE = '<|"|>'
MAX_DEPTH = 64


@dataclass(frozen=True)
class Segment:
    text: str
    trusted: bool
    media: Mapping[str, Any] | None = None  # the message part whose image or sound goes here
    own: bool = False  # written by the model; in training, what it should learn to write


class Writer:
    """Collects segments. `where` names the current message or tool in errors; `own` marks text by the
    model."""

    def __init__(self) -> None:
        self.where = ""
        self.own = False
        self._segments: list[Segment] = []
        self._run: list[str] = []
        self._kind = (True, False)  # of the run: trusted, own

    def mark(self, markup: str) -> None:
        """Writes the template's own markup."""
        self._append(markup, trusted=True)

    def write(self, text: str) -> None:
        """Writes untrusted text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"has half a surrogate pair (character {error.start}); send whole characters") from None
        self._append(text, trusted=False)

    def place(self, placeholder: str, part: Mapping[str, Any]) -> None:
        """Writes the placeholder of an image or sound as a separate segment."""
        self._close_run()
        self._segments.append(Segment(placeholder, True, part))

    def segments(self) -> list[Segment]:
        self._close_run()
        return list(self._segments)

    def error(self, complaint: str) -> TemplateError:
        return TemplateError(f"{self.where} {complaint}.")

    def _append(self, text: str, *, trusted: bool) -> None:
        if not text:
            return
        if (trusted, self.own) != self._kind:
            self._close_run()
            self._kind = (trusted, self.own)
        self._run.append(text)

    def _close_run(self) -> None:
        if self._run:
            trusted, own = self._kind
            self._segments.append(Segment("".join(self._run), trusted, own=own))
            self._run = []


def by_name(mapping: Mapping[Any, Any], out: Writer) -> list[tuple[str, Any]]:
    """The entries in the template's order: by name, ignoring case."""
    for key in mapping:
        if not isinstance(key, str):
            raise out.error(f"has {kind_of(key)} as a key; keys must be strings")
    return sorted(mapping.items(), key=lambda entry: entry[0].lower())


def write_quoted(out: Writer, text: str) -> None:
    out.mark(QUOTE)
    out.write(text)
    out.mark(QUOTE)


def write_value(out: Writer, value: Any, *, quote_keys: bool, depth: int = 0) -> None:
    """JSON as the model spells it: no spaces, strings between quote tokens and never escaped.

    value = QUOTE text QUOTE | true | false | null | number | { key:value,… } | [ value,… ]
    key   = text in arguments, QUOTE text QUOTE in schemas (`quote_keys`)
    """
    if depth > MAX_DEPTH:
        raise out.error(f"nests deeper than {MAX_DEPTH} levels; flatten it or send it as a JSON string")
    match value:
        case str():
            write_quoted(out, value)
        case None | bool() | int() | float():
            out.write(_literal(out, value))
        case dict():
            out.mark("{")
            write_entries(out, value, quote_keys=quote_keys, depth=depth + 1)
            out.mark("}")
        case list() | tuple():
            out.mark("[")
            for i, item in enumerate(value):
                if i:
                    out.mark(",")
                write_value(out, item, quote_keys=quote_keys, depth=depth + 1)
            out.mark("]")
        case _:
            raise out.error(f"contains {kind_of(value)}; only JSON values can be rendered")


def write_entries(out: Writer, mapping: Mapping[Any, Any], *, quote_keys: bool, depth: int = 0) -> None:
    """The inside of an object: `key:value,key:value`."""
    for i, (key, value) in enumerate(by_name(mapping, out)):
        if i:
            out.mark(",")
        if quote_keys:
            write_quoted(out, key)
        else:
            out.write(key)
        out.mark(":")
        write_value(out, value, quote_keys=quote_keys, depth=depth)


def _literal(out: Writer, value: bool | int | float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise out.error(f"contains the number {value}, which JSON does not have; send null or a string")
    try:
        return str(value)
    except ValueError:  # Python refuses to print integers with thousands of digits
        raise out.error("contains an integer too long to print; send it as a string") from None
