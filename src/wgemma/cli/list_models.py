"""`wgemma list`: lists the models in wgemma's store and in Ollama's."""

import argparse
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from wgemma.cli.output import as_json, human_bytes, table
from wgemma.embedded import NAME, embedded_model
from wgemma.errors import Error, StoreError
from wgemma.files.gguf import Gguf
from wgemma.files.ollama import StoredModel
from wgemma.files.stores import Stores
from wgemma.model.config import ARCHITECTURE, Config

SHORT = {"missing_blob": "a file of it is missing", "no_model_layer": "it has no model file"}  # by StoreError.reason


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("list", help="list the models on this computer", aliases=["ls"])
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=list_models)


def list_models(options: argparse.Namespace) -> int:
    stores = Stores.find()
    models = stores.models()
    problems = [problem(model) for model in models]
    if options.json:
        as_json([_record(model) | {"problem": why} for model, why in zip(models, problems, strict=True)])
    elif models:
        rows = [
            [
                str(model.name),
                model.digest[:12],
                human_bytes(model.size),
                str(model.details["parameter_size"]),
                str(model.details["quantization_level"]),
                _age(time.time() - model.modified),
                model.store.owner,
                f"cannot run: {why}" if why else "",
            ]
            for model, why in zip(models, problems, strict=True)
        ]
        table(["NAME", "ID", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED", "STORE", "NOTE"], rows)
    else:
        print(
            f"No models in {stores.own.root} or {stores.ollama.root}. "
            "`wgemma pull gemma4:e2b` gets one; every command also takes a .gguf path."
        )
    embedded = embedded_model()
    if embedded and not options.json:
        size = human_bytes(embedded.stat().st_size)
        print(f"{NAME} ({size}) comes with wgemma; `wgemma run` without a name uses it.", file=sys.stderr)
    return 0


def _record(model: StoredModel) -> dict[str, Any]:
    return {
        "name": str(model.name),
        "digest": model.digest,
        "size": model.size,
        "modified": model.modified,
        "store": model.store.root,
        "details": model.details,
    }


def problem(model: StoredModel) -> str | None:
    """Why wgemma cannot run a model, in a few words; None if it can. Reads at most the header of a Gemma 4's file:
    of any other model, the configuration names the family."""
    family = model.details["family"]
    if family and family != ARCHITECTURE:
        return f"its architecture is {family:.40}; wgemma runs {ARCHITECTURE} only"
    try:
        return _problem_of(model.files)
    except StoreError as error:
        return SHORT.get(error.reason) or _brief(error, str(model.name))


@cache
def _problem_of(files: Path | tuple[Path, ...]) -> str | None:
    """The same by the file's header; many tags share one file."""
    try:
        with Gguf.open(files) as gguf:
            Config.from_gguf(gguf)
    except Error as error:
        return _brief(error, str(files if isinstance(files, Path) else files[0]))
    return None


def _brief(error: Error, name: str) -> str:
    """The first sentence, about "it"."""
    told = str(error).partition(". ")[0].rstrip(".")
    return told.removeprefix(f"{name}: ") if told.startswith(f"{name}: ") else told.replace(name, "it", 1)


def _age(seconds: float) -> str:
    for length, unit in ((86400 * 7, "week"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
