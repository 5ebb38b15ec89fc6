"""What a model's manifest names, and what its messages may be. Both are other people's JSON."""

from dataclasses import dataclass
from typing import Any

from wgemma.errors import StoreError
from wgemma.files.json_text import parse_json
from wgemma.files.names import Name

LAYER = "application/vnd.ollama.image."  # begins every layer's media type
MAX_LAYERS = 256  # real manifests have a handful

ROLES = ("system", "user", "assistant")  # of a model's own messages


@dataclass(frozen=True, slots=True)
class ManifestLayer:
    """One blob of a model: its kind (`model`, `params`, …), and its digest and size as the manifest claims them."""

    kind: str
    digest: str
    size: int
    parent: str | None


def json_value(data: bytes, what: str) -> Any:
    """JSON in bytes from outside; `what` names it in the error."""
    try:
        return parse_json(data)
    except ValueError as error:
        raise StoreError(f"{what} is {error}. Pull or create the model again.", "bad_manifest") from None


def is_message(value: Any) -> bool:
    """Whether this can be one of a model's own messages: a role and a text."""
    return isinstance(value, dict) and value.get("role") in ROLES and isinstance(value.get("content"), str)


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object in bytes from outside; `what` names it in the error."""
    value = json_value(data, what)
    if not isinstance(value, dict):
        raise StoreError(f"{what} is not a JSON object. Pull or create the model again.", "bad_manifest")
    return value


def parse_layers(entries: Any, name: Name) -> list[ManifestLayer]:
    """A manifest's layers, well formed; digests are not looked at."""
    valid = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not valid or len(entries) > MAX_LAYERS:
        raise StoreError(f"the manifest of {name} has no valid layers. Pull or create it again.", "bad_manifest")
    layers = []
    for entry in entries:
        kind, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
        well_formed = isinstance(kind, str) and isinstance(digest, str) and type(size) is int and 0 <= size < 1 << 63
        if not well_formed:
            raise StoreError(f"the manifest of {name} has a layer without a type, digest or size.", "bad_manifest")
        parent = entry.get("from")
        layers.append(
            ManifestLayer(kind.removeprefix(LAYER), digest, size, parent if isinstance(parent, str) else None)
        )
    return layers
