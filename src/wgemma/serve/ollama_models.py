"""Ollama's lists of models: which there are, which are loaded, and what one of them is."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wgemma.errors import Error
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.serve.catalogue import Catalogue
from wgemma.serve.models import Models, Resident
from wgemma.serve.ollama import stamp
from wgemma.web.models import Offer

FOR_EVER = 100 * 365 * 86400.0  # seconds; a date must be told
MOST_ITEMS = 1024  # of a list in a model's metadata; the vocabulary's are longer


def tags(catalogue: Catalogue) -> dict[str, Any]:
    return {"models": [_entry(files, offer) for files, offer in catalogue.all()]}


def running(models: Models, there: Sequence[Resident]) -> dict[str, Any]:
    """The loaded models. All that they take is on the GPU, as far as the server can tell. A file outside the stores may
    have to be hashed for its digest."""
    found = []
    for one in there:
        assert one.model is not None
        left = one.expires if one.expires < math.inf else time.time() + (one.keep_alive or models.settings.keep_alive)
        try:
            offer = models.catalogue.describe(one.files)
        except (Error, OSError):  # deleted since it was loaded
            offer = None
        found.append(
            _entry(one.files, offer)
            | {
                "size": one.memory,
                "size_vram": one.memory,
                "expires_at": stamp(min(left, time.time() + FOR_EVER)),
                "context_length": one.model.backend.context,
            }
        )
    return {"models": found}


def show(catalogue: Catalogue, name: str, verbose: bool) -> dict[str, Any]:
    """Everything about one model; reads its file's header."""
    files = catalogue.find(name).files
    offer, stored = catalogue.describe(files), files.stored
    parameters = "\n".join(f"{key:<30} {value}" for key, value in _parameters(files))
    with Gguf.open(files.model) as gguf:
        metadata = {key: _shortened(value, verbose) for key, value in gguf.metadata.items()}
        tensors = [{"name": t.name, "type": t.type, "shape": list(t.shape)} for t in gguf.tensors.values()]
    return {
        "license": "\n".join(stored.licenses) if stored else "",
        "modelfile": _modelfile(files),
        "parameters": parameters,
        "template": _template(files),
        "system": files.system or "",
        "details": _details(files, offer),
        "model_info": metadata,
        "capabilities": offer.capabilities,
        "modified_at": stamp(_modified(files)),
        **({"messages": files.messages} if files.messages else {}),
        **({"tensors": tensors} if verbose else {}),
    }


def _entry(files: ModelFiles, offer: Offer | None) -> dict[str, Any]:
    """A model in a list; there is no offer of files that are gone."""
    stored = files.stored
    return {
        "name": files.name,
        "model": files.name,
        "modified_at": stamp(_modified(files)),
        "size": stored.size if stored else offer.size if offer else 0,
        "digest": stored.digest if stored else offer.digest if offer else "",
        "details": _details(files, offer),
        "capabilities": offer.capabilities if offer else [],
    }


def _details(files: ModelFiles, offer: Offer | None) -> dict[str, Any]:
    stored = files.stored
    known = stored.details if stored else {}
    return {
        "parent_model": (stored.parent if stored else None) or "",
        "format": "gguf",
        "family": known.get("family") or "gemma4",
        "families": known.get("families") or ["gemma4"],
        "parameter_size": known.get("parameter_size") or (_billions(offer.parameters) if offer else ""),
        "quantization_level": known.get("quantization_level") or (offer.quantisation if offer else ""),
    }


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def _modified(files: ModelFiles) -> float:
    if files.stored:
        return files.stored.modified
    first = files.model[0] if isinstance(files.model, tuple) else files.model
    try:
        return Path(first).stat().st_mtime
    except OSError:  # deleted
        return 0.0


def _parameters(files: ModelFiles) -> list[tuple[str, Any]]:
    """Each setting; a list has a line for each of its items."""
    return [
        (key, item)
        for key, value in files.params.items()
        for item in ([f'"{text}"' for text in value] if isinstance(value, list) else [value])
    ]


def _template(files: ModelFiles) -> str:
    return (files.stored.template if files.stored else None) or "{{ .Prompt }}"


def _modelfile(files: ModelFiles) -> str:
    """All that a model is made of, as Ollama writes it; a stored one's files go by the names of their blobs."""
    stored = files.stored
    if stored is None:
        lines = [f"FROM {files.name}"]
    else:
        lines = [f"# To build upon this model, write just this: FROM {files.name}", ""]
        models = stored.files if isinstance(stored.files, tuple) else (stored.files,)
        lines += [f"FROM {path.name}" for path in (*models, *files.projectors)]
        lines += [f"ADAPTER {path.name}" for path in files.adapters]
    lines.append(f"TEMPLATE {_template(files)}")
    if files.system:
        lines.append(f"SYSTEM {_quoted(files.system)}")
    lines += [f"PARAMETER {key} {value}" for key, value in _parameters(files)]
    lines += [f"LICENSE {_quoted(text)}" for text in (stored.licenses if stored else ())]
    lines += [f"MESSAGE {message['role']} {_quoted(message['content'])}" for message in files.messages]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f'"""{text}"""'


def _shortened(value: Any, verbose: bool) -> Any:
    """Long lists are left out, as Ollama does."""
    if isinstance(value, bytes):
        return None
    if isinstance(value, str | int | float | bool):
        return value if not isinstance(value, float) or math.isfinite(value) else None
    try:
        items = list(value)
    except TypeError:
        return None
    return items if verbose or len(items) <= MOST_ITEMS else None
