"""The messages of a request, in wgemma's own shape: media are bytes, never a path or an address to fetch."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from wgemma.errors import MediaError
from wgemma.files.images import from_base64, image_size
from wgemma.files.sounds import sound_format, sound_seconds
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import Fields
from wgemma.serve.problems import Problem, bad

_HEAD = 4096  # characters that tell what is in base64; a multiple of four


class Media:
    """Reads the pictures and sounds of one request, and refuses too many of them."""

    def __init__(self) -> None:
        self.pictures = 0
        self.seconds = 0.0

    def picture(self, text: Any, where: str) -> dict[str, Any]:
        """A part from base64 or a data: URL."""
        data = self._bytes(text, where, "picture")
        try:
            width, height = image_size(data)
        except MediaError:
            raise unreadable("picture", where) from None
        self.pictures += 1
        if self.pictures > BOUNDS.pictures:
            raise bad(f"The request has more than {BOUNDS.pictures} pictures.", where)
        if width * height > BOUNDS.pixels:
            limit = BOUNDS.pixels // 10**6
            raise bad(f"{where} has {width}×{height} pixels; the limit is {limit} million.", where)
        return {"type": "image", "image": data}

    def either(self, text: Any, where: str) -> dict[str, Any]:
        """A picture, or a sound that is sent in its place."""
        if isinstance(text, str) and sound_format(self._bytes(text[:_HEAD], where, "picture")):
            return self.sound(text, where)
        return self.picture(text, where)

    def sound(self, text: Any, where: str) -> dict[str, Any]:
        data = self._bytes(text, where, "sound")
        self.listen(data, where)
        return {"type": "audio", "audio": data}

    def listen(self, data: bytes, where: str) -> None:
        """Counts the seconds of a sound."""
        try:
            self.seconds += sound_seconds(data)
        except MediaError:
            raise unreadable("sound", where) from None
        if self.seconds > BOUNDS.seconds:
            raise bad(f"The request has more than {BOUNDS.seconds / 60:g} minutes of sound.", where)

    def _bytes(self, text: Any, where: str, kind: str) -> bytes:
        if not isinstance(text, str):
            raise bad(f"{where} must be the {kind} in base64.", where)
        if "://" in text[:20]:
            raise bad(f"{where} is an address, and the server fetches nothing: send a data: URL.", where)
        try:
            return from_base64(text, kind)
        except MediaError:
            raise bad(f"{where} is not a {kind} in base64.", where) from None


def unreadable(kind: str, where: str) -> Problem:
    forms = "PNG, JPEG, WebP or GIF" if kind == "picture" else "WAV, MP3, FLAC or Ogg"
    return bad(f"{where} is not a {kind} the server can read: damaged, too large, or no {forms}.", where)


def checked_chat(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, if there are any and they are of a bearable length. System messages at the start become one."""
    total = sum(len(text) for message in messages for text in _texts(message))
    if total > BOUNDS.prompt:
        raise bad(f"The messages have {total} characters; the limit is {BOUNDS.prompt}.", "messages")
    if not messages:
        raise bad("messages is empty.", "messages")
    first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if first == len(messages):
        raise bad("There is no message to answer: all of them are system messages.", "messages")
    said = [text for message in messages[:first] if (text := plain_text(message["content"]).strip())]
    return [*([{"role": "system", "content": "\n\n".join(said)}] if said else []), *messages[first:]]


def plain_text(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part["type"] == "text")
    return content or ""


def simplest(parts: list[dict[str, Any]]) -> Any:
    """Parts as content; one text is just that."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def tool(name: str, description: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A declaration in wgemma's shape, which is OpenAI's."""
    function: dict[str, Any] = {"name": name, "description": description}
    if parameters:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def checked_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(json.dumps(tools)) > BOUNDS.schema:
        raise bad(f"The tools are larger than {BOUNDS.schema >> 10} KiB.", "tools")
    names = [tool["function"]["name"] for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise bad(f"Two tools are called {name[:80]}.", "tools")
    return tools


def checked_choice(choice: str, tools: Iterable[Mapping[str, Any]], where: str = "tool_choice") -> str:
    """A choice that the tools allow."""
    names = [tool["function"]["name"] for tool in tools]
    if choice in ("auto", "none"):
        return choice
    if not names or (choice != "required" and choice not in names):
        what = "a tool" if choice == "required" else f"the tool {choice[:80]}"
        raise bad(f"{where} wants {what} to be called, but there is none.", where)
    return choice


def arguments(value: Any, where: str) -> dict[str, Any]:
    """The arguments of a call, as JSON text or as an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value.strip() or "{}")
        except (ValueError, RecursionError):
            raise bad(f"{where} must be a JSON object, as text.", where) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(f"{where} must be a JSON object.", where)
    return value


def text_or_parts(fields: Fields, name: str) -> str | list[Fields]:
    """Content that may be a string or a list of blocks; null is empty."""
    value = fields.any(name)
    if value is None or isinstance(value, str):
        return value or ""
    return list(fields.objects(name, BOUNDS.messages))


def _texts(message: Mapping[str, Any]) -> Iterable[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if part["type"] == "text":
            yield part["text"]
    if message.get("thinking"):
        yield message["thinking"]
