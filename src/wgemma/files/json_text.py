"""JSON from outside, which is treated as hostile: whatever is wrong with it is a `ValueError` that says what.

Python also accepts NaN, Infinity and numbers that no float holds; here they are refused, like deep nesting.
"""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 64


def parse_json(data: bytes | str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value in `data`; `pairs` makes objects. The error completes a sentence: "is not JSON: …"."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except ValueError as error:  # also for an integer of thousands of digits
        reason = str(error) if str(error).startswith("a number") else "a number is too long"
        raise ValueError(f"not JSON: {reason}") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def decoder() -> json.JSONDecoder:
    """For one value after another."""
    return json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse(_name: str) -> Any:
    raise ValueError("a number is not finite")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number
