"""Each keyword of JSON Schema 2020-12: a schema, texts it takes and texts it does not."""

from typing import Any

import pytest

from grammar_texts import accepts
from wgemma import GrammarError
from wgemma.text.grammar import compile_json, compile_schema

# keyword → [(schema, accepted texts, rejected texts)]
TABLE: dict[str, list[tuple[Any, list[str], list[str]]]] = {
    "spaces": [
        ({"type": "object"}, ["{}", '{"a": 1, "b": [1, 2]}'], ['{"a":1}', '{ "a": 1}', '{"a": [1,2]}', "{} ", "[]"]),
        ({"type": "array"}, ["[]", '["a", {}]'], ["[ ]", '["a",{}]', "[1, ]", "[,1]"]),
        (
            True,
            ["null", "1.5", '"x"', "-0.0", "1e-05", "1.5e+300"],
            ["nul", "01", "+1", ".5", "1.", "1e999", "NaN", "'x'"],
        ),
    ],
    "strings": [
        ({"type": "string"}, ['"é😀"', r'"\u00e9"', r'"\ud83d\ude00"', r'"\"\\\n"', '"/"'], ['"a\n"', r'"\q"', '"\t"']),
        ({"type": "string"}, [r'"\u0000"', r'"\u001F"'], [r'"\ud83d"', r'"\ude00\ud83d"', r'"\u0061"', r'"\/"', '"']),
    ],
    "type": [
        ({"type": "integer"}, ["0", "-7", "123456789012345678901234567890"], ["1.5", "-0", "1e3", "true", '"1"']),
        ({"type": ["null", "boolean"]}, ["null", "true", "false"], ["0", "nullnull", "True"]),
        ({"type": "number"}, ["0", "-0.5", "1e-07", "12"], ["-", "1.", '"1"']),
    ],
    "enum": [
        ({"enum": ["a", 1, None, [1, {"b": 2}]]}, ['"a"', "1", "null", '[1, {"b": 2}]'], ['"b"', "2", "[1]", "true"]),
        ({"enum": ["é", "x", 1], "type": "string"}, ['"é"', r'"\u00e9"', '"x"'], ["1", '"e"']),
    ],
    "const": [({"const": {"b": 1, "a": True}}, ['{"b": 1, "a": true}'], ['{"a": true, "b": 1}', '{"b": 1, "a": 1}'])],
    "minimum": [
        ({"type": "integer", "minimum": 17, "maximum": 1203}, ["17", "99", "100", "1203"], ["16", "9", "1204", "-20"]),
        (
            {"type": "number", "minimum": -1.25, "maximum": 2.5},
            ["-1.25", "-1", "2.49", "2.5", "1e-07"],
            ["-1.26", "2.51"],
        ),
        ({"minimum": 3}, ["3", '"x"', "{}", "1e+20"], ["2", "2.99", "1e-07", "-3"]),
    ],
    "exclusiveMinimum": [
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.001", "0.99"], ["0", "0.0", "1", "1.0"]),
        ({"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 0}, ["-2", "-1"], ["-3", "0"]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),
    ],
    "multipleOf": [
        ({"type": "integer", "multipleOf": 7}, ["0", "-14", "7777"], ["1", "15", "-13"]),
        ({"type": "number", "multipleOf": 0.01}, ["1", "1.5", "-0.25", "1.250"], ["1.255", "0.001"]),
        ({"type": "integer", "multipleOf": 1000, "minimum": 1, "maximum": 3500}, ["1000", "3000"], ["0", "4000", "1"]),
    ],
    "minLength": [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"😀😀"', r'"\u00e9\n\""'], ['"a"', '"abcd"']),
        ({"minLength": 2}, ['"ab"', "1"], ['"a"']),
        ({"type": "string", "maxLength": 4000}, ['""', '"' + "x" * 4000 + '"'], ['"' + "x" * 4001 + '"']),
    ],
    "pattern": [
        ({"type": "string", "pattern": "b+"}, ['"abc"', '"b"'], ['"ac"', '""']),
        ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xa"', '"bx"']),
        ({"type": "string", "pattern": r"^\S+$", "maxLength": 3}, ['"a\\"b"', '"é"'], ['"a b"', '""', '"abcd"']),
        ({"type": "string", "pattern": "^(?!un)[a-z]+$"}, ['"able"', '"u"'], ['"unable"']),
    ],
    "format": [
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'], ['"2023-02-29"', '"2024-04-31"']),
        ({"format": "date-time"}, ['"2024-02-29T23:59:59.5Z"', "3"], ['"2024-02-29"', '"2024-02-29T24:00:00Z"']),
        ({"type": "string", "format": "email"}, ['"a.b@c.de"'], ['"a@"', '"a b@c.de"', '"a..b@c.de"']),
        ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"'], ['"256.0.0.1"', '"1.2.3"', '"01.2.3.4"']),
        ({"type": "string", "format": "ipv6"}, ['"::1"', '"1:2::7:8"', '"::ffff:1.2.3.4"'], ['"1::2::3"', '"12345::"']),
        ({"type": "string", "format": "uuid"}, ['"2eb8aa08-aa98-11ea-b4aa-73b441d16380"'], ['"2eb8aa08aa98"']),
        (
            {"type": "string", "format": "uri"},
            ['"https://a.b/c?d=e#f"', '"mailto:a@b"'],
            ['"//a.b"', '"a b:c"', '"abc"'],
        ),
        ({"type": "string", "format": "duration"}, ['"P1Y2M"', '"PT5S"'], ['"P"', '"P1YT"', '"5S"']),
        ({"type": "string", "format": "hostname"}, ['"a-b.example"'], ['"-a"', '"a_b"', '"' + "a" * 64 + '"']),
        ({"type": "string", "format": "time"}, ['"12:00:00+01:00"'], ['"12:00"', '"25:00:00Z"']),
        ({"type": "string", "format": "json-pointer"}, ['""', '"/a~0b"'], ['"a"', '"/~2"']),
    ],
    "properties": [
        (
            {"properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}, "additionalProperties": False},
            ["{}", '{"a": null}', '{"b": true}', '{"a": null, "b": true}', "3"],
            ['{"b": true, "a": null}', '{"a": null, "a": null}', '{"c": 1}', '{"a": 1}'],
        ),
        ({"properties": {"a": False}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
        ({"type": "object", "properties": {'é"': {}}}, ['{"é\\"": 1}', r'{"\u00e9\"": 1}'], ['{"é"": 1}']),
    ],
    "required": [
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b", "z"]},
            ['{"b": 1, "z": 2}', '{"a": 0, "b": 1, "z": 2, "y": 3}'],
            ["{}", '{"b": 1}', '{"a": 0, "z": 2}', '{"z": 2, "b": 1}'],
        ),
    ],
    "additionalProperties": [
        (
            {"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            ['{"a": 1, "abc": 2}', '{"ab": null, "": 3}'],
            ['{"ab": 1}', '{"a": null}', '{"a": 1, "ab": null}'],
        ),
    ],
    "patternProperties": [
        (
            {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}}},
            ['{"x": 1}', '{"xy": 5}', '{"ay": 6, "b": null}', '{"ay": null}'],
            ['{"x": null}', '{"xy": 4}', '{"ay": 4}'],
        ),
        (
            {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False},
            ["{}", '{"x1": 1}'],
            ['{"a": 1}'],
        ),
        (
            {"properties": {"xa": {"minimum": 1}}, "patternProperties": {"^x": {"maximum": 2}}},
            ['{"xa": 2}'],
            ['{"xa": 3}', '{"xa": 0}'],
        ),
    ],
    "propertyNames": [
        (
            {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2}},
            ['{"ab": 1}'],
            ['{"abc": 1}', '{"A": 1}'],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "required": ["a"]},
            ['{"a": 1, "b": 2}'],
            ['{"a": 1, "c": 2}'],
        ),
    ],
    "minProperties": [
        ({"type": "object", "minProperties": 1}, ['{"a": 1}', '{"a": 1, "b": 2}'], ["{}"]),
        (
            {
                "properties": {"a": {}, "b": {}, "c": {}},
                "additionalProperties": False,
                "minProperties": 2,
                "maxProperties": 2,
            },
            ['{"a": 1, "b": 1}', '{"a": 1, "c": 1}', '{"b": 1, "c": 1}'],
            ['{"a": 1}', '{"c": 1}', '{"a": 1, "b": 1, "c": 1}'],
        ),
        (
            {"properties": {"a": {}, "b": {}}, "required": ["b"], "maxProperties": 1},
            ['{"b": 1}'],
            ['{"a": 1, "b": 1}', '{"a": 1'],
        ),
    ],
    "dependentRequired": [
        ({"dependentRequired": {"a": ["b"]}}, ["{}", '{"b": 1}', '{"a": 1, "b": 1}'], ['{"a": 1}']),
        (
            {"dependencies": {"a": ["b"], "b": {"minProperties": 3}}},
            ['{"a": 1, "b": 1, "c": 1}'],
            ['{"a": 1}', '{"b": 1}'],
        ),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, ["{}", '{"a": 1, "b": 1}'], ['{"a": 1}']),
    ],
    "items": [
        ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1, 2]"], ['["a"]', "[1, null]"]),
        (
            {"prefixItems": [{"type": "null"}, {"type": "integer"}], "items": False},
            ["[]", "[null]", "[null, 1]"],
            ["[1]", "[null, 1, 2]"],
        ),
        (
            {"items": [{"type": "null"}], "additionalItems": {"type": "string"}},
            ["[null]", '[null, "a"]'],
            ["[null, 1]"],
        ),
        ({"type": "array", "minItems": 1, "maxItems": 2}, ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]"]),
        ({"prefixItems": [{}, False], "type": "array"}, ["[]", "[1]"], ["[1, 2]"]),
    ],
    "contains": [
        ({"type": "array", "contains": {"type": "null"}}, ["[null]", "[1, null, null]"], ["[]", "[1]"]),
        (
            {"contains": {"type": "null"}, "minContains": 2, "maxContains": 2},
            ["[null, 1, null]"],
            ["[null]", "[null, null, null]"],
        ),
        ({"contains": {"const": 1}, "maxItems": 2}, ["[2, 1]", "[1]"], ["[2, 2]", "[2, 2, 1]"]),
    ],
    "$ref": [
        (
            {
                "$ref": "#/$defs/list",
                "$defs": {
                    "list": {
                        "properties": {"next": {"$ref": "#/$defs/list"}},
                        "type": "object",
                        "additionalProperties": False,
                    }
                },
            },
            ["{}", '{"next": {"next": {}}}'],
            ['{"next": 1}', '{"last": {}}'],
        ),
        ({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[], [[]]]"], ["[1]", "[[]"]),
        (
            {"$id": "http://a/b", "items": {"$ref": "c"}, "$defs": {"x": {"$id": "c", "type": "null"}}},
            ["[null]"],
            ["[1]"],
        ),
        ({"items": {"$ref": "#here"}, "$defs": {"x": {"$anchor": "here", "type": "null"}}}, ["[null]"], ["[1]"]),
        ({"properties": {"$ref": {"type": "null"}}}, ['{"$ref": null}'], ['{"$ref": 1}']),
    ],
    "anyOf": [
        ({"anyOf": [{"type": "null"}, {"minimum": 3}]}, ["null", "3", '"a"'], ["2"]),
        (
            {
                "anyOf": [
                    {"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"a": {"const": 2}, "b": {}}, "required": ["a", "b"]},
                ],
                "type": "object",
            },
            ['{"a": 1}', '{"a": 2, "b": 0}'],
            ['{"a": 2}', '{"a": 3, "b": 0}'],
        ),
    ],
    "allOf": [
        ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, ["2", "4"], ["1", "5"]),
        (
            {"allOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["a"]}], "type": "object"},
            ['{"a": null}'],
            ["{}"],
        ),
        (
            {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
            ['{"a": 1}'],
            ['{"b": 1}'],
        ),
    ],
    "oneOf": [
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5"], ["3", "1.5"]),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
            ['{"a": 1}', '{"b": 1}'],
            ["{}", '{"a": 1, "b": 1}'],
        ),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": c}, c: {}}, "required": ["k", c], "additionalProperties": False}
                    for c in "xy"
                ]
            },
            ['{"k": "x", "x": 1}', '{"k": "y", "y": 1}'],
            ['{"k": "x", "y": 1}', '{"k": "x"}'],
        ),
        (
            {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]},
            ['"a"', '"b"'],
            ['"ab"', '"c"'],
        ),
    ],
    "not": [
        ({"not": {"type": "integer"}}, ["1.5", "null", '"1"'], ["1"]),
        ({"type": "string", "not": {"enum": ["a", "é"]}}, ['"b"', '"aa"', '""'], ['"a"', '"é"', r'"\u00e9"']),
        ({"type": "integer", "not": {"const": 5}}, ["4", "55", "-5"], ["5"]),
        ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
        ({"type": "object", "not": {"properties": {"a": {"type": "null"}}}}, ['{"a": 1}'], ["{}", '{"a": null}']),
        ({"not": {"anyOf": [{"type": "object"}, {"minimum": 0}]}}, ["-1"], ["{}", "1", "null"]),
        ({"type": "string", "not": {"pattern": "a"}}, ['"b"'], ['"ba"']),
    ],
    "if": [
        ({"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "string"}}, ["5", '"a"'], ["4", "1.5"]),
        (
            {
                "properties": {"a": {"enum": [1, 2]}, "b": {}},
                "required": ["a"],
                "if": {"properties": {"a": {"const": 1}}},
                "then": {"required": ["b"]},
            },
            ['{"a": 2}', '{"a": 1, "b": 0}'],
            ['{"a": 1}'],
        ),
    ],
    "unevaluatedProperties": [
        (
            {
                "allOf": [{"properties": {"a": {"type": "null"}}}, {"patternProperties": {"^x": {}}}],
                "properties": {"b": {}},
                "unevaluatedProperties": False,
            },
            ["{}", '{"b": 1, "a": null, "x1": 2}'],
            ['{"c": 1}', '{"a": 1}'],
        ),
        (
            {"$ref": "#/$defs/x", "unevaluatedProperties": {"type": "null"}, "$defs": {"x": {"properties": {"a": {}}}}},
            ['{"a": 1, "b": null}'],
            ['{"a": 1, "b": 2}'],
        ),
        (
            {"properties": {"a": {}}, "not": {"required": ["b"]}, "unevaluatedProperties": False},
            ['{"a": 1}'],
            ['{"b": 1}'],
        ),
        (
            {
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
                "properties": {"a": {}, "b": {}},
                "unevaluatedProperties": False,
            },
            ['{"a": 1}', '{"b": 1}', "3"],
            ['{"c": 1}', "{}"],
        ),
        ({"additionalProperties": {"type": "null"}, "unevaluatedProperties": False}, ['{"z": null}'], ['{"z": 1}']),
    ],
    "unevaluatedItems": [
        ({"allOf": [{"prefixItems": [{}, {}]}], "unevaluatedItems": False}, ["[1, 2]"], ["[1, 2, 3]"]),
        ({"items": {"type": "null"}, "unevaluatedItems": False}, ["[null, null]"], ["[1]"]),
    ],
    "annotations": [
        (
            {"title": "t", "description": "d", "default": 1, "examples": [2], "x-unknown": 3, "$comment": "c"},
            ["1", "{}"],
            [],
        ),
        ({"properties": {"a": {"uniqueItems": False, "nullable": True}}}, ['{"a": 1}'], []),
    ],
}


@pytest.mark.parametrize("keyword", TABLE)
def test_keyword(keyword: str) -> None:
    for schema, accepted, rejected in TABLE[keyword]:
        grammar = compile_schema(schema)
        assert not grammar.unchecked
        assert [text for text in accepted if not accepts(grammar, text)] == [], schema
        assert [text for text in rejected if accepts(grammar, text)] == [], schema


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "#/properties/a/uniqueItems"),
        ({"items": {"format": "colour"}}, "#/items/format"),
        ({"$defs": {"a/b": {"format": "x"}}, "$ref": "#/$defs/a~1b"}, "#/$defs/a~1b/format"),
    ],
)
def test_what_is_not_enforced_is_listed(schema: Any, path: str) -> None:
    assert compile_schema(schema).unchecked == [path]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"unevaluatedProperties": False, "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "#/anyOf"),
        ({"unevaluatedItems": False, "contains": {"type": "null"}}, "#/unevaluatedItems"),
        ({"items": {"not": {"propertyNames": {"maxLength": 3}}}}, "#/items/not/propertyNames"),
        ({"pattern": r"(a)\1"}, "#/pattern"),
        ({"patternProperties": {r"\bx": {}}}, "#/patternProperties"),
        ({"$ref": "http://example.com/other"}, "#/$ref"),
        ({"$ref": "#/$defs/gone"}, "#/$ref"),
        ({"oneOf": [{"propertyNames": {"maxLength": 3}}, {"propertyNames": {"maxLength": 4}}]}, "#/oneOf"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name_and_place(schema: Any, named: str) -> None:
    with pytest.raises(GrammarError) as problem:
        compile_schema(schema)
    assert str(problem.value).startswith(f"{named} ")


def test_json_is_any_object() -> None:
    grammar = compile_json()
    assert accepts(grammar, '{"a": [1, {"b": null}], "é": "x"}')
    assert not accepts(grammar, "[]")
    assert accepts(grammar, '{"a": ' + "[" * 60 + "]" * 60 + "}")
    assert grammar.advance_all(grammar.start, b'{"a": ' + b"[" * 100) is None  # so that every reader can parse it


def test_a_schema_may_be_text() -> None:
    assert accepts(compile_schema('{"type": "null"}'), "null")
