"""Random schemas whose values are short, and sets of tools that take such values."""

from random import Random
from typing import Any

WORDS = ["red", "green", "blue", "a b", "naïve", 'say "hi"', "x-1", "", "日本", "true"]
NAMES = ["name", "size", "to do", "é", "Unit", "b2", "is_ok", "tags"]


class Maker:
    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def object(self, depth: int = 0) -> dict[str, Any]:
        names = self.draw.sample(NAMES, self.draw.randint(1, 4))
        required = [name for name in names if self.draw.random() < 0.7]
        properties = {name: self.value(depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def value(self, depth: int = 0) -> dict[str, Any]:
        draw = self.draw
        match draw.choice(
            ["text", "text", "whole", "number", "bool", "enum", "const", "pattern", "date", "deep", "deep"]
        ):
            case "text":
                least = draw.randrange(4)
                return {"type": "string", "minLength": least, "maxLength": least + draw.randrange(12)}
            case "whole":
                least = draw.randint(-300, 300)
                return {"type": "integer", "minimum": least, "maximum": least + draw.randrange(1000)}
            case "number":
                return {"type": "number", "minimum": -2, "exclusiveMaximum": 40, "multipleOf": draw.choice([0.5, 0.01])}
            case "bool":
                return {"type": draw.choice(["boolean", "null", ["boolean", "null"]])}
            case "enum":
                return {"enum": draw.sample(WORDS, 3)}
            case "const":
                return {"const": draw.choice([*WORDS, 7, None, True])}
            case "pattern":
                return {
                    "type": "string",
                    "pattern": draw.choice(["^[a-f]{2,5}$", "^(ab|c){1,3}\\d$", "^\\w{3}-\\d{2}$"]),
                }
            case "date":
                return {"type": "string", "format": draw.choice(["date", "ipv4", "uuid"])}
        if depth > 2:
            return {"type": "boolean"}
        match draw.randrange(3):
            case 0:
                return {"type": "array", "items": self.value(depth + 1), "minItems": draw.randrange(2), "maxItems": 3}
            case 1:
                return {"anyOf": [self.value(depth + 1), {"type": "integer", "minimum": 0, "maximum": 9}]}
        return self.object(depth)

    def tools(self) -> list[dict[str, Any]]:
        names = self.draw.sample(["find", "add_up", "get-it", "stop", "Weather2"], self.draw.randint(1, 3))
        return [{"type": "function", "function": {"name": name, "parameters": self.object()}} for name in names]
