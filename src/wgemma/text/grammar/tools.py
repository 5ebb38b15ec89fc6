"""Tool calls in Gemma's own syntax as a grammar from the declarations: names, arguments and types are valid.

The grammar takes over after `<|tool_call>` and ends with `<tool_call|>`:

call   = call:NAME object CLOSE
object = { [key:value {,key:value}] }              array = [ [value {,value}] ]
value  = QUOTE text QUOTE | number | true | false | null | object | array

QUOTE and CLOSE are special tokens, one symbol each. Keys are in the template's order, by name; a key that would be
misread without quotes is a JSON string. Text is literal, and never spells the markup that ends a string or a call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.automaton import Grammar
from wgemma.text.grammar.characters import PlainText
from wgemma.text.grammar.expressions import Node, Pool
from wgemma.text.grammar.schema import SchemaCompiler
from wgemma.text.grammar.spelling import JsonSpelling
from wgemma.text.segments import QUOTE

CLOSE = "<tool_call|>"
SYMBOLS = {QUOTE: 256, CLOSE: 257}  # special tokens and their symbols, for `TokenIndex`

_MARKUP = (QUOTE, CLOSE, "<|tool_call>", "<|tool_response>", "<|channel>", "<channel|>")
_BARE = re.compile(r"[^\s:{}\[\]\"',<\ud800-\udfff][^:{}\[\]\"',<\ud800-\udfff]*(?<!\s)")
_NAME = re.compile(r"[^\s{}<\ud800-\udfff]+")
_NAMED = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)  # name → schema
_DATA = ("enum", "const", "default", "examples")


class CallSpelling(JsonSpelling):
    """Values as the model writes them in a call: no spaces, strings between quote tokens, nothing escaped."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.text = PlainText(pool)
        pool.universal.add(self.text.texts)
        self.comma = pool.words([b","])
        letter = pool.letters(sum(1 << ord(char) for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"))
        other = pool.letters(sum(1 << ord(char) for char in "0123456789.-"))
        self.key_text = pool.join(letter, pool.repeat(pool.either([letter, other])))
        self._quote = pool.letters(1 << SYMBOLS[QUOTE])
        self._key_end = pool.words([b":"])
        markup = pool.words([text.encode() for text in _MARKUP])
        self._literal = pool.other_than(pool.join(self.text.texts, markup, self.text.texts))

    def string(self, content: Node) -> Node:
        content = self.pool.both([content, self._literal])
        return self.pool.join(self._quote, self.pool.group(content), self._quote)

    def key(self, content: Node) -> Node:
        return self.pool.join(self.pool.group(content), self._key_end)

    def keys(self, name: str) -> list[bytes]:
        return [(name if _BARE.fullmatch(name) else json.dumps(name)).encode() + b":"]

    def literals(self, values: list[Any]) -> Node:
        return self.pool.either(map(self._literally, values))

    def _literally(self, value: Any, depth: int = 0) -> Node:
        pool, words = self.pool, self.pool.words
        if depth > 60:
            raise GrammarError("a tool's schema has a value that nests too deep.")
        if isinstance(value, str):
            return self.string(self.text.exactly(value))
        if isinstance(value, list):
            parts = [pool.join(self.comma, self._literally(item, depth + 1)) for item in value[1:]]
            first = [self._literally(value[0], depth + 1)] if value else []
            return pool.join(words([b"["]), *first, *parts, words([b"]"]))
        if isinstance(value, dict):
            entries = [
                pool.join(words(self.keys(name)), self._literally(inner, depth + 1)) for name, inner in _sorted(value)
            ]
            rest = [pool.join(self.comma, entry) for entry in entries[1:]]
            return pool.join(words([b"{"]), *entries[:1], *rest, words([b"}"]))
        return super().literals([value])


def compile_tools(tools: Sequence[Any], only: str | None = None) -> Grammar:
    """The grammar of one call of any of `tools`, or of the one named `only`, from after `<|tool_call>` on."""
    pool = Pool()
    spelling = CallSpelling(pool)
    calls, unchecked, names = [], [], set()
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if function is None or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise GrammarError(
                'a tool must look like {"type": "function", "function": {"name": …, "parameters": {…}}}.'
            )
        if name in names:
            raise GrammarError(f"there are two tools named {name[:60]}; each needs a name of its own.")
        names.add(name)
        if only is not None and name != only:
            continue
        node, missed = _arguments(function.get("parameters"), spelling, name)
        unchecked += missed
        calls.append(pool.join(pool.words([f"call:{name}".encode()]), node))
    if not calls:
        raise GrammarError("there is no tool to call." if only is None else f"there is no tool named {only[:60]}.")
    return Grammar(pool, pool.join(pool.either(calls), pool.letters(1 << SYMBOLS[CLOSE])), unchecked)


def _arguments(parameters: Any, spelling: CallSpelling, name: str) -> tuple[Node, list[str]]:
    """The object of a call's arguments, and what of it is not enforced."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise GrammarError(f"the parameters of {name} are not an object.")
    # A function's parameters are an object even if the schema does not say so; what it does not name, it does not take.
    schema = {"type": "object", "additionalProperties": False, **(parameters or {})}
    try:
        compiler = SchemaCompiler(_in_order(schema), spelling)
        rule = compiler.rule([compiler.document.root])
        compiler.finish(rule)
    except GrammarError as problem:
        raise GrammarError(f"the parameters of {name}: {problem}") from None
    return rule.body, [f"{name}: {path}" for path in compiler.unchecked]


def _in_order(value: Any, depth: int = 0) -> Any:
    """The schema with the properties of every object in the template's order. Types may be in capitals."""
    if depth > 200:
        raise GrammarError("the schema nests deeper than 200 levels; flatten it.")
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if key in _NAMED and isinstance(inner, Mapping):
                result[key] = {name: _in_order(schema, depth + 1) for name, schema in inner.items()}
            else:
                result[key] = inner if key in _DATA else _in_order(inner, depth + 1)
        if isinstance(result.get("properties"), dict):
            result["properties"] = dict(_sorted(result["properties"]))
        if isinstance(result.get("type"), str):
            result["type"] = result["type"].lower()
        if result.pop("nullable", None) is True:
            return {"anyOf": [result, {"type": "null"}]}
        return result
    return [_in_order(item, depth + 1) for item in value] if isinstance(value, list) else value


def _sorted(mapping: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(mapping.items(), key=lambda entry: str(entry[0]).lower())
