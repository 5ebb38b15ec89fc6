"""Reads any adapter file: a PEFT folder, or a GGUF file of any name."""

from pathlib import Path
from typing import Any

from wgemma.errors import AdapterError, GgufError, SourceError
from wgemma.files.adapter_gguf import read_gguf_adapter, write_gguf_adapter
from wgemma.files.adapter_pairs import AdapterFile, Pair, check_fits
from wgemma.files.adapter_peft import CONFIG, MAX_CONFIG, WEIGHTS, read_peft, write_peft
from wgemma.files.gguf import Gguf
from wgemma.files.sources import Source, is_url
from wgemma.files.web import without_password
from wgemma.sync import run

__all__ = [
    "AdapterFile",
    "Pair",
    "aread_adapter",
    "check_fits",
    "read_adapter",
    "read_peft",
    "write_gguf_adapter",
    "write_peft",
]


def read_adapter(target: str | Path, name: str | None = None) -> AdapterFile:
    """The adapter from a PEFT folder, a GGUF file or an http(s) URL; `name` defaults to the file's."""
    return run(aread_adapter(target, name))


async def aread_adapter(target: Any, name: str | None = None) -> AdapterFile:
    """Async `read_adapter`. In a page it also takes a `Source` of a GGUF adapter, or two for PEFT: configuration and
    weights."""
    if isinstance(target, tuple):
        config, weights = target
        return await _read_pair(config, weights, name or "adapter")
    local = isinstance(target, Path) or (isinstance(target, str) and not is_url(target))
    path = Path(target).expanduser() if local else None
    if path is not None and path.name in (CONFIG, WEIGHTS):
        path = path.parent
    called = name or (path.name.removesuffix(".gguf") if path else _last(target))
    try:
        if path is not None and path.is_dir():
            return await read_peft(_config_of(path), path / WEIGHTS, called or path.resolve().name)
        gguf = await Gguf.aopen(target if path is None else path)
        try:
            return await read_gguf_adapter(gguf, called)
        finally:
            gguf.close()
    except (AdapterError, GgufError, SourceError) as error:
        shown = without_password(str(path or target))
        raise AdapterError(str(error) if str(error).startswith(shown) else f"{shown}: {error}") from None


async def _read_pair(config: Source, weights: Source, name: str) -> AdapterFile:
    if config.size > MAX_CONFIG:
        raise AdapterError(f"{config.name} is too large to be an {CONFIG}.")
    return await read_peft(bytes(await config.read(0, config.size)), weights, name)


def _last(target: Any) -> str:
    """A name from a URL or from a source's name."""
    text = without_password(str(getattr(target, "name", target))).partition("?")[0].partition("#")[0]
    return text.rpartition("/")[2].removesuffix(".gguf")


def _config_of(folder: Path) -> bytes:
    """The configuration of a PEFT folder, after checking that its weights are there."""
    if not (folder / CONFIG).is_file():
        raise AdapterError(f"there is no {CONFIG} in this folder. An adapter is a PEFT folder or a .gguf file.")
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").exists()
        hint = (
            " wgemma does not read adapter_model.bin, which could run code: save it as safetensors." if pickled else ""
        )
        raise AdapterError(f"there is no {WEIGHTS} in this folder.{hint}")
    try:
        with (folder / CONFIG).open("rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except OSError as error:
        raise AdapterError(f"{CONFIG} cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_CONFIG:
        raise AdapterError(f"{CONFIG} is too large.")
    return data
