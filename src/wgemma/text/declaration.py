"""A tool's JSON schema → the declaration the model was trained to read.

declaration = declaration:NAME{description:"…"[,parameters:{[properties:{P,…},][required:["…",…],]type:"OBJECT"}]
                               [,response:{[description:"…",]type:"…"}]}
P           = name:{[description:"…",][enum:[…],|items:{…},][nullable:true,][properties:{P,…},][required:[…],]type:"…"}

Quotes above stand for the quote token. Names are sorted, types are in capitals. Everything from the schema is untrusted
text; only the frame is markup.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wgemma.text.segments import MAX_DEPTH, Writer, by_name, write_quoted, write_value

_SCHEMA_WORDS = frozenset({"description", "type", "properties", "required", "nullable"})

Field = tuple[str, Callable[[], None]]


def write_declaration(out: Writer, tool: Any) -> None:
    function = _function(out, tool)
    out.mark("declaration:")
    out.write(function["name"])
    out.mark("{")
    fields: list[Field] = [("description", lambda: write_quoted(out, _text(out, function, "description")))]
    parameters = _mapping(out, function, "parameters")
    if parameters:
        fields.append(("parameters", lambda: _write_parameters(out, parameters)))
    if "response" in function:
        response = _mapping(out, function, "response")
        fields.append(("response", lambda: _write_response(out, response)))
    _write_fields(out, fields)
    out.mark("}")


def _function(out: Writer, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise out.error('must look like {"type": "function", "function": {"name": …, "parameters": {…}}}')
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise out.error('has no name; write "function": {"name": "get_weather", …}')
    return function


def _write_parameters(out: Writer, parameters: Mapping[str, Any]) -> None:
    fields: list[Field] = []
    properties = _mapping(out, parameters, "properties")
    if properties:
        fields.append(("properties", lambda: _write_properties(out, properties, 1)))
    if parameters.get("required"):
        fields.append(("required", lambda: _write_required(out, parameters["required"])))
    # A function's parameters are an object even if the schema does not say so.
    fields.append(("type", lambda: write_quoted(out, _type(out, parameters) or "OBJECT")))
    out.mark("{")
    _write_fields(out, fields)
    out.mark("}")


def _write_response(out: Writer, response: Mapping[str, Any]) -> None:
    fields: list[Field] = []
    if response.get("description"):
        fields.append(("description", lambda: write_quoted(out, _text(out, response, "description"))))
    if response.get("type"):
        fields.append(("type", lambda: write_quoted(out, _type(out, response))))
    out.mark("{")
    _write_fields(out, fields)
    out.mark("}")


def _write_properties(out: Writer, properties: Mapping[str, Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise out.error(f"has a schema deeper than {MAX_DEPTH} levels; flatten it")
    out.mark("{")
    for i, (name, schema) in enumerate(by_name(properties, out)):
        if i:
            out.mark(",")
        out.write(name)
        out.mark(":{")
        # `true`, `false` and stray values say nothing about the type.
        _write_schema(out, schema if isinstance(schema, dict) else {}, depth)
        out.mark("}")
    out.mark("}")


def _write_schema(out: Writer, schema: Mapping[str, Any], depth: int) -> None:
    fields: list[Field] = []
    kind = _type(out, schema)
    if schema.get("description"):
        fields.append(("description", lambda: write_quoted(out, _text(out, schema, "description"))))
    if kind == "STRING" and schema.get("enum"):
        fields.append(("enum", lambda: write_value(out, schema["enum"], quote_keys=True, depth=depth)))
    items = schema.get("items")
    if kind == "ARRAY" and isinstance(items, dict) and items:
        fields.append(("items", lambda: _write_items(out, items, depth + 1)))
    if schema.get("nullable"):
        fields.append(("nullable", lambda: out.mark("true")))
    if kind == "OBJECT":
        nested = schema.get("properties")
        if not isinstance(nested, dict):
            nested = {name: inner for name, inner in schema.items() if name not in _SCHEMA_WORDS}
        fields.append(("properties", lambda: _write_properties(out, nested, depth + 1)))
        if schema.get("required"):
            fields.append(("required", lambda: _write_required(out, schema["required"])))
    fields.append(("type", lambda: write_quoted(out, kind)))
    _write_fields(out, fields)


def _write_items(out: Writer, items: Mapping[str, Any], depth: int) -> None:
    """The schema of an array's elements: keywords sorted like names, unknown ones as plain values."""
    out.mark("{")
    present = [(word, value) for word, value in by_name(items, out) if value is not None]
    for i, (word, value) in enumerate(present):
        if i:
            out.mark(",")
        out.write(word)
        out.mark(":")
        if word == "properties":
            _write_properties(out, value if isinstance(value, dict) else {}, depth)
        elif word == "required":
            _write_required(out, value)
        elif word == "type":
            kinds = _types(out, value)
            write_value(out, kinds if isinstance(value, list) else kinds[0], quote_keys=True)
        else:
            write_value(out, value, quote_keys=True, depth=depth)
    out.mark("}")


def _write_fields(out: Writer, fields: list[Field]) -> None:
    for i, (name, write) in enumerate(fields):
        out.mark(f",{name}:" if i else f"{name}:")
        write()


def _write_required(out: Writer, names: Any) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise out.error('has a "required" that is not a list of names; write "required": ["city"]')
    write_value(out, names, quote_keys=True)


def _type(out: Writer, schema: Mapping[str, Any]) -> str:
    """The type in capitals; a union is printed as a list, `['STRING', 'NULL']`; empty if there is no type."""
    value = schema.get("type")
    if value is None:
        return ""
    kinds = _types(out, value)
    return str(kinds) if isinstance(value, list) else kinds[0]


def _types(out: Writer, value: Any) -> list[str]:
    kinds = value if isinstance(value, list) else [value]
    if not all(isinstance(kind, str) for kind in kinds):
        raise out.error('has a type that is not a name; write "type": "string" or a list of such names')
    return [kind.upper() for kind in kinds]


def _text(out: Writer, holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise out.error(f'has a "{key}" that is not a string')
    return value


def _mapping(out: Writer, holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise out.error(f'has a "{key}" that is not an object; write "{key}": {{…}}')
    return value
