"""Random schemas and values that often fit each other."""

from random import Random
from typing import Any

NAMES = ["a", "b", "c", "é", 'q"']
TEXTS = ["", "a", "ab", "abc", "b", "aé", 'x"\\', "😀", "\n", "abab"]
PATTERNS = ["a", "^a", "b$", "^[ab]*$", "^(a|bc)+$", "^.{2}$", "a.*b", "^$", "^(?!a)", "é|b"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
LIMITS = [-5, 0, 1, 3, 7.5, 0.25, -0.5, 20]
NUMBERS = [0, 1, 2, 3, -5, 7, 12, 20, 0.5, -1.5, 2.25, 7.5, 1e-7, 123456789]


class Maker:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def value(self, depth: int = 0) -> Any:
        draw = self.draw
        kind = draw.randrange(7 if depth < 2 else 4)
        if kind == 0:
            return draw.choice([None, True, False])
        if kind == 1:
            return draw.choice(NUMBERS)
        if kind < 4:
            return draw.choice(TEXTS)
        if kind == 4:
            return [self.value(depth + 1) for _ in range(draw.randrange(4))]
        return {name: self.value(depth + 1) for name in draw.sample(NAMES, draw.randrange(4))}

    def schema(self) -> Any:
        definitions = {"x": self.part(1), "y": self.part(1)}
        return {**self.keywords(0), "$defs": definitions}

    def part(self, depth: int) -> Any:
        draw = self.draw
        chance = draw.random()
        if chance < 0.1:
            return draw.random() < 0.8
        if chance < 0.3 or depth > 3:
            return {"type": draw.choice(TYPES)}
        return self.keywords(depth)

    def parts(self, depth: int) -> list[Any]:
        return [self.part(depth + 1) for _ in range(self.draw.randint(1, 3))]

    def members(self, depth: int) -> dict[str, Any]:
        return {name: self.part(depth + 1) for name in self.draw.sample(NAMES, self.draw.randint(1, 3))}

    def keywords(self, depth: int) -> dict[str, Any]:
        draw = self.draw
        words = draw.sample(WORDS, draw.randint(1, 4))
        if draw.random() < 0.5:
            words = ["type", *words]
        return {word: self.keyword(word, depth) for word in words}

    def keyword(self, word: str, depth: int) -> Any:
        draw = self.draw
        match word:
            case "type":
                return draw.choice(TYPES) if draw.random() < 0.6 else draw.sample(TYPES, 3)
            case "enum":
                return [self.value() for _ in range(draw.randint(1, 5))]
            case "const":
                return self.value()
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
                return draw.choice(LIMITS)
            case "multipleOf":
                return draw.choice([1, 2, 3, 0.25, 1.5])
            case "pattern":
                return draw.choice(PATTERNS)
            case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
                return draw.randrange(4) + word.startswith("max")
            case "prefixItems" | "allOf" | "anyOf" | "oneOf":
                return self.parts(depth)
            case "properties":
                return self.members(depth)
            case "required":
                return draw.sample(NAMES, draw.randint(1, 2))
            case "patternProperties":
                return {draw.choice(PATTERNS): self.part(depth + 1) for _ in range(draw.randint(1, 2))}
            case "propertyNames":
                return draw.choice([{"pattern": draw.choice(PATTERNS)}, {"maxLength": 1}, {"enum": NAMES[:3]}])
            case "dependentRequired":
                return {name: draw.sample(NAMES, 1) for name in draw.sample(NAMES, 2)}
            case "dependentSchemas":
                return {draw.choice(NAMES): self.part(depth + 1)}
            case "$ref":
                return draw.choice(["#/$defs/x", "#/$defs/y"])
        return self.part(depth + 1)  # items, additionalProperties, contains, not, if, then, else


WORDS = [
    *("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "prefixItems", "items", "contains"),
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "properties", "items"),
]
