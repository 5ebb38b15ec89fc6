"""What can be done with the models in wgemma's store: pull, copy, delete, create, and put a blob.

Each is a generator of progress in Ollama's words: `{"status": "pulling manifest"}`, then `{"status": "pulling 4c27…",
"digest": …, "total": …, "completed": …}` for the blobs, and at last `{"status": "success"}`. What goes wrong is raised.
Closing a generator stops the work; a pull goes on from there next time. Ollama's own store is never changed: models in
it can be copied and built upon, and their blobs are taken over without a download. The embedded model is in no store:
what is built upon it gets a copy of its file.
"""

import json
from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wgemma.embedded import NAME, is_embedded
from wgemma.errors import StoreError
from wgemma.files import hub
from wgemma.files.choosing import Choice
from wgemma.files.fetching import Blob, fetch
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import (
    blob_place,
    checked_digest,
    digest_of,
    drop_manifest,
    has_blob,
    keep_file,
    keep_manifest,
    put_blob,
)
from wgemma.files.locate import locate
from wgemma.files.manifests import LAYER, MAX_LAYERS, PARAMS, ManifestLayer, is_kind
from wgemma.files.modelfile import is_no_template
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_TEXT, Store, StoredModel
from wgemma.files.registry import FAMILY, Plan, registry_plan
from wgemma.files.stores import Stores

__all__ = ["Recipe", "copy", "create", "delete", "has_blob", "pull", "put_blob", "recipe_from"]

Event = dict[str, Any]
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
TRIES = 3  # of a pull whose blobs others delete


def pull(text: str, stores: Stores | None = None, hosts: Container[str] | None = None) -> Generator[Event, None, None]:
    """Downloads a model into wgemma's store. `hosts` are those that may be asked; by default any on the internet, and
    this machine itself."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    _refuse_embedded(text, "there is nothing to pull")
    if hosts is not None and name.host not in hosts:
        raise StoreError(f"{name}: models may not be pulled from {name.host:.80}.", "not_allowed")
    yield {"status": "pulling manifest"}
    if name.host in hub.HOSTS:
        choice = hub.hub_choice(name)
        yield {"status": f"picked {choice.title}"}
        plan = _hub_plan(name, choice)
    else:
        plan = registry_plan(name)
    for left in reversed(range(TRIES)):
        yield from fetch(stores.own, plan.blobs, str(name), [stores.ollama])
        yield {"status": "verifying sha256 digest"}  # done on the way
        yield {"status": "writing manifest"}
        try:
            keep_manifest(stores.own, name, plan.manifest, plan.layers, plan.texts)
            break
        except StoreError as error:  # a model that shared a blob with this one was deleted meanwhile
            if error.reason != "missing_blob" or not left:
                raise
    yield {"status": "success"}


def _hub_plan(name: Name, choice: Choice) -> Plan:
    with hub.open_remote(name, choice.model) as gguf:
        config = _json(_config(gguf, str(name), choice.label or gguf.quantisation))
    layers = [ManifestLayer("model", file.digest, file.size, None) for file in choice.model]
    files = list(choice.model)
    if choice.projector is not None:
        layers.append(ManifestLayer("projector", choice.projector.digest, choice.projector.size, None))
        files.append(choice.projector)
    manifest, layers = _manifest(config, layers)
    return Plan(manifest, layers, hub.blobs(name, files), [config])


# -- names


def copy(source: str, target: str, stores: Stores | None = None) -> Generator[Event, None, None]:
    """Gives a model of either store another name in wgemma's."""
    stores = stores or Stores.find()
    name = Name.parse(target)
    _refuse_embedded(target, "choose another name")
    if is_embedded(source):
        yield from create(target, Recipe(source), stores)
        return
    model = stores.model(source)
    layers = [_normal(layer) for layer in model.blobs]
    yield from _taken_over(stores, model, layers)
    yield {"status": "writing manifest"}
    keep_manifest(stores.own, name, model.manifest_bytes, layers)
    yield {"status": "success"}


def delete(text: str, stores: Stores | None = None) -> Generator[Event, None, None]:
    """Deletes a model from wgemma's store, and the blobs no other model there needs."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    if text not in stores.own:
        _refuse_embedded(text, "it cannot be deleted")
        if text in stores.ollama:
            reason = f"{name} is in Ollama's store, which wgemma only reads. `ollama rm {name}` deletes it."
            raise StoreError(reason, "not_allowed")
        raise StoreError(f"{name} is not in {stores.own.root}. `wgemma list` shows what is there.", "not_found")
    drop_manifest(stores.own, name)
    yield {"status": "success"}


def _refuse_embedded(text: str, what: str) -> None:
    if is_embedded(text):
        raise StoreError(f"{NAME} comes with wgemma: {what}. `wgemma run` starts it.", "not_allowed")


def _normal(layer: ManifestLayer) -> ManifestLayer:
    """The layer with its digest as wgemma writes it."""
    digest = checked_digest(layer.digest.replace("sha256-", "sha256:").lower())
    return ManifestLayer(layer.kind, digest, layer.size, layer.parent)


def _taken_over(stores: Stores, model: StoredModel, layers: Sequence[ManifestLayer]) -> Generator[Event, None, None]:
    """Makes sure that the blobs of a model are in wgemma's store."""
    blobs = [Blob(None, layer.digest, layer.size) for layer in layers]
    yield from fetch(stores.own, blobs, str(model.name), [model.store])


# -- new models


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to create, as Ollama's /api/create asks for it. Files are named by the digests of blobs in wgemma's
    store; one of them is the model unless `base` is another model's name."""

    base: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # names → digests, of models, their parts, and projectors
    adapters: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    licenses: Sequence[str] = ()


def recipe_from(fields: Mapping[str, Any]) -> Recipe:
    """The recipe in the body of Ollama's /api/create; raises `StoreError` for what is no recipe."""
    base, system = _text(fields, "from"), _text(fields, "system")
    for key in ("template", "quantize", "modelfile"):
        if (text := _text(fields, key)) and not (key == "template" and is_no_template(text)):
            raise StoreError(
                f"{key} is not supported: wgemma renders prompts itself and keeps files as they are.", "bad_recipe"
            )
    licenses = fields.get("license") or []
    licenses = [licenses] if isinstance(licenses, str) else licenses
    parameters, messages = fields.get("parameters") or {}, fields.get("messages") or []
    if not isinstance(licenses, list) or not all(isinstance(license, str) for license in licenses):
        raise StoreError("license must be a string or a list of strings.", "bad_recipe")
    if not isinstance(parameters, dict):
        raise StoreError("parameters must be an object.", "bad_recipe")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise StoreError("messages must be a list of objects.", "bad_recipe")
    files, adapters = _digests(fields, "files"), _digests(fields, "adapters")
    for key, found in (("license", licenses), ("files", files), ("adapters", adapters)):
        if len(found) > MAX_LAYERS:
            raise StoreError(f"{key} has {len(found)} items; the limit is {MAX_LAYERS}.", "bad_recipe")
    return Recipe(base or None, files, adapters, system, parameters, messages, licenses)


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise StoreError(f"{key} must be a string.", "bad_recipe")
    return value


def _digests(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    value = fields.get(key) or {}
    if not isinstance(value, dict):
        raise StoreError(f"{key} must be an object of names and digests.", "bad_recipe")
    return {str(name): checked_digest(digest) for name, digest in value.items()}


def create(text: str, recipe: Recipe, stores: Stores | None = None) -> Generator[Event, None, None]:
    """Makes a model of another one or of files, with settings of its own."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    _refuse_embedded(text, "choose another name")
    if (recipe.base is None) == (not recipe.files):
        raise StoreError(f"{name}: name either a model to build upon or files, one of the two.", "bad_recipe")
    _check_settings(recipe)
    if recipe.base is not None and is_embedded(recipe.base):
        recipe = _upon_embedded(recipe, stores.own)
    if recipe.base is not None:
        base = stores.model(recipe.base)
        base.open().close()  # raises if it is none that wgemma runs
        yield from _taken_over(stores, base, [_normal(layer) for layer in base.blobs])
        config, layers = base.config, [_normal(layer) for layer in base.layers]
        parameters = {**base.params, **recipe.parameters}
    else:
        yield {"status": "reading model metadata"}
        config, layers = _from_files(stores.own, name, recipe.files)
        parameters = dict(recipe.parameters)
    layers += [_adapter(stores.own, name, digest) for digest in recipe.adapters.values()]
    said = {
        "system": [recipe.system.encode()] if recipe.system is not None else None,
        "params": [_json(parameters)] if recipe.parameters else None,
        "messages": [_json([dict(message) for message in recipe.messages])] if recipe.messages else None,
        "license": [text.encode() for text in recipe.licenses] if recipe.licenses else None,
    }
    texts = [_json(config)]
    for kind, contents in said.items():
        if contents is not None:
            if sum(map(len, contents)) > MAX_TEXT:
                raise StoreError(f"{kind} is larger than {MAX_TEXT >> 20} MiB.", "bad_recipe")
            if kind != "license":  # those add up
                layers = [layer for layer in layers if layer.kind != kind]
            layers += [_text_layer(kind, content) for content in contents if content]
            texts += filter(None, contents)
    _check_layers(name, layers)
    for layer in layers:
        yield {"status": f"using existing layer {layer.digest}"}
    yield {"status": "writing manifest"}
    manifest, layers = _manifest(texts[0], layers)
    keep_manifest(stores.own, name, manifest, layers, texts)
    yield {"status": "success"}


def _check_layers(name: Name, layers: Sequence[ManifestLayer]) -> None:
    """Raises `StoreError` for more than a reader takes: what a model is built upon counts, too."""
    if len(layers) > MAX_LAYERS:
        reason = f"{name} would have {len(layers)} layers; the limit is {MAX_LAYERS}. Leave out licenses or adapters."
        raise StoreError(reason, "bad_recipe")
    if sum(layer.size for layer in layers if layer.kind == "license") > MAX_TEXT:
        raise StoreError(f"{name} would have more than {MAX_TEXT >> 20} MiB of licenses.", "bad_recipe")


def _upon_embedded(recipe: Recipe, store: Store) -> Recipe:
    """The same recipe, with a copy of the embedded model's file and its settings."""
    files = locate(None)
    assert isinstance(files.model, Path)
    settings = {"temperature": files.params["temperature"], **recipe.parameters}
    return replace(recipe, base=None, files={NAME: keep_file(store, files.model)}, parameters=settings)


def _check_settings(recipe: Recipe) -> None:
    for key, value in recipe.parameters.items():
        if key not in PARAMS:
            raise StoreError(f"there is no parameter {key!r:.80}. There are {', '.join(sorted(PARAMS))}.", "bad_recipe")
        if not is_kind(PARAMS[key], value):
            raise StoreError(f"the parameter {key} is {value!r:.40}; it must be {PARAMS[key]}.", "bad_recipe")
    for message in recipe.messages:
        if message.get("role") not in ("system", "user", "assistant") or not isinstance(message.get("content"), str):
            raise StoreError(
                f"the message {dict(message)!r:.80} must have a role (system, user or assistant) and a content.",
                "bad_recipe",
            )


def _from_files(store: Store, name: Name, files: Mapping[str, str]) -> tuple[dict[str, Any], list[ManifestLayer]]:
    """The configuration and layers of a model in files: its own, whole or in parts, and its projector's."""
    model: list[str] = []
    projectors: list[str] = []
    for digest in dict.fromkeys(map(checked_digest, files.values())):
        with Gguf.open_part(_existing(store, digest)) as gguf:
            (projectors if gguf.metadata.get("general.architecture") == "clip" else model).append(digest)
    if not model:
        raise StoreError(f"{name}: there is no model among the files, only a projector.", "bad_recipe")
    with Gguf.open([blob_place(store, digest) for digest in model]) as gguf:
        config = _config(gguf, str(name), gguf.quantisation)
    layers = [_layer(store, "model", digest) for digest in model]
    return config, layers + [_layer(store, "projector", digest) for digest in projectors]


def _existing(store: Store, digest: str) -> str:
    if not has_blob(store, digest):
        raise StoreError(f"the blob {digest} is not in the store. Send it first.", "missing_blob")
    return str(blob_place(store, digest))


def _layer(store: Store, kind: str, digest: str) -> ManifestLayer:
    _existing(store, checked_digest(digest))
    return ManifestLayer(kind, digest, blob_place(store, digest).stat().st_size, None)


def _adapter(store: Store, name: Name, digest: str) -> ManifestLayer:
    with Gguf.open(_existing(store, checked_digest(digest))) as gguf:
        if not _is_adapter(gguf):
            raise StoreError(f"{name}: the blob {digest} is not an adapter.", "bad_recipe")
    return _layer(store, "adapter", digest)


def _is_adapter(gguf: Gguf) -> bool:
    return gguf.metadata.get("general.type") == "adapter"


def _config(gguf: Gguf, name: str, label: str) -> dict[str, Any]:
    """The configuration of a model in a file, if it is a Gemma 4."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture != FAMILY:
        reason = f"the architecture of {name} is {architecture!r:.80}; wgemma runs {FAMILY} only."
        raise StoreError(reason, "unsupported_architecture")
    if _is_adapter(gguf):
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


def _text_layer(kind: str, text: bytes) -> ManifestLayer:
    return ManifestLayer(kind, digest_of(text), len(text), None)


def _manifest(config: bytes, layers: Sequence[ManifestLayer]) -> tuple[bytes, list[ManifestLayer]]:
    """A manifest, and all that it names."""
    first = _text_layer(CONFIG, config)
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
    return _json(fields), [first, *layers]


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
