"""`wgemma verify [NAME | --all]`: hashes a model's files and compares them with the checksums they must have.

Blobs in a store are named by their checksum; wgemma knows that of the model that comes with it.
"""

import argparse
import sys
from pathlib import Path

from wgemma.checks import counted, human_bytes
from wgemma.cli.output import clean, progress, sentence
from wgemma.embedded import NAME, SHA256, embedded_model, is_embedded
from wgemma.errors import Error, SettingsError, SourceError, StoreError
from wgemma.files.locate import locate
from wgemma.files.manifests import ManifestLayer
from wgemma.files.ollama import Damaged, StoredModel, sha256
from wgemma.files.stores import Stores


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("verify", help="check a model's files for damage")
    verb.add_argument(
        "model",
        metavar="NAME",
        nargs="?",
        help="a stored model's name (default: the model that comes with wgemma)",
    )
    verb.add_argument("--all", action="store_true", help="check every model on this computer")
    verb.set_defaults(do=verify)


def verify(options: argparse.Namespace) -> int:
    if options.all and options.model is not None:
        raise SettingsError("--all checks every model: name none.")
    if options.all:
        return _verify_all()
    if options.model is None or is_embedded(options.model):
        _verify_embedded()
        return 0
    stores = Stores.find()
    if options.model not in stores:
        locate(options.model)  # raises for what is no file, either
        raise SourceError("verify checks stored models, whose blobs are named by checksum; a plain file has none.")
    _verify_stored(stores.model(options.model), set())
    return 0


def _verify_all() -> int:
    """Checks all models, whatever is wrong with some of them."""
    entries: list[StoredModel | Damaged | None] = [*Stores.find().entries()]
    if embedded_model() is not None:
        entries.insert(0, None)
    damaged, intact = 0, set[Path]()
    for entry in entries:
        try:
            if entry is None:
                _verify_embedded()
            elif isinstance(entry, Damaged):
                raise entry.error
            else:
                _verify_stored(entry, intact)
        except Error as error:
            damaged += 1
            told, name = str(error), NAME if entry is None else str(entry.name)
            print(clean(sentence(told if name in told else f"{name}: {told}")), file=sys.stderr)
    if damaged:
        raise StoreError(f"{damaged} of {counted(len(entries), 'model')} are damaged.", "bad_digest")
    return 0


def _verify_embedded() -> None:
    locate(None)  # raises if it is not there
    path = embedded_model()
    assert path is not None
    size = path.stat().st_size
    with progress(f"hashing {NAME}", size) as bar:
        digest = sha256(path, bar)
    if digest != SHA256:
        raise SourceError(f"{path} is damaged: its bytes hash to {digest}. Reinstall wgemma to replace it.")
    print(f"{NAME} is intact: {human_bytes(size)}.")


def _verify_stored(model: StoredModel, intact: set[Path]) -> None:
    """Checks a model, but for the blobs that are known to be intact."""
    total = 0
    with progress(f"hashing {model.name}", model.size) as bar:

        def advance(layer: ManifestLayer, amount: int) -> None:
            nonlocal total
            total += amount
            bar(amount)

        model.verify(advance, intact)
    print(f"{model.name} is intact: {counted(len(model.blobs), 'blob')}, {human_bytes(total)}.")
