"""`not`, pushed inwards until it disappears: the schema of everything that another schema does not allow.

A schema is a conjunction of keywords, so its opposite is any of theirs. Most keywords speak about one type only and
hold for all others, so their opposites ask for that type: not {"minLength": 3} is a string of at most 2 characters.
Four opposites have no keyword of their own and get a private one.
"""

from itertools import combinations
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.document import Document, Place

TYPES, EXCLUDED, NOT_PATTERN, NOT_MULTIPLE = "\0types", "\0excluded", "\0notPattern", "\0notMultipleOf"
NEGATED = "\0negated"  # on every schema made here

_NUMBERS = frozenset(("integer", "fraction"))
_ALL = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
_LIMITS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_HARD = frozenset(
    [
        *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "$dynamicRef"),
        *("additionalItems", "unevaluatedItems", "minContains", "maxContains", "uniqueItems", "format"),
    ]
)

_MOST_BRANCHES = 4  # of a oneOf inside `not`

Schema = dict[str, Any] | bool


def cannot_negate(place: Place, keyword: str) -> GrammarError:
    return place.error(keyword, "cannot be enforced inside `not`; only what it allows can be written, so list that.")


def negated(document: Document, place: Place) -> Schema:
    """The schema of what does not satisfy `place`."""
    schema = place.schema
    if isinstance(schema, bool):
        return not schema
    options: list[Schema] = []
    for keyword, value in schema.items():
        if keyword in _HARD and value is not True and not (keyword == "uniqueItems" and value is False):
            raise cannot_negate(place, keyword)
        options += _opposites(document, place, keyword, value)
    return {"anyOf": options, NEGATED: True} if options else False


def _opposites(document: Document, place: Place, keyword: str, value: Any) -> list[Schema]:
    """The schemas of which one holds wherever the keyword does not."""
    if keyword in _LIMITS:
        kind, other, change = _LIMITS[keyword]
        limit = int(value) + change
        return [{"type": kind, other: limit}] if limit >= 0 else []
    if keyword in (EXCLUDED, NOT_PATTERN, NOT_MULTIPLE):
        return [{{EXCLUDED: "enum", NOT_PATTERN: "pattern", NOT_MULTIPLE: "multipleOf"}[keyword]: value}]
    if keyword == TYPES:
        return [{TYPES: _ALL - value}]
    if keyword in _BOUNDS:
        if isinstance(value, bool):
            raise cannot_negate(place, keyword)
        return [{"type": "number", _BOUNDS[keyword]: value}]
    match keyword:
        case "type":
            names = value if isinstance(value, list) else [value]
            kinds = frozenset(names) | (_NUMBERS if "number" in names else frozenset())
            return [{TYPES: _ALL - kinds}]
        case "enum" | "const":
            return [{EXCLUDED: [value] if keyword == "const" else value}]
        case "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        case "properties":
            return [
                {"type": "object", "required": [name], "properties": {name: {"not": inner}}}
                for name, inner in value.items()
                if inner is not True
            ]
        case "pattern":
            return [{"type": "string", NOT_PATTERN: value}]
        case "multipleOf":
            return [{"type": "number", NOT_MULTIPLE: value}]
        case "prefixItems":
            return [
                {"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, {"not": inner}]}
                for i, inner in enumerate(value)
            ]
        case "items" if isinstance(value, dict | bool) and "prefixItems" not in place.schema:
            return [{"type": "array", "contains": {"not": value}}]
        case "contains":
            return [{"type": "array", "items": {"not": value}}]
        case "not":
            return [value]
        case "allOf":
            return [{"not": inner} for inner in value]
        case "anyOf":
            return [{"allOf": [{"not": inner} for inner in value]}]
        case "$ref":
            return [{"not": document.target(place).schema}]
        case "if":
            return _not_if(place.schema)
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return [_not_dependent(name, needs) for name, needs in value.items()]
        case "oneOf" if len(value) <= _MOST_BRANCHES:
            none = {"allOf": [{"not": inner} for inner in value]}
            return [none, *({"allOf": [*pair]} for pair in combinations(value, 2))]
        case "oneOf" | "items":
            raise cannot_negate(place, keyword)
    return []


def _not_if(schema: dict[str, Any]) -> list[Schema]:
    options: list[Schema] = []
    if "then" in schema:
        options.append({"allOf": [schema["if"], {"not": schema["then"]}]})
    if "else" in schema:
        options.append({"allOf": [{"not": schema["if"]}, {"not": schema["else"]}]})
    return options


def _not_dependent(name: str, needs: Any) -> Schema:
    if isinstance(needs, list):
        missing = [{"properties": {need: False}} for need in needs]
        return {"type": "object", "required": [name], "anyOf": missing} if missing else False
    return {"type": "object", "required": [name], "not": needs}
