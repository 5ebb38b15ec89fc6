"""What to download for a model in a registry that speaks Ollama's protocol: its manifest, and its blobs' addresses.

Manifests are the registry's word, so every name, digest, count and size in them is checked before anything is made of
it. Registries are asked by https; one on this machine's loopback, by http.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wgemma.errors import SourceError, StoreError
from wgemma.files.fetching import ATTEMPTS, PAUSE, TIMEOUT, Blob
from wgemma.files.keeping import checked_digest
from wgemma.files.manifests import ManifestLayer, json_object, parse_layers
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_JSON, MAX_TEXT
from wgemma.files.web import BadStatus, Manners, Pace, is_loopback, request_whole

if TYPE_CHECKING:
    from http.client import HTTPMessage

MAX_BLOB = 1 << 40  # bytes
LARGE = frozenset(("model", "projector", "adapter", "draft"))  # layers that are no texts
ACCEPT = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
FAMILY = "gemma4"


@dataclass(frozen=True, slots=True)
class Plan:
    """A model to be stored: its manifest, what the manifest names, and where to get that, or its very text."""

    manifest: bytes
    layers: Sequence[ManifestLayer]
    blobs: Sequence[Blob]
    texts: Sequence[bytes] = ()


def registry_plan(name: Name) -> Plan:
    """The plan for a model in the registry `name.host`."""
    base = f"{_scheme(name.host)}://{name.host}/v2/{name.namespace}/{name.model}"
    try:
        manifest, _ = small(f"{base}/manifests/{name.tag}", MAX_JSON, Manners(strict=True, headers=ACCEPT))
    except BadStatus as error:
        raise _refusal(name, error) from None
    _check_family(name, manifest, base)
    layers = manifest_layers(manifest, name)
    if not any(layer.kind == "model" for layer in layers[1:]):
        raise StoreError(f"{name} has no model file.", "no_model_layer")
    blobs = {layer.digest: Blob(f"{base}/blobs/{layer.digest}", layer.digest, layer.size) for layer in layers}
    return Plan(manifest, layers, list(blobs.values()))


def _scheme(host: str) -> str:
    return "http" if is_loopback(host.rpartition(":")[0] or host) else "https"


def _refusal(name: Name, error: BadStatus) -> StoreError:
    if error.status in (401, 403):
        return StoreError(f"{name}: {name.host} wants a login, which wgemma does not have.", "not_in_registry")
    if error.status == 404:
        return StoreError(f"{name}: {name.host} has no such model.", "not_in_registry")
    return StoreError(str(error), "not_in_registry")


def manifest_layers(manifest: bytes, name: Name) -> list[ManifestLayer]:
    """The configuration and the layers of a manifest from outside, all of them plausible."""
    fields = json_object(manifest, f"the manifest of {name}")
    entries = fields.get("layers")
    layers = parse_layers([fields.get("config"), *(entries if isinstance(entries, list) else [None])], name)
    sizes: dict[str, int] = {}
    for i, layer in enumerate(layers):
        checked_digest(layer.digest)
        most = MAX_BLOB if i and layer.kind in LARGE else MAX_TEXT
        if layer.size > most:
            raise StoreError(f"{name}: a {layer.kind:.40} of {layer.size} bytes is too large.", "bad_manifest")
        if sizes.setdefault(layer.digest, layer.size) != layer.size:
            raise StoreError(f"the manifest of {name} gives one blob two sizes.", "bad_manifest")
    return layers


def _check_family(name: Name, manifest: bytes, base: str) -> None:
    """Refuses another model than a Gemma 4 before its gigabytes are here, and before its layers are looked at: those of
    other formats may be hundreds."""
    config = json_object(manifest, f"the manifest of {name}").get("config")
    digest = checked_digest(parse_layers([config], name)[0].digest)
    data, _ = small(f"{base}/blobs/{digest}", MAX_TEXT, Manners(strict=True))
    fields = json_object(data, f"the configuration of {name}")
    family, form = fields.get("model_family") or FAMILY, fields.get("model_format") or "gguf"
    if family != FAMILY:
        reason = f"the architecture of {name} is {family!r:.80}; wgemma runs {FAMILY} only."
        raise StoreError(reason, "unsupported_architecture")
    if form != "gguf":
        raise StoreError(f"{name} is stored as {form!r:.80}; wgemma reads GGUF only.", "unsupported_format")


def small(url: str, most: int, manners: Manners) -> "tuple[bytes, HTTPMessage]":
    """A small document on the web, of at most `most` bytes, and its headers."""
    from http.client import HTTPException
    from time import sleep

    trouble = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            sleep(PAUSE * 2**attempt)
        pace = Pace(url)
        try:
            with request_whole(url, pace, TIMEOUT, manners).response as response:
                data = response.read(most + 1)
                length = response.headers.get("Content-Length")
        except (OSError, HTTPException, ValueError) as error:
            trouble = str(error) or type(error).__name__
            continue
        if len(data) > most:
            raise SourceError(f"{url}: the answer is larger than {most} bytes.")
        if length is None or length == str(len(data)):
            return data, response.headers
        trouble = "the connection dropped"
    raise SourceError(f"{url} cannot be reached: {trouble.rstrip('.')}. Check the name and the connection.")
