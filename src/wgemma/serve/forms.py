"""Reads multipart forms, for the one endpoint that takes a file. The body is in memory already, and bounded."""

import re
from dataclasses import dataclass

from wgemma.serve.problems import bad

MOST_PARTS = 64
_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(r'(?:^|;)\s*name="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Form:
    values: dict[str, bytes]

    def text(self, name: str) -> str:
        return self.values.get(name, b"").decode(errors="replace").strip()


def parse_form(content_type: str, body: bytes) -> Form:
    """The parts of a form by name; of several with one name the last."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise bad("Send the file as multipart/form-data.")
    mark = b"--" + (found[1] or found[2]).encode(errors="replace")
    pieces = (b"\r\n" + body).split(b"\r\n" + mark, MOST_PARTS + 1)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise bad("The form is incomplete.")
    values = {}
    for piece in pieces[1:-1]:
        head, gap, value = piece.partition(b"\r\n\r\n")
        name = _name(head.decode(errors="replace"))
        if not gap or name is None:
            raise bad("The form has a part without a name.")
        values[name] = value
    return Form(values)


def _name(head: str) -> str | None:
    for line in head.split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            found = _NAME.search(value)
            return found[1] if found else None
    return None
