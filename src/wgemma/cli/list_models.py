"""`wgemma list`: lists the models in wgemma's store and in Ollama's."""

import argparse
import re
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from wgemma.checks import human_bytes
from wgemma.cli.output import as_json, table
from wgemma.embedded import NAME, embedded_model
from wgemma.errors import Error, StoreError
from wgemma.files.gguf import Gguf
from wgemma.files.ollama import Damaged, StoredModel
from wgemma.files.stores import Stores
from wgemma.model.config import ARCHITECTURE, Config

SHORT = {  # by StoreError.reason
    "missing_blob": "a file of it is missing",
    "no_model_layer": "it has no model file",
    "invalid_digest": "its manifest names a file by something that is no digest",
}


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("list", help="list the models on this computer", aliases=["ls"])
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=list_models)


def list_models(options: argparse.Namespace) -> int:
    stores = Stores.find()
    entries = stores.entries()
    if options.json:
        as_json([_record(entry) for entry in entries])
    elif entries:
        header = ["NAME", "ID", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED", "STORE", "NOTE"]
        table(header, [_row(entry) for entry in entries])
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


def _row(entry: StoredModel | Damaged) -> list[str]:
    if isinstance(entry, Damaged):
        return [str(entry.name), *[""] * 5, entry.store.owner, f"damaged: {_told(entry)}"]
    why = problem(entry)
    return [
        str(entry.name),
        entry.digest[:12],
        human_bytes(entry.size),
        str(entry.details["parameter_size"]),
        str(entry.details["quantization_level"]),
        _age(time.time() - entry.modified),
        entry.store.owner,
        f"cannot run: {why}" if why else "",
    ]


def _record(entry: StoredModel | Damaged) -> dict[str, Any]:
    record: dict[str, Any] = {"name": str(entry.name), "store": entry.store.root}
    if isinstance(entry, Damaged):
        unknown = dict.fromkeys(("digest", "size", "modified", "details"))
        return record | unknown | {"damaged": True, "problem": _told(entry)}
    return record | {
        "digest": entry.digest,
        "size": entry.size,
        "modified": entry.modified,
        "details": entry.details,
        "damaged": False,
        "problem": problem(entry),
    }


def _told(entry: Damaged) -> str:
    return SHORT.get(entry.error.reason) or _brief(entry.error, str(entry.name))


def problem(model: StoredModel) -> str | None:
    """Why wgemma cannot run a model, in a few words; None if it can. Reads at most the header of a Gemma 4's file:
    of any other model, the configuration names the family."""
    family = model.details["family"]
    if family and family != ARCHITECTURE:
        return f"its architecture is {family:.40}; wgemma runs {ARCHITECTURE} only"
    try:
        if why := _problem_of(model.files):
            return why
        model.check_blobs()
        return None
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
    told = re.sub(rf"\bthe (\w+) of {re.escape(name)}", r"its \1", told)
    return told.removeprefix(f"{name}: ") if told.startswith(f"{name}: ") else told.replace(name, "it", 1)


def _age(seconds: float) -> str:
    for length, unit in ((86400 * 7, "week"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
