"""Turns what a user calls a model (a stored model's name, a .gguf path or an http(s) URL) into files and settings."""

from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import parse_qs

from wgemma.embedded import NAME, embedded_model, is_embedded
from wgemma.errors import ModelError, SourceError, StoreError
from wgemma.files.adapter_pairs import not_a_model
from wgemma.files.adapter_peft import CONFIG, WEIGHTS
from wgemma.files.names import is_on_hub
from wgemma.files.ollama import StoredModel
from wgemma.files.paths import mode, user_path
from wgemma.files.sources import is_url
from wgemma.files.stores import Stores
from wgemma.files.web import without_password

# Gemma 4's own generation settings; the params layer of a stored model overrides them.
DEFAULT_PARAMS: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}


@dataclass(frozen=True)
class ModelFiles:
    """The files and settings of one model. `stored` is its entry in a store, if it comes from there. `model` is
    a path or URL; of a file in parts it is any one of them, or the paths of all."""

    name: str
    model: str | Path | tuple[Path, ...]
    projectors: list[Path] = field(default_factory=list)
    adapters: list[Path] = field(default_factory=list)
    drafts: list[Path] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_PARAMS))
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt_style: str | None = None  # None: decided by the model's shape
    stored: StoredModel | None = None


def locate(target: str | Path | None) -> ModelFiles:
    """The files for `target`. If it is neither a file nor a URL, it is the name of a stored model; None or its name is
    the embedded model."""
    if target is None or (isinstance(target, str) and is_embedded(target)):
        return _embedded()
    if not (isinstance(target, str) and is_url(target)):
        user_path(target)  # refuses what no file or model is called
    text = str(target)
    on_hub = is_on_hub(text)
    if is_download(text) and not (on_hub and text in Stores.find()):
        return ModelFiles(without_password(text), text)
    path = _file(text)
    if _is_peft(text) and (isinstance(target, Path) or text not in Stores.find()):
        raise ModelError(f"{text}: {not_a_model(text)}")
    looks_like_a_file = text.lower().endswith(".gguf") and not on_hub
    if isinstance(target, Path) or (looks_like_a_file and (path or text not in Stores.find())):
        if path is None:
            shown = without_password(text)
            raise SourceError(f"{shown}: no such file. `wgemma list` shows the models on this computer.")
        return ModelFiles(text, path)
    try:
        stored = Stores.find().model(text)
    except StoreError as error:
        if error.reason in ("invalid_name", "not_found") and path is not None:
            return ModelFiles(text, path)
        if error.reason == "invalid_name" and is_url(text) and not on_hub:
            reason = f"{without_password(text)}: a model's URL must end in .gguf, in its path or its query."
            raise SourceError(reason) from None
        if error.reason == "invalid_name" and _is_folder(text):
            raise SourceError(f"{text} is a folder; name the .gguf file in it.") from None
        raise
    return stored_files(stored)


def is_download(text: str) -> bool:
    """Whether this is the address of a GGUF file: its path ends so, or a value in its query. On Hugging Face, other
    addresses are those of pages."""
    if not is_url(text) or (is_on_hub(text) and "/resolve/" not in text):
        return False
    path, _, query = text.partition("#")[0].partition("?")
    values = [value for values in parse_qs(query).values() for value in values]
    return any(end.lower().endswith(".gguf") for end in (path, *values))


def stored_files(stored: StoredModel) -> ModelFiles:
    """The files and settings of a stored model."""
    return ModelFiles(
        name=str(stored.name),
        model=stored.files,
        projectors=stored.projectors,
        adapters=stored.adapters,
        drafts=stored.drafts,
        params={**DEFAULT_PARAMS, **stored.params},
        system=stored.system,
        messages=stored.messages,
        prompt_style=stored.prompt_style,
        stored=stored,
    )


def _embedded() -> ModelFiles:
    path = embedded_model()
    if path is None:
        raise ModelError("this build of wgemma has no embedded model. Name one; `wgemma list` shows what you have.")
    # A model this small does best when it decodes greedily.
    return ModelFiles(NAME, path, params={**DEFAULT_PARAMS, "temperature": 0.0})


def _is_peft(text: str) -> bool:
    """Whether this is a PEFT adapter's folder, or a file of it."""
    path = user_path(text)
    return S_ISREG(mode((path.parent if path.name in (CONFIG, WEIGHTS) else path) / CONFIG))


def _is_folder(text: str) -> bool:
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


def _file(text: str) -> Path | None:
    """The file of that name, if it exists and is accessible."""
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError):  # name too long, folder not readable, unknown user after "~"
        return None
