"""Makes models of others or of files, with settings of their own.

All that can be checked is checked before anything is copied, and what was copied goes if it fails all the same.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from wgemma.engine.towers import Towers
from wgemma.errors import AdapterError, GgufError, ModelError, StoreError
from wgemma.files.adapters import OpenAdapter, check_fits, open_adapter
from wgemma.files.bases import Base, again_if_replaced, find_base
from wgemma.files.events import Work
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import checked_digest, existing, has_blob
from wgemma.files.layers import as_json, check_layers, file_layer, manifest_of, text_layer
from wgemma.files.names import Name
from wgemma.files.ollama import Store
from wgemma.files.recipes import Recipe, check_settings
from wgemma.files.stores import Stores, new_name
from wgemma.model.config import Config, find_tensors


def create(text: str, recipe: Recipe, stores: Stores | None = None) -> Work:
    """Makes a model of another one or of files, with settings of its own."""
    stores = stores or Stores.find()
    name = new_name(text)
    if (recipe.base is None) == (not recipe.files):
        raise StoreError(f"{name}: name either a model to build upon or files, one of the two.", "bad_recipe")
    check_settings(recipe)
    yield from again_if_replaced(recipe.base, stores, partial(_made, name, recipe, stores))
    yield {"status": "success"}


def _made(name: Name, recipe: Recipe, stores: Stores) -> Work:
    base = _checked_base(name, recipe, stores)
    config, texts = as_json(base.config), recipe.texts(base.params)
    contents = [(kind, content) for kind, some in texts.items() for content in some]
    layers = [
        *(layer for layer in base.layers if layer.kind == "license" or layer.kind not in texts),  # licenses add up
        *(file_layer("adapter", digest, existing(stores.own, digest)) for digest in recipe.adapters.values()),
        *(text_layer(kind, content) for kind, content in contents),
    ]
    check_layers(name, layers)
    manifest, named = manifest_of(config, layers)
    for layer in layers:
        there = has_blob(stores.own, layer.digest, layer.size)
        yield {"status": f"{'using existing' if there else 'creating new'} layer {layer.digest}"}
    yield from base.keep(name, stores, manifest, named, [config, *(content for _, content in contents)])


def check_fit(
    files: Sequence[Path], projectors: Sequence[Path], adapters: Sequence[OpenAdapter], known: str | None = None
) -> None:
    """Raises `ModelError` or `AdapterError` unless these projectors and adapters fit the model in these files, just as
    loading it does. `known` is what the model is called, if not by its file."""
    if not projectors and not adapters:
        return
    with ExitStack() as opened:
        model, *others = [opened.enter_context(Gguf.open(one)) for one in (files, *projectors)]
        config, name = Config.from_gguf(model), known or model.source.name
        Towers(name, config.width, model, others)
        for adapter in adapters:
            check_fits(replace(adapter, name=adapter.where), find_tensors(config, model.tensors), name)


def _checked_base(name: Name, recipe: Recipe, stores: Stores) -> Base:
    """What a model is built upon, if all else fits it. Complaints call files as the recipe does."""
    given = [*recipe.files.items(), *recipe.adapters.items()]
    names = {existing(stores.own, checked_digest(digest)): known for known, digest in given}
    try:
        base = find_base(name, recipe, stores)
        if recipe.base is not None:
            names |= dict.fromkeys(base.files, recipe.base)
        _check_adapters(base, recipe, stores.own)
        return base
    except (AdapterError, GgufError, ModelError) as error:
        sentence = str(error)
        for path, known in names.items():
            sentence = sentence.replace(str(path), f"{known:.80}")
        if sentence == str(error):
            raise  # it is about a file that the recipe does not name
        raise StoreError(sentence, "bad_recipe") from None


def _check_adapters(base: Base, recipe: Recipe, store: Store) -> None:
    with ExitStack() as opened:
        adapters = []
        for digest in recipe.adapters.values():
            adapters.append(open_adapter(existing(store, digest)))
            opened.callback(adapters[-1].close)
        check_fit(base.files, base.projectors, adapters, recipe.base)
