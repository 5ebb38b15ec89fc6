"""What a docstring says: its first paragraph, and the description of every argument."""

import inspect
import re

_GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters|Params):[ \t]*\n((?:[ \t]+.*(?:\n|$)|[ \t]*\n)+)", re.MULTILINE)
_NUMPY = re.compile(r"^Parameters\n-{3,}[ \t]*\n((?:.*(?:\n|$))*?)(?=^\S.*\n-{3,}|\Z)", re.MULTILINE)
_REST = re.compile(r"^:param\s+(?:[^:\n]*\s)?(\w+):[ \t]*(.*(?:\n(?!\s*:|\s*$).*)*)", re.MULTILINE)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)", re.DOTALL)
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?::[^\n]*)?\n(.*)", re.DOTALL)
_SECTION = re.compile(r"^(?::\w+|(?:Args|Arguments|Parameters|Params|Returns|Raises|Yields):?\s*$)", re.MULTILINE)


def first_paragraph(text: str) -> str:
    """The first paragraph in one line, unless it is a list of arguments."""
    section = _SECTION.search(text)
    return _in_one_line((text[: section.start()] if section else text).strip().partition("\n\n")[0])


def described_arguments(text: str) -> dict[str, str]:
    """What the docstring says about each argument, in Google's, NumPy's or reST style."""
    google, numpy = _GOOGLE.search(text), _NUMPY.search(text)
    if google:
        pairs = [_GOOGLE_ENTRY.fullmatch(entry) for entry in _entries(inspect.cleandoc("\n" + google[1]))]
    elif numpy:
        pairs = [_NUMPY_ENTRY.fullmatch(entry) for entry in _entries(inspect.cleandoc("\n" + numpy[1]))]
    else:
        pairs = list(_REST.finditer(text))
    return {found[1]: _in_one_line(found[2]) for found in pairs if found}


def _entries(block: str) -> list[str]:
    """A list of entries, each with the lines that are indented below it."""
    return [entry.strip() for entry in re.split(r"\n(?=\S)", block.strip()) if entry.strip()]


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
