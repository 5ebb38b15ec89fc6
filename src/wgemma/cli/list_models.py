"""`wgemma list`: lists the models in the Ollama store."""

import argparse
import sys
import time
from typing import Any

from wgemma.cli.output import as_json, human_bytes, table
from wgemma.embedded import NAME, embedded_model
from wgemma.files.ollama import Store, StoredModel


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("list", help="list the models in the Ollama store", aliases=["ls"])
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=list_models)


def list_models(options: argparse.Namespace) -> int:
    store = Store.find()
    models = store.models()
    if options.json:
        as_json([_record(model) for model in models])
    elif models:
        rows = [
            [
                str(model.name),
                model.digest[:12],
                human_bytes(model.size),
                str(model.details["parameter_size"]),
                str(model.details["quantization_level"]),
                _age(time.time() - model.modified),
            ]
            for model in models
        ]
        table(["NAME", "ID", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED"], rows)
    else:
        print(f"No models in {store.root}. `ollama pull gemma4:e2b` gets one; every command also takes a .gguf path.")
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
        "details": model.details,
    }


def _age(seconds: float) -> str:
    for length, unit in ((86400 * 7, "week"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
