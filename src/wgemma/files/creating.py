"""Makes models of others or of files, with settings of their own.

Models in Ollama's store can be built upon: their blobs are taken over, and that store is never changed. The embedded
model is in no store: what is built upon it gets a copy of its file.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wgemma.embedded import NAME, is_embedded
from wgemma.errors import StoreError
from wgemma.files.events import Work
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import blob_place, checked_digest, keep_file, keep_manifest
from wgemma.files.layers import (
    as_json,
    check_layers,
    config_of,
    existing,
    file_layer,
    is_adapter,
    manifest_of,
    normal,
    taken_over,
    text_layer,
)
from wgemma.files.locate import locate
from wgemma.files.manifests import ManifestLayer
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_TEXT, Store
from wgemma.files.recipes import Recipe, check_recipe
from wgemma.files.stores import Stores, refuse_embedded


def create(text: str, recipe: Recipe, stores: Stores | None = None) -> Work:
    """Makes a model of another one or of files, with settings of its own."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    refuse_embedded(text, "choose another name")
    if (recipe.base is None) == (not recipe.files):
        raise StoreError(f"{name}: name either a model to build upon or files, one of the two.", "bad_recipe")
    check_recipe(recipe)
    if recipe.base is not None and is_embedded(recipe.base):
        recipe = _upon_embedded(recipe, stores.own)
    if recipe.base is not None:
        base = stores.model(recipe.base)
        base.open().close()  # raises if it is none that wgemma runs
        yield from taken_over(stores, base, [normal(layer) for layer in base.blobs])
        config, layers = base.config, [normal(layer) for layer in base.layers]
        parameters = {**base.params, **recipe.parameters}
    else:
        yield {"status": "reading model metadata"}
        config, layers = _from_files(stores.own, name, recipe.files)
        parameters = dict(recipe.parameters)
    layers += [_adapter(stores.own, name, digest) for digest in recipe.adapters.values()]
    said = {
        "system": [recipe.system.encode()] if recipe.system is not None else None,
        "params": [as_json(parameters)] if recipe.parameters else None,
        "messages": [as_json([dict(message) for message in recipe.messages])] if recipe.messages else None,
        "license": [text.encode() for text in recipe.licenses] if recipe.licenses else None,
    }
    texts = [as_json(config)]
    for kind, contents in said.items():
        if contents is not None:
            if sum(map(len, contents)) > MAX_TEXT:
                raise StoreError(f"{kind} is larger than {MAX_TEXT >> 20} MiB.", "bad_recipe")
            if kind != "license":  # those add up
                layers = [layer for layer in layers if layer.kind != kind]
            layers += [text_layer(kind, content) for content in contents if content]
            texts += filter(None, contents)
    check_layers(name, layers)
    for layer in layers:
        yield {"status": f"using existing layer {layer.digest}"}
    yield {"status": "writing manifest"}
    manifest, layers = manifest_of(texts[0], layers)
    keep_manifest(stores.own, name, manifest, layers, texts)
    yield {"status": "success"}


def _upon_embedded(recipe: Recipe, store: Store) -> Recipe:
    """The same recipe, with a copy of the embedded model's file and its settings."""
    files = locate(None)
    assert isinstance(files.model, Path)
    settings = {"temperature": files.params["temperature"], **recipe.parameters}
    return replace(recipe, base=None, files={NAME: keep_file(store, files.model)}, parameters=settings)


def _from_files(store: Store, name: Name, files: Mapping[str, str]) -> tuple[dict[str, Any], list[ManifestLayer]]:
    """The configuration and layers of a model in files: its own, whole or in parts, and its projector's."""
    model: list[str] = []
    projectors: list[str] = []
    for digest in dict.fromkeys(map(checked_digest, files.values())):
        with Gguf.open_part(existing(store, digest)) as gguf:
            (projectors if gguf.metadata.get("general.architecture") == "clip" else model).append(digest)
    if not model:
        raise StoreError(f"{name}: there is no model among the files, only a projector.", "bad_recipe")
    with Gguf.open([blob_place(store, digest) for digest in model]) as gguf:
        config = config_of(gguf, str(name), gguf.quantisation)
    layers = [file_layer(store, "model", digest) for digest in model]
    return config, layers + [file_layer(store, "projector", digest) for digest in projectors]


def _adapter(store: Store, name: Name, digest: str) -> ManifestLayer:
    with Gguf.open(existing(store, checked_digest(digest))) as gguf:
        if not is_adapter(gguf):
            raise StoreError(f"{name}: the blob {digest} is not an adapter.", "bad_recipe")
    return file_layer(store, "adapter", digest)
