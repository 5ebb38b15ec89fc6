"""A small, plain checker of JSON Schema, to compare with: one function, no compilation, `re` for patterns."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

_TYPES: dict[str, Any] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "number": lambda v: is_number(v),
    "integer": lambda v: is_number(v) and exact(v) % 1 == 0,
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Fraction) and not isinstance(value, bool)


def exact(value: Any) -> Any:
    """A number as it is written; pass `parse_float=Fraction` to `json.loads` for those that a float would round."""
    return Fraction(repr(value)) if isinstance(value, float) else value


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern.replace("$", r"\Z"), text) is not None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(exact(a) == exact(b))


def valid(schema: Any, value: Any, root: Any = None) -> bool:
    """Whether `value` satisfies `schema`."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema

    def ok(inner: Any, v: Any = value) -> bool:
        return valid(inner, v, root)

    return all(_holds(word, x, schema, value, ok, root) for word, x in schema.items())


def _holds(word: str, x: Any, schema: Any, v: Any, ok: Callable[..., bool], root: Any) -> bool:
    number, text = _TYPES["number"](v), isinstance(v, str)
    array, members = isinstance(v, list), isinstance(v, dict)
    match word:
        case "type":
            return any(_TYPES[name](v) for name in (x if isinstance(x, list) else [x]))
        case "enum":
            return any(same(v, other) for other in x)
        case "const":
            return same(v, x)
        case "$ref":
            return ok(root["$defs"][x.rpartition("/")[2]] if x != "#" else root)
        case "allOf":
            return all(map(ok, x))
        case "anyOf":
            return any(map(ok, x))
        case "oneOf":
            return sum(map(ok, x)) == 1
        case "not":
            return not ok(x)
        case "if" if "then" in schema or "else" in schema:
            return ok(schema.get("then", True)) if ok(x) else ok(schema.get("else", True))
        case "minimum":
            return not number or exact(v) >= exact(x)
        case "maximum":
            return not number or exact(v) <= exact(x)
        case "exclusiveMinimum":
            return not number or exact(v) > exact(x)
        case "exclusiveMaximum":
            return not number or exact(v) < exact(x)
        case "multipleOf":
            return not number or exact(v) % exact(x) == 0
        case "minLength":
            return not text or len(v) >= x
        case "maxLength":
            return not text or len(v) <= x
        case "pattern":
            return not text or _found(x, v)
        case "minItems":
            return not array or len(v) >= x
        case "maxItems":
            return not array or len(v) <= x
        case "prefixItems":
            return not array or all(ok(inner, item) for inner, item in zip(x, v, strict=False))
        case "items":
            return not array or all(ok(x, item) for item in v[len(schema.get("prefixItems", ())) :])
        case "contains":
            hits = sum(ok(x, item) for item in v) if array else 0
            return not array or schema.get("minContains", 1) <= hits <= schema.get("maxContains", len(v))
        case "required":
            return not members or all(name in v for name in x)
        case "minProperties":
            return not members or len(v) >= x
        case "maxProperties":
            return not members or len(v) <= x
        case "properties":
            return not members or all(ok(x[name], v[name]) for name in x if name in v)
        case "patternProperties":
            return not members or all(ok(x[p], v[name]) for p in x for name in v if _found(p, name))
        case "additionalProperties":
            known, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
            return not members or all(
                ok(x, v[name]) for name in v if name not in known and not any(_found(p, name) for p in patterns)
            )
        case "propertyNames":
            return not members or all(ok(x, name) for name in v)
        case "dependentRequired":
            return not members or all(need in v for name in x if name in v for need in x[name])
        case "dependentSchemas":
            return not members or all(ok(inner) for name, inner in x.items() if name in v)
    return True
