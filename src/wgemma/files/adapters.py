"""Reads any adapter file: a PEFT folder, or a GGUF file of any name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from wgemma.checks import shown
from wgemma.errors import AdapterError, SettingsError
from wgemma.files.adapter_gguf import open_gguf_adapter, write_gguf_adapter
from wgemma.files.adapter_pairs import AdapterFile, OpenAdapter, Pair, adapter_errors, check_fits
from wgemma.files.adapter_peft import CONFIG, MAX_CONFIG, WEIGHTS, open_peft, peft_files, read_peft, write_peft
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.paths import mode, user_path
from wgemma.files.sources import Source, is_url
from wgemma.files.web import without_password
from wgemma.sync import run

__all__ = [
    "AdapterFile",
    "OpenAdapter",
    "Pair",
    "aopen_adapter",
    "aread_adapter",
    "check_fits",
    "fitting_adapter",
    "open_adapter",
    "peft_files",
    "read_adapter",
    "read_peft",
    "write_gguf_adapter",
    "write_peft",
]


def read_adapter(target: str | Path, name: str | None = None) -> AdapterFile:
    """The adapter from a PEFT folder, a GGUF file or an http(s) URL; `name` defaults to the file's."""
    return run(aread_adapter(target, name))


async def aread_adapter(target: Any, name: str | None = None) -> AdapterFile:
    """Async `read_adapter`; takes what `aopen_adapter` does."""
    return await (await aopen_adapter(target, name)).read()


def open_adapter(target: str | Path, name: str | None = None) -> OpenAdapter:
    """`read_adapter`, but only the header."""
    return run(aopen_adapter(target, name))


async def fitting_adapter(tensors: Mapping[str, Tensor], target: Any, name: str | None) -> AdapterFile:
    """The adapter that `target` is, has open or names, once its header fits these tensors: a misfit is never read."""
    if name is not None and not isinstance(name, str):
        raise SettingsError(f"an adapter's name is {shown(name)}; it must be a string.")
    opened = target if isinstance(target, AdapterFile | OpenAdapter) else await aopen_adapter(target, name)
    check_fits(opened, tensors)
    return opened if isinstance(opened, AdapterFile) else await opened.read()


async def aopen_adapter(target: Any, name: str | None = None) -> OpenAdapter:
    """Async `open_adapter`. In a page it also takes a `Source` of a GGUF adapter, or two for PEFT: configuration and
    weights."""
    if isinstance(target, tuple) and len(target) == 2:
        config, weights = target
        return await _open_pair(config, weights, name or "adapter")
    local = not (is_url(target) if isinstance(target, str) else isinstance(target, bytes) or hasattr(target, "read"))
    path = user_path(target, AdapterError) if local else None
    if path is not None and path.name in (CONFIG, WEIGHTS):
        path = path.parent
    called = name or (path.name.removesuffix(".gguf") if path else _last(target))
    where = without_password(str(path or target))
    with adapter_errors(where):
        if path is not None and S_ISDIR(mode(path)):
            opened = await open_peft(_config_of(path), path / WEIGHTS, called or path.resolve().name)
        else:
            gguf = await Gguf.aopen(_from_web(target) if isinstance(target, str) and is_url(target) else path or target)
            try:
                opened = open_gguf_adapter(gguf, called)
            except BaseException:
                gguf.close()
                raise
    return replace(opened, where=where)


async def _open_pair(config: Source, weights: Source, name: str) -> OpenAdapter:
    if config.size > MAX_CONFIG:
        raise AdapterError(f"{config.name} is too large to be an {CONFIG}.")
    return await open_peft(bytes(await config.read(0, config.size)), weights, name)


def _from_web(url: str) -> str | Path | tuple[Path, ...]:
    from wgemma.files.download import readable

    return readable(url)


def _last(target: Any) -> str:
    """A name from a URL or from a source's name."""
    text = without_password(str(getattr(target, "name", target))).partition("?")[0].partition("#")[0]
    return text.rpartition("/")[2].removesuffix(".gguf")


def _step(checkpoint: Path) -> int:
    step = checkpoint.name.rpartition("-")[2]
    return int(step) if step.isascii() and step.isdigit() and len(step) < 20 else 0


def _config_of(folder: Path) -> bytes:
    """The configuration of a PEFT folder, after checking that its weights are there."""
    if not S_ISREG(mode(folder / CONFIG)):
        inside = max((path.parent for path in folder.glob(f"checkpoint-*/{CONFIG}")), key=_step, default=None)
        hint = f" Training has left {inside.name} in it: name that." if inside else ""
        raise AdapterError(f"there is no {CONFIG} in this folder. An adapter is a PEFT folder or a .gguf file.{hint}")
    if not S_ISREG(mode(folder / WEIGHTS)):
        pickled = mode(folder / "adapter_model.bin") != 0
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
