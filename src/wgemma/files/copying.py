"""Copies models into wgemma's store under other names, and deletes them there. Ollama's own store is never changed."""

from wgemma.embedded import is_embedded
from wgemma.errors import StoreError
from wgemma.files.creating import create
from wgemma.files.events import Work
from wgemma.files.keeping import drop_manifest, keep_manifest
from wgemma.files.layers import normal, taken_over
from wgemma.files.names import Name
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores, refuse_embedded


def copy(source: str, target: str, stores: Stores | None = None) -> Work:
    """Gives a model of either store another name in wgemma's."""
    stores = stores or Stores.find()
    name = Name.parse(target)
    refuse_embedded(target, "choose another name")
    if is_embedded(source):
        yield from create(target, Recipe(source), stores)
        return
    model = stores.model(source)
    model.check_parts()
    layers = [normal(layer) for layer in model.blobs]
    yield from taken_over(stores, model, layers)
    yield {"status": "writing manifest"}
    keep_manifest(stores.own, name, model.manifest_bytes, layers)
    yield {"status": "success"}


def delete(text: str, stores: Stores | None = None) -> Work:
    """Deletes a model from wgemma's store, and the blobs no other model there needs."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    if text not in stores.own:
        refuse_embedded(text, "it cannot be deleted")
        if text in stores.ollama:
            reason = f"{name} is in Ollama's store, which wgemma only reads. `ollama rm {name}` deletes it."
            raise StoreError(reason, "not_allowed")
        raise StoreError(f"{name} is not in {stores.own.root}. `wgemma list` shows what is there.", "not_found")
    drop_manifest(stores.own, name)
    yield {"status": "success"}
