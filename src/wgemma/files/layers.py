"""The layers of a model that is made here, its configuration, and the manifest that names them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wgemma.errors import StoreError
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import checked_digest, digest_of
from wgemma.files.manifests import LAYER, MAX_LAYERS, ManifestLayer
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_TEXT
from wgemma.files.registry import FAMILY

CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def file_layer(kind: str, digest: str, path: Path) -> ManifestLayer:
    return ManifestLayer(kind, digest, path.stat().st_size, None)


def text_layer(kind: str, text: bytes) -> ManifestLayer:
    return ManifestLayer(kind, digest_of(text), len(text), None)


def normal(layer: ManifestLayer) -> ManifestLayer:
    """The layer with its digest as wgemma writes it."""
    digest = checked_digest(layer.digest.replace("sha256-", "sha256:").lower())
    return ManifestLayer(layer.kind, digest, layer.size, layer.parent)


def check_layers(name: Name, layers: Sequence[ManifestLayer]) -> None:
    """Raises `StoreError` for more than a reader takes: what a model is built upon counts, too."""
    if len(layers) > MAX_LAYERS:
        reason = f"{name} would have {len(layers)} layers; the limit is {MAX_LAYERS}. Leave out licenses or adapters."
        raise StoreError(reason, "bad_recipe")
    if sum(layer.size for layer in layers if layer.kind == "license") > MAX_TEXT:
        raise StoreError(f"{name} would have more than {MAX_TEXT >> 20} MiB of licenses.", "bad_recipe")


def is_projector(gguf: Gguf) -> bool:
    return gguf.metadata.get("general.architecture") == "clip"


def is_adapter(gguf: Gguf) -> bool:
    return gguf.metadata.get("general.type") == "adapter"


def config_of(gguf: Gguf, name: str, label: str) -> dict[str, Any]:
    """The configuration of a model in a file, if it is a Gemma 4."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture != FAMILY:
        reason = f"the architecture of {name} is {architecture!r:.80}; wgemma runs {FAMILY} only."
        raise StoreError(reason, "unsupported_architecture")
    if is_adapter(gguf):
        raise StoreError(
            f"{name}: this is a LoRA adapter, not a model. In a Modelfile, name it as ADAPTER.", "bad_recipe"
        )
    billions = sum(tensor.elements for tensor in gguf.tensors.values()) / 1e9
    return {
        "model_format": "gguf",
        "model_family": FAMILY,
        "model_families": [FAMILY],
        "model_type": f"{billions:.1f}B" if billions >= 0.1 else f"{1e3 * billions:.1f}M",
        "file_type": label,
        "renderer": FAMILY,
        "parser": FAMILY,
    }


def manifest_of(config: bytes, layers: Sequence[ManifestLayer]) -> tuple[bytes, list[ManifestLayer]]:
    """A manifest, and all that it names."""
    first = text_layer(CONFIG, config)
    entries = [
        {"mediaType": LAYER + layer.kind, "digest": layer.digest, "size": layer.size}
        | ({"from": layer.parent} if layer.parent else {})
        for layer in layers
    ]
    fields = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": first.digest, "size": first.size},
        "layers": entries,
    }
    return as_json(fields), [first, *layers]


def as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
