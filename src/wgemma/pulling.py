"""Downloads models into wgemma's store.

A pull that was stopped goes on from there next time. Blobs that Ollama's store has are taken over without a download.
"""

from collections.abc import Container
from dataclasses import replace

from wgemma.engine.towers import Towers
from wgemma.errors import GgufError, ModelError, StoreError
from wgemma.files import hub
from wgemma.files.checking import check_blobs, check_plan
from wgemma.files.choosing import Choice, HubFile
from wgemma.files.events import Work
from wgemma.files.fetching import fetch
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import check_folders
from wgemma.files.layers import as_json, config_of, manifest_of
from wgemma.files.manifests import ManifestLayer
from wgemma.files.names import HUB, Name
from wgemma.files.naming import TRIES, forget_blobs, keep_manifest
from wgemma.files.ollama import Store
from wgemma.files.registry import FAMILY, Plan, registry_plan
from wgemma.files.stores import Stores, refuse_embedded
from wgemma.files.waiting import patiently


def pull(text: str, stores: Stores | None = None, hosts: Container[str] | None = None) -> Work:
    """Downloads a model into wgemma's store. `hosts` are those that may be asked; by default any on the internet, and
    this machine itself."""
    stores = stores or Stores.find()
    name = Name.parse(text)
    refuse_embedded(text, "there is nothing to pull")
    if hosts is not None and name.host not in hosts:
        host = f"{name.host:.80}"
        raise StoreError(
            f"Models may not be pulled from {host}; `wgemma serve --registry {host}` allows it.", "not_allowed"
        )
    check_folders(stores.own)
    yield {"status": "pulling manifest"}
    if name.host == HUB:
        choice = yield from patiently(lambda: hub.hub_choice(name), name.host)
        yield {"status": f"picked {choice.title}"}
        with (yield from patiently(lambda: hub.open_remote(name, choice.model), name.host)) as gguf:
            if trouble := (yield from patiently(lambda: _misfit(name, gguf, choice.projector), name.host)):
                yield {"status": f"left out the projector: {trouble}"}
                choice = replace(choice, projector=None)
            plan = _hub_plan(name, choice, gguf)
    else:
        plan = yield from patiently(lambda: registry_plan(name), name.host)
        yield {"status": "reading model metadata"}
        yield from patiently(lambda: check_plan(name, plan, stores), name.host)
    added: set[str] = set()
    for left in reversed(range(TRIES)):
        yield from fetch(stores.own, plan.blobs, str(name), [stores.ollama], added)
        yield {"status": "verifying sha256 digest"}  # done on the way
        yield {"status": "writing manifest"}
        try:
            _check(name, plan, stores.own, added)
            keep_manifest(stores.own, name, plan.manifest, plan.layers, plan.texts)
            break
        except StoreError as error:  # a model that shared a blob with this one was deleted meanwhile
            if error.reason != "missing_blob" or not left:
                raise
    yield {"status": "success"}


def _check(name: Name, plan: Plan, store: Store, added: set[str]) -> None:
    """Raises `StoreError` if what came cannot be kept, which is deleted then."""
    try:
        check_blobs(name, plan, store)
    except StoreError as error:
        if error.reason != "missing_blob":
            forget_blobs(store, added)
        raise


def _misfit(name: Name, model: Gguf, file: HubFile | None) -> str | None:
    """Why a projector does not fit the model, as loading would say it; None if it does."""
    width = model.metadata.get(f"{FAMILY}.embedding_length")
    if file is None or type(width) is not int:
        return None
    try:
        with hub.open_remote(name, [file]) as projector:
            Towers(str(name), width, model, [projector])
    except (GgufError, ModelError) as error:
        return str(error).partition(". ")[0].rstrip(".").replace(hub.address(name, file), file.name)
    return None


def _hub_plan(name: Name, choice: Choice, gguf: Gguf) -> Plan:
    config = as_json(config_of(gguf, str(name), choice.label or gguf.quantisation))
    layers = [ManifestLayer("model", file.digest, file.size, None) for file in choice.model]
    files = list(choice.model)
    if choice.projector is not None:
        layers.append(ManifestLayer("projector", choice.projector.digest, choice.projector.size, None))
        files.append(choice.projector)
    manifest, layers = manifest_of(config, layers)
    return Plan(manifest, layers, hub.blobs(name, files), [config])
