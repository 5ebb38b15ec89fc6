"""Copies models into wgemma's store under other names, and deletes them there. Ollama's own store is never changed."""

from functools import partial

from wgemma.embedded import is_embedded
from wgemma.errors import StoreError
from wgemma.files.bases import Base, again_if_replaced, embedded_base
from wgemma.files.events import Work
from wgemma.files.layers import as_json, manifest_of, normal
from wgemma.files.names import Name
from wgemma.files.naming import drop_manifest
from wgemma.files.stores import Stores, new_name, refuse_embedded


def copy(source: str, target: str, stores: Stores | None = None) -> Work:
    """Gives a model of either store, or the embedded one, another name in wgemma's."""
    stores = stores or Stores.find()
    yield from again_if_replaced(source, stores, partial(_copied, source, new_name(target), stores))
    yield {"status": "success"}


def _copied(source: str, name: Name, stores: Stores) -> Work:
    if is_embedded(source):
        base = embedded_base()
        config = as_json(base.config)
        manifest, layers = manifest_of(config, base.layers)
        yield from base.keep(name, stores, manifest, layers, [config])
    else:
        model = stores.model(source)
        model.check_parts()
        layers = [normal(layer) for layer in model.blobs]
        base = Base(model.config, layers, {}, [], stored=model)  # settings, too, are copied without a look
        yield from base.keep(name, stores, model.manifest_bytes, layers)


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
