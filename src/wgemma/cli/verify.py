"""`wgemma verify [NAME]`: hashes a model's files and compares them with the checksums they must have.

Blobs in a store are named by their checksum; wgemma knows that of the model that comes with it.
"""

import argparse

from wgemma.checks import counted
from wgemma.cli.output import human_bytes, progress
from wgemma.embedded import NAME, SHA256, embedded_model, is_embedded
from wgemma.errors import SourceError
from wgemma.files.locate import locate
from wgemma.files.manifests import ManifestLayer
from wgemma.files.ollama import sha256
from wgemma.files.stores import Stores


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("verify", help="check a model's files for damage")
    verb.add_argument(
        "model",
        metavar="NAME",
        nargs="?",
        help="a stored model's name (default: the model that comes with wgemma)",
    )
    verb.set_defaults(do=verify)


def verify(options: argparse.Namespace) -> int:
    if options.model is None or is_embedded(options.model):
        _verify_embedded()
    elif options.model.lower().endswith(".gguf") and options.model not in Stores.find():
        raise SourceError("verify checks stored models, whose blobs are named by checksum; a plain file has none.")
    else:
        _verify_stored(options.model)
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


def _verify_stored(name: str) -> None:
    model = Stores.find().model(name)
    total = 0
    with progress(f"hashing {model.name}", model.size) as bar:

        def advance(layer: ManifestLayer, amount: int) -> None:
            nonlocal total
            total += amount
            bar(amount)

        model.verify(advance)
    print(f"{model.name} is intact: {counted(len(model.blobs), 'blob')}, {human_bytes(total)}.")
