"""`wgemma verify NAME`: hashes the blobs of a model and compares them with their names."""

import argparse

from wgemma.cli.output import human_bytes, progress
from wgemma.errors import SourceError
from wgemma.files.ollama import ManifestLayer, Store


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("verify", help="check a model's files for damage")
    verb.add_argument("model", metavar="NAME", help="a name in the Ollama store")
    verb.set_defaults(do=verify)


def verify(options: argparse.Namespace) -> int:
    if options.model.lower().endswith(".gguf"):
        raise SourceError(
            "verify checks models in the Ollama store, whose blobs are named by checksum; a plain file has none."
        )
    model = Store.find().model(options.model)
    total = sum(model.store.blob(layer.digest).stat().st_size for layer in model.blobs)
    with progress(f"hashing {model.name}", total) as bar:

        def advance(layer: ManifestLayer, amount: int) -> None:
            bar(amount)

        model.verify(advance)
    print(f"{model.name} is intact: {len(model.blobs)} blobs, {human_bytes(total)}.")
    return 0
