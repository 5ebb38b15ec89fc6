"""Python functions as tools: what the model is told about them, and how they are called.

A declaration comes from the signature, the annotations and the docstring. An argument is described by the docstring, or
by `Annotated[str, "…"]`.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, time
from enum import Enum
from typing import Any, Literal

from wgemma.annotations import Annotation, Schema, hints_of, schemas_of
from wgemma.checks import kind_of, shown
from wgemma.docstrings import described_arguments, first_paragraph
from wgemma.errors import SettingsError


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str
    description: str
    call: Callable[..., Any]
    parameters: Mapping[str, Annotation]
    required: Sequence[str]
    descriptions: Mapping[str, str]  # of parameters, from the docstring

    @property
    def declaration(self) -> dict[str, Any]:
        """The function as OpenAI describes tools."""
        schemas, definitions = schemas_of(self.parameters)
        properties = {name: _declared(schema, definitions) for name, schema in schemas.items()}
        for name, description in self.descriptions.items():
            if "description" not in schemas[name]:  # the argument's own; that of its class says less
                properties[name]["description"] = description
        parameters = {"type": "object", "properties": properties}
        if self.required:
            parameters["required"] = list(self.required)
        if _refers(properties):  # only what contains itself
            parameters["$defs"] = definitions
        about = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": about}

    @property
    def is_async(self) -> bool:
        innermost = self.call
        while isinstance(innermost, functools.partial):
            innermost = innermost.func
        return inspect.iscoroutinefunction(innermost) or inspect.iscoroutinefunction(
            getattr(innermost, "__call__", None)  # noqa: B004
        )

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, as the annotations want them; `SettingsError` if they do not fit."""
        for name in values:
            if name not in self.parameters:
                raise SettingsError(f"{self.name} has no argument {shown(name)}; it has {', '.join(self.parameters)}.")
        for name in self.required:
            if name not in values:
                raise SettingsError(f"{self.name} needs the argument {name}.")
        return {name: self.parameters[name].build(value, name) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class ToolStep:
    """A call of a tool, and what came of it: its `result`, or the `error` that the model was told instead. It comes
    between the parts of replies, so it has a `kind` and a `text`, too."""

    name: str
    arguments: Mapping[str, Any]  # as the model wrote them
    result: Any = None
    error: str | None = None
    seconds: float = 0.0
    kind: Literal["tool_result"] = "tool_result"
    text: str = ""


def declaration_of(function: Callable[..., Any]) -> dict[str, Any]:
    """What the model is told about a function, as OpenAI describes tools."""
    return function_of(function).declaration


def declarations(tools: Any) -> list[Any] | None:
    """`tools` with functions replaced by their declarations; the template checks the others."""
    if callable(tools):
        raise SettingsError(f"tools is {kind_of(tools)}; write a list, as in tools=[{_name_of(tools)}].")
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise SettingsError(f"tools is {shown(tools)}; it must be a list of functions or declarations.")
    return [declaration_of(tool) if callable(tool) else tool for tool in tools]


def functions_of(tools: Any) -> dict[str, Function]:
    """The functions to run, by name."""
    if not isinstance(tools, list | tuple):
        raise SettingsError(f"tools is {shown(tools)}; it must be a list of functions.")
    found: dict[str, Function] = {}
    for tool in tools:
        if not callable(tool):
            raise SettingsError(f"tools has {shown(tool)}, which cannot be called: run_tools() takes functions.")
        function = function_of(tool)
        if function.name in found:
            raise SettingsError(f"there are two tools named {function.name}; each needs a name of its own.")
        found[function.name] = function
    return found


def function_of(function: Any) -> Function:
    name = _name_of(function)
    if isinstance(function, type) or not callable(function) or not re.fullmatch(r"\w+", name):
        what = f"the class {name}" if isinstance(function, type) else name if callable(function) else shown(function)
        raise SettingsError(f"{what} cannot be a tool: it must be a function with a name, made by def.")
    fixed: dict[str, Any] = {}
    inner = function
    while isinstance(inner, functools.partial):
        fixed |= inner.keywords
        inner = inner.func
    routine = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise SettingsError(f"{name} cannot be a tool: Python does not know its arguments.") from None
    hints = hints_of(routine, name)
    parameters: dict[str, Annotation] = {}
    required: list[str] = []
    for parameter in signature.parameters.values():
        _refuse_uncallable(parameter, name, first=not parameters and not fixed)
        if parameter.name in fixed or parameter.kind is parameter.VAR_KEYWORD:
            continue
        where = f"the argument {parameter.name} of {name}"
        parameters[parameter.name] = Annotation(hints.get(parameter.name, Any), where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    text = (inspect.getdoc(inner) if routine is inner else routine.__doc__ or inspect.getdoc(type(inner))) or ""
    text = inspect.cleandoc(text)
    descriptions = {key: meaning for key, meaning in described_arguments(text).items() if key in parameters}
    return Function(name, first_paragraph(text), function, parameters, required, descriptions)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _refuse_uncallable(parameter: inspect.Parameter, name: str, *, first: bool) -> None:
    """Raises if a call by names cannot set it."""
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise SettingsError(f"{name} cannot be a tool: its argument {parameter.name} has no name for callers (/).")
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise SettingsError(f"{name} cannot be a tool: it takes *{parameter.name}. Name its arguments, or take a list.")
    if first and parameter.name == "self" and parameter.annotation is parameter.empty:
        raise SettingsError(f"{name} cannot be a tool: it is a method without its object. Pass object.{name}.")


# -- declarations


def _declared(schema: Any, definitions: Mapping[str, Schema], inside: frozenset[str] = frozenset()) -> Any:
    """A schema as the template shows it best: definitions in place, `nullable` instead of a union with null."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: _declared(inner, definitions, inside) for name, inner in value.items()}
        elif key in ("items", "additionalProperties"):
            found[key] = _declared(value, definitions, inside)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            found[key] = [_declared(inner, definitions, inside) for inner in value]
        elif key not in ("title", "default"):
            found[key] = value
    name = str(found.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        del found["$ref"]
        found = {**_declared(definitions[name], definitions, inside | {name}), **found}
    return _with_types(found)


def _with_types(schema: dict[str, Any]) -> dict[str, Any]:
    branches = schema.get("anyOf")
    if not branches:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    others = [branch for branch in branches if branch != {"type": "null"}]
    if len(others) == 1 and len(branches) == 2 and "$ref" not in others[0]:
        return {**others[0], "nullable": True, **rest}
    if all(branch.keys() == {"type"} and isinstance(branch["type"], str) for branch in branches):
        return {"type": [branch["type"] for branch in branches], **rest}
    return schema


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("$ref"), str) or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


# -- results


def told(result: Any) -> str:
    """A result as the model is told it: text as it is, everything else as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=_plain)
    return text.encode(errors="replace").decode()  # half a surrogate pair has no tokens


def _plain(value: Any) -> Any:
    """What JSON does not know, as something it knows."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set | Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)
