"""`wgemma cp NAME OTHER`: gives a model another name in wgemma's store. Where the system can link files, it takes no
more room."""

import argparse

from wgemma.cli.following import follow
from wgemma.cli.stored import how_to_run
from wgemma.files.copying import copy
from wgemma.files.names import Name
from wgemma.files.stores import Stores


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("cp", help="give a model another name")
    verb.add_argument("model", metavar="NAME", help="a stored model, wgemma's or Ollama's")
    verb.add_argument("other", metavar="OTHER", help="the new name, in wgemma's store")
    verb.set_defaults(do=copy_model)


def copy_model(options: argparse.Namespace) -> int:
    follow(copy(options.model, options.other), f"copying {options.model}")
    name = Name.parse(options.other)
    print(f"{Name.parse(options.model)} is now also {name}. {how_to_run(name, Stores.find())}")
    return 0
