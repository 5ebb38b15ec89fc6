"""What commands say of a stored model: how to run it, or why that cannot be."""

import re
from functools import cache
from pathlib import Path

from wgemma.errors import Error, SettingsError
from wgemma.files.gguf import Gguf
from wgemma.files.locate import stored_files
from wgemma.files.names import Name
from wgemma.files.ollama import StoredModel
from wgemma.files.params import check_param
from wgemma.files.stores import Stores
from wgemma.model.config import ARCHITECTURE, Config
from wgemma.ranges import NUMBERS, WHOLE

SHORT = {  # by StoreError.reason
    "missing_blob": "a file of it is missing",
    "no_model_layer": "it has no model file",
    "invalid_digest": "its manifest names a file by something that is no digest",
}


def how_to_run(name: Name, stores: Stores) -> str:
    """What to type next for a model that has just come into wgemma's store, or why it cannot run."""
    why = problem(stores.own.model(name))
    told = f"wgemma cannot run it: {why}." if why else f"`wgemma run {name}` starts it."
    return told + (f" It hides Ollama's {name}, which `wgemma rm {name}` shows again." if stores.hides(name) else "")


def problem(model: StoredModel) -> str | None:
    """Why wgemma cannot run a model; None if it can. Reads small files and headers at most; of a model other than a
    Gemma 4 only the configuration, which names the family."""
    family = model.details["family"]
    if family and family != ARCHITECTURE:
        return f"its architecture is {family:.40}; wgemma runs {ARCHITECTURE} only"
    try:
        if why := _problem_of(model.files):
            return why
        model.check_blobs()
        files = stored_files(model)
        for kind, paths in (("projector", files.projectors), ("adapter", files.adapters)):
            for path in paths:
                if why := _damage(path):
                    return f"its {kind} is damaged: {why}"
        for key in files.params.keys() & {*NUMBERS, *WHOLE}:
            check_param(key, files.params[key])
        return None
    except SettingsError as error:
        return f"its {error}".rstrip(".")
    except Error as error:
        return brief(error, str(model.name))


@cache
def _problem_of(files: Path | tuple[Path, ...]) -> str | None:
    """The same by the file's header; many tags share one file."""
    try:
        with Gguf.open(files) as gguf:
            Config.from_gguf(gguf)
    except Error as error:
        return brief(error, str(files if isinstance(files, Path) else files[0]))
    return None


@cache
def _damage(path: Path) -> str | None:
    """What is wrong with the header of a projector or an adapter."""
    try:
        Gguf.open(path).close()
    except Error as error:
        return brief(error, str(path))
    return None


def brief(error: Error, name: str) -> str:
    """An error's first sentence, about "it"."""
    if (reason := getattr(error, "reason", None)) in SHORT:
        return SHORT[reason]
    told = str(error).partition(". ")[0].rstrip(".")
    told = re.sub(rf"\bthe (\w+) of {re.escape(name)}", r"its \1", told)
    return told.removeprefix(f"{name}: ") if told.startswith(f"{name}: ") else told.replace(name, "it", 1)
