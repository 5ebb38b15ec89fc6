"""The body of a tool call, as the model writes it → a name and JSON arguments.

call   = call:NAME object
object = { [key:value {,key:value}] }          array = [ [value {,value}] ]
key    = QUOTE text QUOTE | JSON string | any characters except `:` and `}`
value  = QUOTE text QUOTE | JSON string | JSON number | true | false | null | object | array

Text between quote tokens is literal: nothing in it is escaped. If a call does not fit the grammar, a lenient reader
tries again: the end of the call closes whatever is open, '…' counts as a string, and bare words become strings. If that
fails, too, the call keeps its markup and an error. Each reader makes a single pass, however hostile the text.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from wgemma.text.segments import MAX_DEPTH, QUOTE

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[\w.:/-]+")
_SPACE = re.compile(r"\s*")
_BARE_KEY = re.compile(r"[^:}]*")
_AFTER_VALUE = re.compile(r"\s*(?:[,}\]]|\Z)")
_NEXT_KEY = re.compile(r",\s*([^\s,:{}\[\]]+)\s*:")
_END_IN_OBJECT = re.compile(r",\s*[^\s,:{}\[\]]+\s*:|[}\]]")
_END_IN_ARRAY = re.compile(r"[,}\]]")
_END_QUOTED = {mark: re.compile(rf"(?<!\\){mark}(?=\s*(?:[,}}\]]|\Z))") for mark in "'\""}
_CLOSER = {"{": "}", "[": "]"}
_WORDS = {"true": True, "false": False, "null": None}
_decode_string = json.JSONDecoder(strict=False).raw_decode


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool by the model."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # why the arguments could not be read
    raw: str = ""  # the markup of a call that could not be read


class _Unreadable(Exception):
    """The text does not fit the grammar; the message says where."""


def parse_call(text: str, tools: Any = None) -> ToolCall:
    """Parses the text between `<|tool_call>` and `<tool_call|>`. `tools` say which parameters are strings."""
    head, brace, _ = text.partition("{")
    prefix, colon, name = head.partition(":")
    name = name.strip()
    if prefix.strip() != "call" or not colon or not name:
        return ToolCall("", error="a tool call must have the form call:NAME{…}", raw=text)
    if not brace:
        if _NAME.fullmatch(name):
            return ToolCall(name)
        return ToolCall("", error="a tool call must have the form call:NAME{…}", raw=text)
    try:
        return ToolCall(name, _Reader(text, len(head)).arguments())
    except _Unreadable:
        pass
    try:
        return ToolCall(name, _MercifulReader(text, len(head), _properties(tools, name)).arguments())
    except _Unreadable as problem:
        return ToolCall(name, error=str(problem), raw=text)


class _Reader:
    """Follows the grammar strictly and stops at the first character that does not fit."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.open: list[str] = []  # the brackets around `at`, outermost first

    def arguments(self) -> dict[str, Any]:
        arguments = self.object()
        self.end()
        return arguments

    def object(self) -> dict[str, Any]:
        self.enter("{")
        members: dict[str, Any] = {}
        while not self.leave():
            if members:
                self.comma()
                if self.leave():
                    break
            key = self.key()
            self.expect(":")
            members[key] = self.value(key)
        return members

    def array(self) -> list[Any]:
        self.enter("[")
        items: list[Any] = []
        while not self.leave():
            if items:
                self.comma()
                if self.leave():
                    break
            items.append(self.value(None))
        return items

    def value(self, key: str | None) -> Any:
        char = self.peek()
        if char == "{":
            return self.object()
        if char == "[":
            return self.array()
        if self.text.startswith(QUOTE, self.at):
            return self.quoted()
        if char == '"':
            return self.json_string()
        return self.literal()

    def key(self) -> str:
        if self.peek() == '"':
            return self.json_string()
        if self.text.startswith(QUOTE, self.at):
            return self.quoted()
        match = _BARE_KEY.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return match.group().strip()

    def quoted(self) -> str:
        start = self.at + len(QUOTE)
        end = self.text.find(QUOTE, start)
        if end < 0:
            raise self.unreadable("a string without its closing quote token")
        self.at = end + len(QUOTE)
        return self.text[start:end]

    def json_string(self) -> str:
        try:
            value, self.at = _decode_string(self.text, self.at)
        except ValueError:
            raise self.unreadable("a string that is not JSON") from None
        return str(value)

    def literal(self) -> Any:
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.at) and _AFTER_VALUE.match(self.text, self.at + len(word)):
                self.at += len(word)
                return value
        match = _NUMBER.match(self.text, self.at)
        if match is None or not _AFTER_VALUE.match(self.text, match.end()):
            raise self.unreadable("a value that is neither a string, a number, an object nor a list")
        number = self.number(match.group())
        self.at = match.end()
        return number

    def number(self, digits: str) -> int | float:
        try:
            number = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
        except ValueError:  # Python refuses integers with thousands of digits
            raise self.unreadable("a number that is too long") from None
        if math.isinf(number):
            raise self.unreadable("a number that is too large")
        return number

    def enter(self, bracket: str) -> None:
        if len(self.open) == MAX_DEPTH:
            raise self.unreadable(f"more than {MAX_DEPTH} levels of nesting")
        self.expect(bracket)
        self.open.append(bracket)

    def leave(self) -> bool:
        if self.peek() != _CLOSER[self.open[-1]]:
            return False
        self.at += 1
        self.open.pop()
        return True

    def comma(self) -> None:
        self.expect(",")
        if self.peek() in "}]":
            raise self.unreadable("a comma with nothing after it")

    def end(self) -> None:
        if self.peek():
            raise self.unreadable("text after the last brace")

    def expect(self, char: str) -> None:
        if self.peek() != char:
            raise self.unreadable(f"something other than {char}")
        self.at += 1

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def unreadable(self, found: str) -> _Unreadable:
        return _Unreadable(f"the arguments have {found} at character {self.at}")


class _MercifulReader(_Reader):
    """Lenient: reads what the model most likely meant."""

    def __init__(self, text: str, at: int, properties: dict[str, bool]) -> None:
        super().__init__(text, at)
        self.properties = properties
        self.unclosed: set[str] = set()  # quote marks without a closing one in the rest of the text

    def value(self, key: str | None) -> Any:
        char = self.peek()
        if char == "'":
            return self.loose_string(char, key)
        start = self.at
        try:
            if char == '"' and '"' not in self.unclosed:
                value = self.json_string()
                if _AFTER_VALUE.match(self.text, self.at):
                    return value
                self.at = start
            elif char == "{" or char == "[" or self.text.startswith(QUOTE, self.at):
                return super().value(key)
            else:
                return self.literal()
        except _Unreadable:
            if char in ("{", "["):
                raise
            self.at = start
        return self.loose_string(char, key) if char == '"' else self.bare(key)

    def key(self) -> str:
        key = super().key()
        return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "'" else key

    def loose_string(self, mark: str, key: str | None) -> str:
        """'…' or "…" up to the first mark that can end a value, so that apostrophes inside survive."""
        if mark not in self.unclosed:
            match = _END_QUOTED[mark].search(self.text, self.at + 1)
            if match:
                value = self.text[self.at + 1 : match.start()]
                self.at = match.end()
                return value.replace("\\" + mark, mark)
            self.unclosed.add(mark)
        return self.bare(key)

    def bare(self, key: str | None) -> str:
        """Words without quotes: up to the next key if the schema says string, else to the next comma or brace."""
        start = self.at
        if len(self.open) == 1 and key is not None and self.properties.get(key):
            end = self.next_property()
        else:
            pattern = _END_IN_OBJECT if self.open[-1] == "{" else _END_IN_ARRAY
            match = pattern.search(self.text, start)
            end = match.start() if match else len(self.text)
        if end == start:
            raise self.unreadable("a key without a value")
        self.at = end
        return self.text[start:end].strip()

    def next_property(self) -> int:
        for match in _NEXT_KEY.finditer(self.text, self.at):
            if match.group(1) in self.properties:
                return match.start()
        return self.closing()

    def quoted(self) -> str:
        start = self.at + len(QUOTE)
        end = self.text.find(QUOTE, start)
        if end >= 0:
            self.at = end + len(QUOTE)
            return self.text[start:end]
        self.at = start
        self.at = end = self.closing()
        return self.text[start:end]

    def closing(self) -> int:
        """Where the closing brackets at the end of the text start: as many as match those open, innermost first."""
        positions: list[int] = []
        at = len(self.text)
        while len(positions) < len(self.open):
            at = len(self.text[self.at : at].rstrip()) + self.at
            if at == self.at or self.text[at - 1] not in "}]":
                break
            at -= 1
            positions.append(at)
        wanted = [_CLOSER[bracket] for bracket in reversed(self.open)]
        for count in range(len(positions), 0, -1):
            if [self.text[i] for i in reversed(positions[:count])] == wanted[:count]:
                return positions[count - 1]
        return len(self.text)

    def leave(self) -> bool:
        """The end of the text closes everything; a mismatched bracket closes the levels it does not belong to."""
        char = self.peek()
        wrong = char in ("}", "]") and char != _CLOSER[self.open[-1]]
        if char == "" or (wrong and any(_CLOSER[bracket] == char for bracket in self.open)):
            self.open.pop()
            return True
        return super().leave()

    def comma(self) -> None:
        self.expect(",")

    def end(self) -> None:
        if self.text[self.at :].strip("}] \t\r\n"):
            raise self.unreadable("text after the last brace")


def _properties(tools: Any, name: str) -> dict[str, bool]:
    """The named tool's parameters, and whether each takes a string. Malformed tools are ignored."""
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or function.get("name") != name:
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        if isinstance(properties, dict):
            return {key: _takes_string(schema) for key, schema in properties.items()}
    return {}


def _takes_string(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds, branches = schema.get("type"), schema.get("anyOf")
    if isinstance(branches, list) and any(
        isinstance(branch, dict) and branch.get("type") == "string" for branch in branches
    ):
        return True
    return "string" in kinds if isinstance(kinds, list) else kinds == "string"
