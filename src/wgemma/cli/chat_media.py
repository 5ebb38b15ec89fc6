"""Images and sounds for a chat: files named by the user, and paths dragged into a line.

A file is read when it is attached, so it can be moved or deleted afterwards. Knows no terminal and no model.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from wgemma.errors import MediaError
from wgemma.files.images import check_picture, contents, image_format
from wgemma.files.paths import user_path
from wgemma.files.sounds import check_sound, sound_format
from wgemma.text.parts import file_of

Content: TypeAlias = str | list[dict[str, Any]]  # of a message

# Which paths in a line are worth opening; the first bytes then say what the file is.
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus"}
PATH_STARTS = ("/", "./", "../", "~/", ".\\", "..\\", "file:")
# A word: quoted, or with escaped spaces, the way terminals paste a dropped file.
_WORD = re.compile(r"""(?<!\S)(?:'([^']+)'|"([^"]+)"|((?:\\.|[^\s\\])+))""")


def attach(path: str | Path, kind: str | None = None, budget: int | None = None) -> dict[str, Any]:
    """The file as a message part. `kind` is what the user calls it; with None, its first bytes decide."""
    where = user_path(path, MediaError)
    word, recognise = ("sound", sound_format) if kind == "audio" else ("picture", image_format)
    name, view = contents(where, word, recognise)
    if kind is None:
        kind = "image" if image_format(view) else "audio" if sound_format(view) else None
    if kind is None:
        raise MediaError(
            f"{path} is neither a picture nor a sound. Use a PNG, JPEG, WebP, GIF, WAV, MP3, FLAC or Ogg file."
        )
    (check_sound if kind == "audio" else check_picture)(name, view)
    part = {"type": kind, kind: bytes(view), "path": str(where.absolute())}
    return part | {"budget": budget} if budget is not None and kind == "image" else part


def find(line: str) -> tuple[str, list[Path]]:
    """Splits a line into its text and the paths of the images and sounds in it; one that is not there raises
    `MediaError`."""
    found: list[Path] = []

    def look(word: re.Match[str]) -> str:
        path = _path(word)
        if path is None:
            return word[0]
        found.append(path)
        return ""

    text = _WORD.sub(look, line)
    return (re.sub(r"[ \t]+", " ", text).strip(), found) if found else (line, [])


def named_media(words: Sequence[str]) -> tuple[str, list[Path]]:
    """The text of a command line's words, and the images and sounds they name: as a word of its own, which may have
    spaces, or within one line of text."""
    files = [Path(word).expanduser() for word in words if _is_media(word)]
    text = " ".join(word for word in words if not _is_media(word))
    text, within = find(text) if "\n" not in text else (text, [])
    return text, files + within


def _is_media(word: str) -> bool:
    try:
        return Path(word).suffix.lower() in SUFFIXES and Path(word).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False


def _path(word: re.Match[str]) -> Path | None:
    """The image or sound a word names. A path needs a slash or quotation marks; any other word is just text, and so is
    one that names no file, unless it begins as only a path does."""
    quoted, bare = word[1] or word[2], word[3]
    text = quoted or (bare if sys.platform == "win32" else re.sub(r"\\(.)", r"\1", bare))
    if not quoted and not any(slash in text for slash in "/\\"):
        return None
    for candidate in (text, text.rstrip("?.,;:!)")):  # "what is in /tmp/cat.png?"
        try:
            path = file_of(candidate) or Path(candidate).expanduser()
            if path.suffix.lower() not in SUFFIXES:
                continue
            if path.is_file():
                return path
        except (OSError, RuntimeError, ValueError):
            return None
        if candidate.startswith(PATH_STARTS):
            raise MediaError(f"{candidate}: no such file. To mention a file without sending it, leave out the slashes.")
    return None


def message(text: str, media: Sequence[dict[str, Any]]) -> Content:
    """The content of a message: media first, then the text about them."""
    if not media:
        return text
    return [*media, {"type": "text", "text": text}] if text.strip() else list(media)


def name_of(part: dict[str, Any]) -> str:
    """image cat.png"""
    path = part.get("path")
    return f"{part.get('type')} {Path(path).name}" if isinstance(path, str) else str(part.get("type"))


def shown(content: Any) -> str:
    """A message's content as text, with media as [image cat.png]."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return "(not text)"
    texts = (str(part.get("text", "")) if part.get("type") == "text" else f"[{name_of(part)}]" for part in content)
    return " ".join(texts)


# -- in a file


def packed(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the bytes of their media; only the paths are kept."""
    return _each_part(messages, lambda part: {k: v for k, v in part.items() if not isinstance(v, bytes)})


def unpacked(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the bytes of their media read back; a missing file raises `MediaError`."""

    def full(part: dict[str, Any]) -> dict[str, Any]:
        kind, path = part.get("type"), part.get("path")
        missing = kind in ("image", "audio") and kind not in part and isinstance(path, str)
        return attach(str(path), str(kind), part.get("budget")) if missing else part

    return _each_part(messages, full)


def _each_part(
    messages: Sequence[dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    changed = []
    for said in messages:
        content = said.get("content")
        if isinstance(content, list):
            said = {**said, "content": [change(part) if isinstance(part, dict) else part for part in content]}
        changed.append(said)
    return changed
