"""The rows of a requests file, read one after the other: the file is never in memory as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import parse
from wgemma.serve.openai_routes import ANSWERS, EMBEDDINGS
from wgemma.serve.problems import Problem

PATHS = (*ANSWERS, EMBEDDINGS)
LONGEST = 512  # characters of a custom_id


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, counted from 1. `text` is None if it is too long; `size` is what it takes in the file."""

    number: int
    text: bytes | None
    size: int


@dataclass(frozen=True, slots=True)
class Request:
    line: Line
    custom_id: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is no request. `custom_id` is there if that much could be read."""

    line: Line
    code: str
    message: str
    custom_id: str | None = None


Row: TypeAlias = Request | BadRow


def read_rows(file: IO[bytes]) -> Iterator[Row]:
    for line in read_lines(file):
        yield read_row(line)


def read_lines(file: IO[bytes], longest: int = BOUNDS.body) -> Iterator[Line]:
    """The lines of a file, without blank ones."""
    number = 0
    while text := file.readline(longest):
        number, size, last = number + 1, len(text), text
        while not last.endswith(b"\n") and (last := file.readline(longest)):
            size += len(last)
        if size > longest or text.strip():
            yield Line(number, text.strip() if size <= longest else None, size)


def read_row(line: Line) -> Row:
    """What a line asks for."""
    if line.text is None:
        return BadRow(line, "line_too_long", f"Line {line.number} is longer than {BOUNDS.body >> 20} MiB.")
    try:
        fields = parse(line.text).raw
    except Problem as problem:
        return BadRow(line, "invalid_json_line", problem.message.replace("The body", f"Line {line.number}", 1))
    custom_id, path, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST:
        wanted = f"a text of 1 to {LONGEST} characters"
        return BadRow(line, "missing_custom_id", f"Line {line.number} has no custom_id, {wanted}.")
    if fields.get("method") != "POST":
        return BadRow(line, "invalid_method", f'Line {line.number}: method must be "POST".', custom_id)
    if path not in PATHS:
        return BadRow(line, "invalid_url", f"Line {line.number}: url must be one of {', '.join(PATHS)}.", custom_id)
    if not isinstance(body, dict):
        return BadRow(line, "invalid_body", f"Line {line.number}: body must be an object.", custom_id)
    if body.get("stream"):
        said = f"Line {line.number}: the answers of a batch are whole; leave stream out."
        return BadRow(line, "invalid_body", said, custom_id)
    return Request(line, custom_id, path, body)
