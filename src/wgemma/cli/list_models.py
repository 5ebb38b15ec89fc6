"""`wgemma list`: lists the models in wgemma's store and in Ollama's."""

import argparse
import os
import sys
import time
from typing import Any

from wgemma.checks import human_bytes
from wgemma.cli.output import as_json, table
from wgemma.cli.stored import brief, problem
from wgemma.embedded import NAME, embedded_model
from wgemma.files.ollama import Damaged, StoredModel
from wgemma.files.paths import mode
from wgemma.files.stores import Stores


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
        table(header, [_row(entry, stores) for entry in entries])
    else:
        print(
            f"No models in {stores.own.root} or {stores.ollama.root}. "
            "`wgemma pull gemma4:e2b` gets one; every command also takes a .gguf path."
        )
    if os.environ.get("OLLAMA_MODELS") and not mode(stores.ollama.root):
        print(f"OLLAMA_MODELS is {stores.ollama.root}, which does not exist.", file=sys.stderr)
    embedded = embedded_model()
    if embedded and not options.json:
        size = human_bytes(embedded.stat().st_size)
        print(f"{NAME} ({size}) comes with wgemma; `wgemma run` without a name uses it.", file=sys.stderr)
    return 0


def _row(entry: StoredModel | Damaged, stores: Stores) -> list[str]:
    if isinstance(entry, Damaged):
        return [str(entry.name), *[""] * 5, entry.store.owner, f"damaged: {brief(entry.error, str(entry.name))}"]
    why = problem(entry)
    return [
        str(entry.name),
        entry.digest[:12],
        human_bytes(entry.size),
        str(entry.details["parameter_size"]),
        str(entry.details["quantization_level"]),
        _age(time.time() - entry.modified),
        entry.store.owner,
        f"cannot run: {why}" if why else "hides Ollama's" if stores.hides(entry.name) else "",
    ]


def _record(entry: StoredModel | Damaged) -> dict[str, Any]:
    record: dict[str, Any] = {"name": str(entry.name), "store": entry.store.root}
    if isinstance(entry, Damaged):
        unknown = dict.fromkeys(("digest", "size", "modified", "details"))
        return record | unknown | {"damaged": True, "problem": brief(entry.error, str(entry.name))}
    return record | {
        "digest": entry.digest,
        "size": entry.size,
        "modified": entry.modified,
        "details": entry.details,
        "damaged": False,
        "problem": problem(entry),
    }


def _age(seconds: float) -> str:
    for length, unit in ((86400 * 7, "week"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
