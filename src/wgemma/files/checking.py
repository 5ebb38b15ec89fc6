"""Is what a manifest names a model that wgemma can keep: one whole Gemma 4, or all parts of one?

Headers are read over the web first, where that may save a download of gigabytes, and once more from the blobs that
came: a server need not give out spans, or twice the same.
"""

from collections.abc import Sequence
from pathlib import Path

from wgemma.errors import GgufError, SourceError, StoreError
from wgemma.files.fetching import TIMEOUT, Blob
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import blob_place, has_blob
from wgemma.files.layers import config_of
from wgemma.files.manifests import ManifestLayer
from wgemma.files.names import Name
from wgemma.files.ollama import Store
from wgemma.files.registry import Plan
from wgemma.files.sources import HttpSource
from wgemma.files.stores import Stores

LARGE = 64 << 20  # bytes; what is smaller is downloaded about as quickly as its header


def check_plan(name: Name, plan: Plan, stores: Stores) -> None:
    """Raises `StoreError` if a large model's headers say that it cannot be kept. Where they cannot be read, the
    download tries harder, and says why."""
    here = (stores.own, stores.ollama)
    missing = [one for one in _model(plan) if not any(has_blob(store, one.digest, one.size) for store in here)]
    if sum(layer.size for layer in missing) < LARGE:
        return
    blobs = {blob.digest: blob for blob in plan.blobs}
    try:
        _check(name, [_header(blobs[layer.digest], stores.own) for layer in _model(plan)])
    except SourceError:
        return


def _header(blob: Blob, store: Store) -> Path | HttpSource:
    """Where to read the header of a blob."""
    if blob.url is None or has_blob(store, blob.digest, blob.size):
        return blob_place(store, blob.digest)
    return HttpSource(blob.url, timeout=TIMEOUT, manners=blob.manners)


def check_blobs(name: Name, plan: Plan, store: Store) -> None:
    """Raises `StoreError` if the blobs that came cannot be kept."""
    try:
        _check(name, [blob_place(store, layer.digest) for layer in _model(plan)])
    except SourceError as error:
        raise StoreError(f"{name}: {error}", "missing_blob") from None


def _model(plan: Plan) -> list[ManifestLayer]:
    """The model's file, or its parts."""
    return [layer for layer in plan.layers if layer.kind == "model"]


def _check(name: Name, targets: Sequence[Path | HttpSource]) -> None:
    try:
        with Gguf.open(targets) as gguf:
            config_of(gguf, str(name), "")  # raises for another architecture
    except GgufError as error:
        raise StoreError(f"{name} cannot be kept. {error}", "bad_manifest") from None
