"""What `format` may be: a JSON schema, a class or another annotation, "json", `Regex`, `Choice` or `Grammar`.

Each becomes a grammar that the answer follows, and a way to read the complete answer.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any

from wgemma.annotations import Annotation
from wgemma.checks import kind_of, shown
from wgemma.errors import GrammarError, SettingsError
from wgemma.text.grammar import Grammar as Compiled
from wgemma.text.grammar import compile_choice, compile_gbnf, compile_json, compile_regex, compile_schema

_MOST = 64  # formats kept for the next call


@dataclass(frozen=True)
class Regex:
    """A `format`: the answer matches `pattern` from start to end."""

    pattern: str


@dataclass(frozen=True)
class Choice:
    """A `format`: the answer is one of `strings`."""

    strings: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.strings, list | set | frozenset):
            object.__setattr__(self, "strings", tuple(self.strings))


@dataclass(frozen=True)
class Grammar:
    """A `format`: the answer follows a grammar in GBNF, the language of llama.cpp."""

    text: str


@dataclass(frozen=True)
class Format:
    """What an answer must look like. `parse` reads a complete one; `unchecked` lists what of it is not enforced."""

    grammar: Compiled
    parse: Callable[[str], Any]

    @property
    def unchecked(self) -> list[str]:
        return self.grammar.unchecked


def resolve(format: Any) -> Format | None:
    """The format that a caller means; None for None. What cannot be enforced is refused with `GrammarError`."""
    if format is None:
        return None
    _refuse_lookalikes(format)
    if isinstance(format, Mapping | bool):
        text = _canonical(format)
        key: Hashable = sha256(text.encode()).digest()
        return _kept(("schema", key), lambda: Format(compile_schema(text), _json))
    if isinstance(format, str):
        return _kept("json", lambda: Format(compile_json(), _json))
    if isinstance(format, Regex | Choice | Grammar):
        return _kept(format, lambda: Format(_compiled(format), str))
    return _kept((format, repr(format)), lambda: _of_annotation(format))


def _of_annotation(annotation: Any) -> Format:
    known = Annotation(annotation, "format")
    grammar = compile_schema(known.schema())
    return Format(grammar, lambda text: known.build(_json(text), "the answer"))


def _compiled(format: Regex | Choice | Grammar) -> Compiled:
    match format:
        case Regex(pattern):
            return compile_regex(pattern)
        case Choice(strings):
            return compile_choice(strings)
        case Grammar(text):
            return compile_gbnf(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise GrammarError(f"the answer cannot be read as JSON: {problem}.") from None


def _canonical(schema: Any) -> str:
    """A schema as JSON. The order of keys is part of it: answers have the same."""
    try:
        return json.dumps(schema, default=_plain)
    except (TypeError, ValueError, RecursionError) as problem:
        raise GrammarError(f"format is no JSON schema: {problem}.") from None


def _plain(value: Any) -> Any:
    """Mappings other than dicts are objects, too."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{kind_of(value)} is not JSON")


# -- what was compiled before

_formats: OrderedDict[Hashable, Format] = OrderedDict()
_lock = Lock()


def _kept(key: Hashable, make: Callable[[], Format]) -> Format:
    """The format of this key, from before or made now."""
    try:
        hash(key)
    except TypeError:  # such as an annotation with a list in it
        return make()
    with _lock:
        if key in _formats:
            _formats.move_to_end(key)
            return _formats[key]
    made = make()
    with _lock:
        _formats[key] = made
        while len(_formats) > _MOST:
            _formats.popitem(last=False)
    return made


# -- what it may not be

_KNOWN = '"json", a schema, a class, Regex, Choice or Grammar'
_ELSEWHERE = {
    "json_schema": "format takes the schema itself: write format=…['json_schema']['schema'] instead of {shown}.",
    "json_object": 'any JSON object is format="json" here, not {shown}.',
    "text": "an answer is text unless there is a format: leave out {shown}.",
}


def _refuse_lookalikes(format: Any) -> None:
    """Raises for what other libraries take, and for what is nearly right."""
    if isinstance(format, Mapping) and isinstance(format.get("type"), str) and format["type"] in _ELSEWHERE:
        raise SettingsError(_ELSEWHERE[format["type"]].format(shown=shown(dict(format))))
    if isinstance(format, str) and format != "json":
        if format.lstrip()[:1] == "{":
            raise SettingsError("format is a string with a schema; write format=json.loads(…).")
        raise SettingsError(
            f'format is {shown(format)}; it must be "json", a schema, a class, Regex, Choice or Grammar.'
        )
    if isinstance(format, re.Pattern):
        raise SettingsError("format is a compiled pattern; write format=wgemma.Regex(pattern).")
    if isinstance(format, list | tuple | set | frozenset):
        raise SettingsError(f'format is {kind_of(format)}; one of several strings is wgemma.Choice(["yes", "no"]).')
    cls = type(format)
    if hasattr(cls, "model_json_schema") or hasattr(cls, "__dataclass_fields__"):
        if cls not in (Regex, Choice, Grammar):
            raise SettingsError(f"format is {kind_of(format)}; write the class, format={cls.__name__}.")
    elif isinstance(format, int | float | bytes) and not isinstance(format, bool):
        raise SettingsError(
            f'format is {shown(format)}; it must be "json", a schema, a class, Regex, Choice or Grammar.'
        )
