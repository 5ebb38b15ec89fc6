"""JSON from a file, which is treated as hostile: whatever is wrong with it is a `ValueError` that says what.

Its numbers are as large as they like, and NaN and Infinity are numbers, too: who uses one checks its range.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 32


def parse_json(data: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value in `data`. The error completes a sentence: "is not valid JSON". `pairs` makes objects."""
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs)
    except (ValueError, RecursionError):  # ValueError also for an integer of thousands of digits
        raise ValueError("is not valid JSON") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
    if level:
        raise ValueError(f"nests deeper than {MAX_DEPTH} levels")
    return value


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
