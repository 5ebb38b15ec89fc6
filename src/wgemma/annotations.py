"""Python annotations: the JSON schema of what they allow, and Python objects from JSON that fits.

Dataclasses, TypedDicts, NamedTuples and Pydantic models may nest and refer to themselves. Pydantic is never imported: a
model is any class with `model_json_schema` and `model_validate`.
"""

import dataclasses
import inspect
import json
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from wgemma.checks import kind_of, shown
from wgemma.errors import GrammarError, SettingsError

Schema = dict[str, Any]

_KNOWN = "str, int, float, bool, None, Literal, Enum, list, dict, dataclass, TypedDict, NamedTuple or Pydantic model"
_LISTS: tuple[Any, ...] = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_SETS: tuple[Any, ...] = (set, abc.Set, abc.MutableSet)
_DICTS: tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)


def schema_of(annotation: Any, where: str = "format") -> Schema:
    """The JSON schema of `annotation`. `where` names it in errors."""
    return Annotation(annotation, where).schema()


def build(annotation: Any, value: Any, where: str = "format") -> Any:
    """The Python object that the JSON `value` stands for; raises `SettingsError` if it does not fit."""
    return Annotation(annotation, where).build(value, where)


class Annotation:
    """An annotation that was read once, for many values. `where` names it, or the value, in errors."""

    def __init__(self, annotation: Any, where: str) -> None:
        self._kind = _Reader().read(annotation, where)

    def schema(self) -> Schema:
        book = _Definitions()
        root = self._kind.schema(book)
        return book.whole(root)

    def build(self, value: Any, where: str) -> Any:
        return self._kind.build(value, where)


def schemas_of(annotations: Mapping[str, Annotation]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """The schema of each, and the definitions they share."""
    book = _Definitions()
    return {name: annotation._kind.schema(book) for name, annotation in annotations.items()}, book.schemas


class _Definitions:
    """The `$defs` of a schema that is being written."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self.schemas: dict[str, Schema] = {}
        self._uses: dict[str, int] = {}

    def refer(self, owner: Any, name: str, write: Callable[[], Schema]) -> Schema:
        """A reference to the definition of `owner`, which is written if it is the first."""
        if owner not in self._names:
            name = self._names[owner] = self.reserve(name)
            self.schemas[name] = write()
        name = self._names[owner]
        self._uses[name] = self._uses.get(name, 0) + 1
        return {"$ref": _reference(name)}

    def reserve(self, name: str) -> str:
        """A name that is still free, like this one."""
        free, count = name, 1
        while free in self.schemas:
            count += 1
            free = f"{name}_{count}"
        self.schemas[free] = {}
        return free

    def adopt(self, schema: Schema) -> Schema:
        """Pydantic's schema, whose definitions move here."""
        foreign = schema.get("$defs", {})
        names = {name: self.reserve(name) for name in foreign}
        references = {_reference(name): _reference(own) for name, own in names.items()}
        for name, inner in foreign.items():
            self.schemas[names[name]] = _adopted(inner, references)
        root: Schema = _adopted({key: value for key, value in schema.items() if key != "$defs"}, references)
        return root

    def whole(self, root: Schema) -> Schema:
        """The finished schema. A definition that only the root uses is the root."""
        name = root["$ref"].removeprefix("#/$defs/") if root.keys() == {"$ref"} else ""
        if self._uses.get(name) == 1:
            root = self.schemas.pop(name)
        return {**root, "$defs": self.schemas} if self.schemas else root


def _reference(name: str) -> str:
    return f"#/$defs/{name}"


def _adopted(value: Any, references: Mapping[str, str]) -> Any:
    """With other references. An object without a word on other keys ignores them, so none are written."""
    if isinstance(value, list):
        return [_adopted(item, references) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _adopted(inner, references) for key, inner in value.items()}
    if isinstance(found.get("$ref"), str):
        found["$ref"] = references.get(found["$ref"], found["$ref"])
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


# -- kinds of annotations


class _Kind:
    """What an annotation allows. `words` say it in errors; `hashable`: what is built may be in a set."""

    words = "a JSON value"
    hashable = True

    def schema(self, book: _Definitions) -> Schema:
        return {}

    def build(self, value: Any, where: str) -> Any:
        return value

    def misfit(self, value: Any, where: str) -> SettingsError:
        return SettingsError(f"{where} is {shown(value)}; it must be {self.words}.")


class _Anything(_Kind):
    hashable = False


class _Scalar(_Kind):
    def __init__(self, name: str, words: str, *accepted: type, make: Callable[[Any], Any] | None = None) -> None:
        self.name, self.words, self.accepted, self.make = name, words, accepted, make

    def schema(self, book: _Definitions) -> Schema:
        return {"type": self.name}

    def build(self, value: Any, where: str) -> Any:
        if not isinstance(value, self.accepted) or (isinstance(value, bool) and bool not in self.accepted):
            raise self.misfit(value, where)
        return self.make(value) if self.make else value


class _Whole(_Scalar):
    """An int. JSON does not tell 3.0 from 3."""

    def build(self, value: Any, where: str) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return super().build(value, where)


class _Written(_Kind):
    """A string of a known format."""

    def __init__(self, format: str, words: str, make: Callable[[str], Any], pattern: str | None = None) -> None:
        self.format, self.words, self.make, self.pattern = format, words, make, pattern

    def schema(self, book: _Definitions) -> Schema:
        pattern = {"pattern": self.pattern} if self.pattern else {}
        return {"type": "string", "format": self.format, **pattern}

    def build(self, value: Any, where: str) -> Any:
        try:
            return self.make(value)
        except (ValueError, TypeError, AttributeError):
            raise self.misfit(value, where) from None


_TYPES = ((str, "string"), (bool, "boolean"), (int, "integer"), (float, "number"))  # a bool is an int, too


class _Values(_Kind):
    """One of some values: pairs of JSON and Python."""

    def __init__(self, pairs: list[tuple[Any, Any]], where: str) -> None:
        self.pairs = pairs
        for value, _ in pairs:
            if not isinstance(value, str | int | float | bool | None):
                raise GrammarError(f"{where}: {shown(value)} is no JSON value; use strings and numbers.")
        self.words = " or ".join(shown(value) for value, _ in pairs[:8]) + (" or …" if len(pairs) > 8 else "")

    def schema(self, book: _Definitions) -> Schema:
        values = [value for value, _ in self.pairs]
        types = {next((name for kind, name in _TYPES if isinstance(value, kind)), "null") for value in values}
        return {**({"type": types.pop()} if len(types) == 1 else {}), "enum": values}

    def build(self, value: Any, where: str) -> Any:
        for known, meant in self.pairs:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return meant
        raise self.misfit(value, where)


class _Items(_Kind):
    """A list, or what is made of one."""

    words = "a list"

    def __init__(self, inner: _Kind, make: Callable[[list[Any]], Any]) -> None:
        self.inner, self.make = inner, make
        self.hashable = make in (tuple, frozenset) and inner.hashable

    def schema(self, book: _Definitions) -> Schema:
        items = self.inner.schema(book)
        unique = {"uniqueItems": True} if self.make in (set, frozenset) else {}
        return {"type": "array", **({"items": items} if items else {}), **unique}

    def build(self, value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise self.misfit(value, where)
        return self.make([self.inner.build(item, f"{where}[{i}]") for i, item in enumerate(value)])


class _Fixed(_Kind):
    """A tuple of a known length."""

    def __init__(self, inners: list[_Kind]) -> None:
        self.inners = inners
        self.hashable = all(inner.hashable for inner in inners)
        self.words = f"a list of {len(inners)}"

    def schema(self, book: _Definitions) -> Schema:
        size, prefix = len(self.inners), [inner.schema(book) for inner in self.inners]
        described = {"prefixItems": prefix, "items": False} if prefix else {}
        return {"type": "array", **described, "minItems": size, "maxItems": size}

    def build(self, value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(self.inners):
            raise self.misfit(value, where)
        pairs = zip(self.inners, value, strict=True)
        return tuple(inner.build(item, f"{where}[{i}]") for i, (inner, item) in enumerate(pairs))


class _Named(_Kind):
    """A dict with any keys."""

    words = "an object"
    hashable = False

    def __init__(self, inner: _Kind) -> None:
        self.inner = inner

    def schema(self, book: _Definitions) -> Schema:
        values = self.inner.schema(book)
        return {"type": "object", **({"additionalProperties": values} if values else {})}

    def build(self, value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise self.misfit(value, where)
        return {key: self.inner.build(item, f"{where}.{key}") for key, item in value.items()}


class _Either(_Kind):
    """The first that fits; an int is an int before it is a float."""

    def __init__(self, kinds: list[_Kind]) -> None:
        self.kinds = kinds
        self.hashable = all(kind.hashable for kind in kinds)
        self.words = " or ".join(dict.fromkeys(kind.words for kind in kinds))

    def schema(self, book: _Definitions) -> Schema:
        return {"anyOf": [kind.schema(book) for kind in self.kinds]}

    def build(self, value: Any, where: str) -> Any:
        for kind in sorted(self.kinds, key=lambda kind: kind is _FLOAT):
            try:
                return kind.build(value, where)
            except (SettingsError, ValueError):  # Pydantic's ValidationError is a ValueError
                continue
        raise self.misfit(value, where)


class _Described(_Kind):
    def __init__(self, inner: _Kind, description: str) -> None:
        self.inner, self.description = inner, description
        self.words, self.hashable = inner.words, inner.hashable

    def schema(self, book: _Definitions) -> Schema:
        return {**self.inner.schema(book), "description": self.description}

    def build(self, value: Any, where: str) -> Any:
        return self.inner.build(value, where)


class _Model(_Kind):
    """A Pydantic model."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.words = f"an object that is a {cls.__name__}"
        self.hashable = cls.__hash__ is not None

    def schema(self, book: _Definitions) -> Schema:
        return book.refer(self.cls, self.cls.__name__, lambda: book.adopt(self._own()))

    def _own(self) -> Schema:
        try:
            return dict(self.cls.model_json_schema())
        except Exception as problem:
            raise GrammarError(f"{self.cls.__name__} has no JSON schema: {str(problem)[:200]}.") from None

    def build(self, value: Any, where: str) -> Any:
        from_json = getattr(self.cls, "model_validate_json", None)  # a strict model takes a date only as JSON
        return from_json(json.dumps(value)) if from_json else self.cls.model_validate(value)


@dataclasses.dataclass
class _Field:
    kind: _Kind
    required: bool


class _Record(_Kind):
    """A dataclass, NamedTuple or TypedDict. Its fields are read when they are needed, since it may contain itself."""

    def __init__(self, cls: Any, reader: "_Reader") -> None:
        self.cls, self.reader = cls, reader
        self.words = f"an object that is a {cls.__name__}"
        self.hashable = cls.__hash__ is not None
        self._fields: dict[str, _Field] | None = None

    @property
    def fields(self) -> dict[str, _Field]:
        if self._fields is None:
            read = self._of_typed_dict if is_typed_dict(self.cls) else self._of_constructor
            self._fields = dict(read())
        return self._fields

    def _of_constructor(self) -> Iterable[tuple[str, _Field]]:
        hints = hints_of(self.cls, self.cls.__name__)
        metadata = {field.name: field.metadata for field in getattr(self.cls, "__dataclass_fields__", {}).values()}
        for name, parameter in inspect.signature(self.cls).parameters.items():
            where = f"{self.cls.__name__}.{name}"
            if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise GrammarError(f"{where} has no annotation; its __init__ must take what the fields are.")
            kind = self.reader.read(hints[name], where)
            description = metadata.get(name, {}).get("description")
            if isinstance(description, str):
                kind = _Described(kind, description)
            yield name, _Field(kind, parameter.default is parameter.empty)

    def _of_typed_dict(self) -> Iterable[tuple[str, _Field]]:
        for name, hint in hints_of(self.cls, self.cls.__name__).items():
            required = name in self.cls.__required_keys__
            while (qualifier := _qualifier(hint)) is not None:
                required = qualifier == "Required" or (qualifier == "ReadOnly" and required)
                hint = get_args(hint)[0]
            yield name, _Field(self.reader.read(hint, f"{self.cls.__name__}.{name}"), required)

    def schema(self, book: _Definitions) -> Schema:
        return book.refer(self.cls, self.cls.__name__, lambda: self._written(book))

    def _written(self, book: _Definitions) -> Schema:
        description = _own_description(self.cls)
        required = [name for name, field in self.fields.items() if field.required]
        return {
            "type": "object",
            **({"description": description} if description else {}),
            "properties": {name: field.kind.schema(book) for name, field in self.fields.items()},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def build(self, value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise self.misfit(value, where)
        for name in value:
            if name not in self.fields:
                raise SettingsError(f"{where} has the key {shown(name)}, which {self.cls.__name__} does not have.")
        for name, field in self.fields.items():
            if field.required and name not in value:
                raise SettingsError(f"{where} has no {name}.")
        built = {name: self.fields[name].kind.build(item, f"{where}.{name}") for name, item in value.items()}
        return built if is_typed_dict(self.cls) else self.cls(**built)


class _Alias(_Kind):
    """What a `type` statement names."""

    def __init__(self, alias: Any, reader: "_Reader") -> None:
        self.alias, self.reader = alias, reader
        self.words = alias.__name__
        self.hashable = False

    @property
    def inner(self) -> _Kind:
        return self.reader.read(self.alias.__value__, self.alias.__name__)

    def schema(self, book: _Definitions) -> Schema:
        return book.refer(self.alias, self.alias.__name__, lambda: self.inner.schema(book))

    def build(self, value: Any, where: str) -> Any:
        return self.inner.build(value, where)


# -- reading


def _upper(make: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: make(text.upper())  # a time zone may be a lower-case z


_YEARS = "^(?!0000)"  # Python has no year 0
_FLOAT = _Scalar("number", "a number", int, float, make=float)
_PLAIN: dict[Any, _Kind] = {
    Any: _Anything(),
    object: _Anything(),
    str: _Scalar("string", "a string", str),
    int: _Whole("integer", "a whole number", int),
    float: _FLOAT,
    bool: _Scalar("boolean", "true or false", bool),
    None: _Scalar("null", "null", type(None)),
    type(None): _Scalar("null", "null", type(None)),
    datetime: _Written("date-time", "a date and time", _upper(datetime.fromisoformat), _YEARS),
    date: _Written("date", "a date", date.fromisoformat, _YEARS),
    time: _Written("time", "a time", _upper(time.fromisoformat)),
    UUID: _Written("uuid", "a UUID", UUID),
}


class _Reader:
    """Reads annotations; what contains itself is read once."""

    def __init__(self) -> None:
        self._records: dict[Any, _Kind] = {}

    def read(self, annotation: Any, where: str) -> _Kind:
        try:
            if annotation in _PLAIN:
                return _PLAIN[annotation]
        except TypeError:  # it cannot be hashed
            pass
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is typing.Annotated:
            return self._annotated(annotation, where)
        if origin in (Union, types.UnionType):
            return _Either([self.read(arg, where) for arg in args])
        if origin is Literal:
            return _Values([(arg.value if isinstance(arg, Enum) else arg, arg) for arg in args], where)
        if isinstance(annotation, NewType):
            return self.read(annotation.__supertype__, where)
        if type(annotation).__name__ == "TypeAliasType":
            return self._records.setdefault(annotation, _Alias(annotation, self))
        found = self._container(origin or annotation, args, where)
        if found is None and isinstance(annotation, type) and not args:
            found = self._class(annotation, where)
        if found is None:
            raise _refusal(annotation, where)
        return found

    def _annotated(self, annotation: Any, where: str) -> _Kind:
        inner = self.read(annotation.__origin__, where)
        for note in annotation.__metadata__:
            text = note if isinstance(note, str) else getattr(note, "description", None)
            if isinstance(text, str):
                inner = _Described(inner, text)
        return inner

    def _container(self, origin: Any, args: tuple[Any, ...], where: str) -> _Kind | None:
        if not isinstance(origin, type):
            return None
        if origin is tuple:
            if args[-1:] not in ((), (Ellipsis,)):
                return _Fixed([self.read(arg, where) for arg in args])
            return _Items(self._inner(args, where), tuple)
        if origin in _LISTS:
            return _Items(self._inner(args, where), list)
        if origin in _SETS or origin is frozenset:
            inner = self._inner(args, where) if args else _PLAIN[str]
            if not inner.hashable:
                raise GrammarError(f"{where}: a set cannot hold {shown(args[0])}; use a list.")
            return _Items(inner, frozenset if origin is frozenset else set)
        if origin in _DICTS:
            if args and args[0] is not str:
                raise GrammarError(f"{where}: the keys of a dict are {shown(args[0])}; JSON has only str.")
            return _Named(self._inner(args[1:], where))
        return None

    def _inner(self, args: tuple[Any, ...], where: str) -> _Kind:
        return self.read(args[0], where) if args else _PLAIN[Any]

    def _class(self, cls: Any, where: str) -> _Kind | None:
        if issubclass(cls, Enum):
            return _Values([(member.value, member) for member in cls], where)
        if is_pydantic(cls):
            return _Model(cls)
        if dataclasses.is_dataclass(cls) or is_typed_dict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
            return self._records.setdefault(cls, _Record(cls, self))
        return None


def is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate")


def is_typed_dict(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def hints_of(owner: Any, where: str) -> dict[str, Any]:
    """The annotations of a class or function, with names in quotes resolved."""
    names = {owner.__name__: owner} if isinstance(owner, type) else None
    try:
        hints = get_type_hints(owner, localns=names, include_extras=True)
    except NameError as problem:
        raise GrammarError(
            f"{where}: an annotation has the name {problem.name}, which its module does not know. "
            "Define it at the top of the module."
        ) from None
    except Exception as problem:
        raise GrammarError(f"{where}: its annotations cannot be read: {problem}.") from None
    return {name: hint.type if isinstance(hint, dataclasses.InitVar) else hint for name, hint in hints.items()}


def _qualifier(hint: Any) -> str | None:
    """Required, NotRequired or ReadOnly, if a TypedDict says so."""
    name = str(get_origin(hint)).rpartition(".")[2]
    return name if name in ("Required", "NotRequired", "ReadOnly") else None


def _own_description(cls: Any) -> str:
    """The first paragraph of a class's docstring; dataclasses and NamedTuples without one have a made-up one."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "")
    made_up = text.startswith(f"{cls.__name__}(")
    return "" if made_up else " ".join(text.partition("\n\n")[0].split())


def _refusal(annotation: Any, where: str) -> GrammarError:
    if isinstance(annotation, TypeVar):
        what = f"{annotation} is a type variable; say which type it is"
    elif isinstance(annotation, str | typing.ForwardRef):
        what = f"{shown(annotation)} is a name in quotes; write the class itself"
    elif isinstance(annotation, type) or get_origin(annotation) is not None:
        name = annotation.__qualname__ if isinstance(annotation, type) else shown(annotation)
        what = f"{name} has no JSON schema; use {_KNOWN}"
    else:
        what = f"{kind_of(annotation)} is no annotation; use {_KNOWN}"
    return GrammarError(f"{where}: {what}.")
