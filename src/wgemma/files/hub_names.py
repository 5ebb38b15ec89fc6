"""What people paste for a model on Hugging Face: a name, or the address of a repository, a folder or a file in it."""

import re
from urllib.parse import parse_qs, unquote

from wgemma.errors import StoreError
from wgemma.files.labels import label_of
from wgemma.files.parts import whole_name
from wgemma.files.web import without_password

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")  # of a user, a repository or a tag
_FORMS = "Write hf.co/user/repo, hf.co/user/repo:Q4_K_M, or the address of a .gguf file there."


def hub_name(text: str, path: str) -> tuple[str, str, str]:
    """User, repository and tag in `text`, of which `path` follows the host; the tag is empty if it names none. A file's
    tag is its name, so that exactly this file is meant, or the quantisation that its folder is called by."""
    path, _, query = path.partition("#")[0].partition("?")
    pieces = path.strip("/").split("/")
    if len(pieces) < 2:
        raise _no_model(text)
    user, repository, *place = pieces
    repository, colon, tag = repository.partition(":")
    if "show_file_info" in (asked := parse_qs(query)) and not place:  # a repository's page with a file opened in it
        place = ["blob", "main", asked["show_file_info"][0]]
    if (place and colon) or (colon and not tag):
        raise _no_model(text)
    if place:
        tag = _tag(text, *place[:2], path=unquote("/".join(place[2:])))
    if not all(_PART.fullmatch(part) for part in (user, repository, tag or "x")):
        raise _no_model(text)
    return user, repository, tag


def _tag(text: str, kind: str, revision: str = "", *, path: str) -> str:
    """The tag for /tree/main/FOLDER, /blob/main/FILE and the like; empty for all of it."""
    if kind not in ("tree", "blob", "resolve", "raw") or not revision:
        raise _no_model(text)
    if revision != "main":
        raise StoreError(f"{_shown(text)}: wgemma pulls from the branch main only. {_FORMS}", "invalid_name")
    if not path:
        return ""
    if kind == "tree":
        path += "/"
    elif not path.lower().endswith(".gguf"):
        raise _no_model(text)
    label, file = label_of(path), whole_name(path).rpartition("/")[2]
    stem = file[: -len(".gguf")]
    if _PART.fullmatch(stem) and (label_of(file) or not label):
        return stem
    if not label:
        raise _no_model(text)
    return label


def _no_model(text: str) -> StoreError:
    return StoreError(f"{_shown(text)} is not a model on Hugging Face. {_FORMS}", "invalid_name")


def _shown(text: str) -> str:
    return f"{without_password(text)!r:.200}"
