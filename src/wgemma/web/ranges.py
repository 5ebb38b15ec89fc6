"""HTTP's Range header: `bytes=first-last`, `bytes=first-` or `bytes=-length`. Multiple ranges are refused."""

import re

_ONE_RANGE = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_HUGE = 1 << 63


class Unsatisfiable(Exception):
    """The range is not in the file: status 416."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """[start, stop) of the requested bytes; None means all of them: there is no header, or its unit is unknown."""
    if header is None or not header.lower().startswith("bytes="):
        return None
    match = _ONE_RANGE.fullmatch(header)
    first, last = (_number(text) for text in match.groups()) if match else (None, None)
    if first is None and last is None:
        raise Unsatisfiable
    if first is None:
        start, stop = size - min(last or 0, size), size
    else:
        start, stop = first, min(_HUGE if last is None else last + 1, size)
    if start >= stop:  # past the end, empty, or reversed
        raise Unsatisfiable
    return start, stop


def _number(text: str) -> int | None:
    """The number; capped if it has more digits than any file size."""
    digits = text.lstrip("0")
    return None if not text else min(int(digits[:20] or "0"), _HUGE)
