"""`wgemma rm NAME …`: deletes models from wgemma's store. Ollama's is never touched."""

import argparse

from wgemma.files.copying import delete
from wgemma.files.names import Name


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("rm", help="delete models that wgemma has pulled or created")
    verb.add_argument("models", metavar="NAME", nargs="+", help="a model in wgemma's store")
    verb.set_defaults(do=remove)


def remove(options: argparse.Namespace) -> int:
    for text in options.models:
        list(delete(text))
        print(f"Deleted {Name.parse(text)}.")
    return 0
