"""What a model is built upon: another one in either store, the embedded one, or files in wgemma's store.

Ollama's store is never changed: blobs are taken over from it. The embedded model is in no store, so its file is copied.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wgemma.embedded import NAME, is_embedded
from wgemma.errors import StoreError
from wgemma.files.events import Work
from wgemma.files.fetching import Blob, fetch
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import checked_digest, existing, keep_file
from wgemma.files.layers import as_json, config_of, file_layer, is_projector, normal, text_layer
from wgemma.files.locate import locate
from wgemma.files.manifests import ManifestLayer
from wgemma.files.names import Name
from wgemma.files.naming import TRIES, keep_manifest, undone_on_failure
from wgemma.files.ollama import Store, StoredModel, sha256
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores


@dataclass(frozen=True, slots=True)
class Base:
    """A model without the settings of what is built upon it. `files` are its own, whole or in parts; `projectors` are
    those that came with the files; `texts` are the contents of layers that are in no store."""

    config: dict[str, Any]
    layers: list[ManifestLayer]
    params: dict[str, Any]
    files: list[Path]
    projectors: Sequence[Path] = ()
    texts: Sequence[bytes] = ()
    stored: StoredModel | None = None  # whose blobs are taken over
    copied: bool = False  # the files are

    def keep(
        self, name: Name, stores: Stores, manifest: bytes, layers: Sequence[ManifestLayer], texts: Sequence[bytes] = ()
    ) -> Work:
        """Brings the blobs and writes the manifest of what is built upon this, with its `texts`. If that fails, nothing
        stays behind."""
        with undone_on_failure(stores.own) as added:
            for left in reversed(range(TRIES)):
                yield from self._bring(stores, added)
                yield {"status": "writing manifest"}
                try:
                    keep_manifest(stores.own, name, manifest, layers, [*self.texts, *texts])
                    return
                except StoreError as error:  # a model that shared a blob with this one was deleted meanwhile
                    if error.reason != "missing_blob" or not left:
                        raise

    def _bring(self, stores: Stores, added: set[str]) -> Work:
        """Makes sure that the blobs are in wgemma's store; those that were not join `added`."""
        if self.stored is not None:
            blobs = [Blob(None, layer.digest, layer.size) for layer in map(normal, self.stored.blobs)]
            yield from fetch(stores.own, blobs, str(self.stored.name), [self.stored.store], added)
        if self.copied:
            for path in self.files:
                keep_file(stores.own, path, added)


def again_if_replaced(source: str | None, stores: Stores, work: Callable[[], Work]) -> Work:
    """Does the work, which may take blobs over from a model; begins again if that was replaced meanwhile."""
    for left in reversed(range(TRIES)):
        before = _digest(source, stores)
        try:
            yield from work()
            return
        except StoreError as error:
            if error.reason != "missing_blob" or not left or _digest(source, stores) == before:
                raise


def _digest(source: str | None, stores: Stores) -> str | None:
    """Which version of a model is in the stores; None if it is elsewhere."""
    try:
        return None if source is None or is_embedded(source) else stores.model(source).digest
    except StoreError:
        return None


def find_base(name: Name, recipe: Recipe, stores: Stores) -> Base:
    """What the model `name` is built upon, as its recipe says."""
    if recipe.base is None:
        return _of_blobs(name, recipe.files.values(), stores.own)
    if is_embedded(recipe.base):
        return embedded_base()
    model = stores.model(recipe.base)
    model.open().close()  # raises if it is none that wgemma runs
    return stored_base(model)


def stored_base(model: StoredModel) -> Base:
    """A model in a store."""
    files = list(model.files) if isinstance(model.files, tuple) else [model.files]
    return Base(model.config, [normal(layer) for layer in model.layers], model.params, files, stored=model)


def embedded_base() -> Base:
    """The embedded model, with its own setting."""
    found = locate(None)
    assert isinstance(found.model, Path)
    read, params = read_files(NAME, [found.model]), {"temperature": found.params["temperature"]}
    digest, text = f"sha256:{sha256(found.model, lambda nbytes: None)}", as_json(params)
    layers = [file_layer("model", digest, found.model), text_layer("params", text)]
    return Base(read.config, layers, params, read.model, texts=[text], copied=True)


def _of_blobs(name: Name, digests: Iterable[str], store: Store) -> Base:
    places = {existing(store, digest): digest for digest in map(checked_digest, digests)}
    read = read_files(str(name), places)
    kinds = {**dict.fromkeys(read.model, "model"), **dict.fromkeys(read.projectors, "projector")}
    layers = [file_layer(kind, places[path], path) for path, kind in kinds.items()]
    return Base(read.config, layers, {}, read.model, read.projectors)


@dataclass(frozen=True, slots=True)
class Files:
    """A model's files, whole or in parts, its configuration, and its projectors'."""

    config: dict[str, Any]
    model: list[Path]
    projectors: list[Path]


def read_files(name: str, paths: Iterable[Path]) -> Files:
    """Tells a model's files from its projectors', by their headers; raises unless there is a Gemma 4 among them."""
    model: list[Path] = []
    projectors: list[Path] = []
    for path in paths:
        with Gguf.open_part(path) as gguf:
            (projectors if is_projector(gguf) else model).append(path)
    if not model:
        raise StoreError(f"{name}: there is no model among the files, only a projector.", "bad_recipe")
    with Gguf.open(model) as gguf:
        return Files(config_of(gguf, name, gguf.quantisation), model, projectors)
