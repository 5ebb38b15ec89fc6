"""Images and sounds in messages: what kind a message part is, and where its content is.

    {"type": "image", "image": …, "budget": 280}   a path, the bytes of a file, base64, a data: URL, an array, …
    {"type": "audio", "audio": …, "rate": 16000}   likewise; `rate` goes with an array
    {"type": …, "path": …} or "data" or "url"      a path, base64 or bytes, a data: or file: URL
    {"type": "image_url", "image_url": {"url": "data:…"}}
    {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}

The last two are OpenAI's and come over the network, so they never name a file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from wgemma.checks import shown
from wgemma.errors import TemplateError
from wgemma.files.images import from_base64

KINDS: dict[str, Literal["image", "audio"]] = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "input_audio": "audio",
}
WORDS = {"image": "picture", "audio": "sound"}


@dataclass(frozen=True, slots=True)
class Content:
    """What `read_image` or `read_sound` takes, an image's token budget (None: the default), and a name for error
    messages."""

    kind: Literal["image", "audio"]
    source: Any
    budget: int | None = None
    name: str = ""


def content_of(part: Mapping[str, Any]) -> Content:
    """The image or sound of a message part."""
    name = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(name, str) and name == "video":
        raise TemplateError("videos are not supported. Send some of the frames as images, in order.")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise TemplateError(f'{shown(part)} is no image or sound; write {{"type": "image", "image": "cat.png"}}.')
    budget = part.get("budget") if kind == "image" else None
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool)):
        raise TemplateError(f"the budget of an image is {shown(budget)}; it must be 70, 140, 280, 560 or 1120 tokens.")
    if name == "image_url":
        return Content(kind, _data_url(_inner(part, "image_url", "url"), kind), budget)
    if name == "input_audio":
        return Content(kind, _decoded(_inner(part, "input_audio", "data"), kind))
    return Content(kind, _source(part, kind), budget, part["path"] if isinstance(part.get("path"), str) else "")


def _source(part: Mapping[str, Any], kind: str) -> Any:
    if part.get(kind) is not None:
        source = part[kind]
        if isinstance(source, Mapping):  # such as {"url": …}
            return _source({"type": kind, **{key: source.get(key) for key in ("path", "data", "url")}}, kind)
        return (source, part["rate"]) if kind == "audio" and "rate" in part else source
    if isinstance(part.get("path"), str | os.PathLike):
        return Path(part["path"])
    if part.get("data") is not None:
        return _decoded(part["data"], kind)
    if isinstance(part.get("url"), str):
        return file_of(part["url"]) or _data_url(part["url"], kind)
    raise TemplateError(
        f'a part of type "{kind}" is empty; write {{"type": "{kind}", "{kind}": a path or the bytes of a file}}.'
    )


def _inner(part: Mapping[str, Any], outer: str, key: str) -> Any:
    value = part.get(outer)
    found = value.get(key) if isinstance(value, Mapping) else value
    if found is None:
        raise TemplateError(f'a part of type "{outer}" is empty; write {{"{outer}": {{"{key}": …}}}}.')
    return found


def _data_url(url: Any, kind: str) -> bytes:
    if not isinstance(url, str) or url[:5].lower() != "data:":
        raise TemplateError(
            f"wgemma does not fetch a {WORDS[kind]} from the web: {shown(url)} must be a data: URL. "
            "Download it and send its bytes."
        )
    return from_base64(url, WORDS[kind])


def _decoded(data: Any, kind: str) -> Any:
    return from_base64(data, WORDS[kind]) if isinstance(data, str) else data


def file_of(url: str) -> Path | None:
    """The local path of a file: URL; None for any other URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(unquote(parts.path))
