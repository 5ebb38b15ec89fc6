"""From a name to a model: `load` finds its files, tests the device, brings the weights there, and gives a `Model`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from wgemma.api import Model, fitting_adapter
from wgemma.engine.adapting import Adapters
from wgemma.engine.backend import Backend, GpuBackend
from wgemma.engine.engine import Engine, Options
from wgemma.engine.selftest import prepare
from wgemma.engine.towers import GpuTowers, heard_by
from wgemma.errors import DeviceError, ModelError, OutOfMemory
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles, locate
from wgemma.gpu.device import Device
from wgemma.model.config import Config
from wgemma.model.matmul import Precision
from wgemma.stages import Stages
from wgemma.sync import run
from wgemma.text.tokenizer import Tokenizer


def load(target: str | Path | None = None, **options: Any) -> Model:
    """Loads a model: an Ollama name, a .gguf path or an http(s) URL; without any, the one that comes with wgemma.

    Options: device (None: the best adapter; "reference": NumPy, for machines without one), context, kv ("f16" or
    "f32"), precision ("exact", or "fast": inputs of a few rows' products in eight bits, around attention in sixteen,
    where the GPU multiplies those; of a prompt's products the feed-forward ones take eight bits, all others f32), ple
    ("auto", "gpu", "host"), memory (bytes of the GPU to stay within), projector (the file of its vision and audio
    towers, where they are not its own), adapter (a PEFT folder or .gguf adapter, a list of them, or a dict of such by
    name), progress (called with the bytes of every piece loaded).
    """
    return run(aload(target, **options))


async def aload(
    target: str | Path | None = None,
    *,
    projector: str | Path | None = None,
    adapter: "str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None" = None,
    device: Device | str | None = None,
    context: int | None = None,
    kv: str = "f16",
    precision: Precision = "exact",
    ple: str = "auto",
    memory: int | None = None,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> Model:
    """`load`, for code that runs in an event loop."""
    files = locate(target)
    options = Options(context=context, kv=kv, precision=precision, ple=ple, memory=memory)
    projectors = files.projectors if projector is None else [locate(projector).model]
    with ExitStack() as unless_loaded:
        paths = [_on_disk(file, progress) for file in (files.model, *projectors)]
        opened = [unless_loaded.enter_context(await Gguf.aopen(path)) for path in paths]
        wanted = [*_own_adapters(files), *_named(adapter)]
        model = await assemble(files, opened, device, options, progress, wanted)
        unless_loaded.pop_all()
        return model


def _own_adapters(files: ModelFiles) -> list[tuple[Any, str | None]]:
    """The adapters that come with a model of the store; their files have no names, so they have the model's."""
    return [(path, files.name if i == 0 else f"{files.name} {i + 1}") for i, path in enumerate(files.adapters)]


def _named(adapter: Any) -> list[tuple[Any, str | None]]:
    """What `load` was given as adapters: (file, its name or None for its own)."""
    if adapter is None:
        return []
    if isinstance(adapter, Mapping):
        return [(path, name) for name, path in adapter.items()]
    return [(path, None) for path in (adapter if isinstance(adapter, list | tuple) else [adapter])]


async def assemble(
    files: ModelFiles,
    opened: Sequence[Gguf],
    device: Device | str | None,
    options: Options,
    progress: Callable[[int], None] = lambda nbytes: None,
    adapters: Sequence[tuple[Any, str | None]] = (),
    stages: Stages | None = None,
) -> Model:
    """The model in open files, its own and then its projectors'; they stay open when it fails. `adapters` are files
    with their names, or None for a file's own; `stages` hears how far it is."""
    stages = stages or Stages()

    @cache
    def vocabulary() -> Tokenizer:
        with stages.within("vocabulary"):
            return Tokenizer.from_gguf(opened[0])

    with ExitStack() as unless_loaded:
        try:
            fitting = await _adapters(opened[0], adapters)  # one that does not fit is told before all the loading
            backend = await _backend(device, files.name, opened, options, progress, stages, vocabulary)
            unless_loaded.callback(backend.close)
            if fitting:
                stages.begin("adapters")
                await backend.adapt(fitting)
            model = Model(files, opened, backend, vocabulary())
            stages.end()
        except ModelError as error:  # the name the user knows it by
            raise ModelError(str(error).replace(opened[0].source.name, files.name)) from None
        unless_loaded.pop_all()
        return model


async def _adapters(gguf: Gguf, wanted: Sequence[tuple[Any, str | None]]) -> Adapters:
    beside = Adapters()
    for target, name in wanted:
        file = await fitting_adapter(gguf, target, name)
        beside = beside.having(file, name or beside.unused(file.name), 1.0)
    return beside


def _on_disk(file: str | Path, progress: Callable[[int], None]) -> str | Path:
    """A model's file; one on the web is downloaded first, and kept."""
    if isinstance(file, Path):
        return file
    from wgemma.files.download import download

    return download(file, progress=progress)


async def _backend(
    device: Device | str | None,
    name: str,
    files: Sequence[Gguf],
    options: Options,
    progress: Callable[[int], None],
    stages: Stages,
    meanwhile: Callable[[], object],
) -> Backend:
    gguf, *projectors = files
    config = Config.from_gguf(gguf)
    if device == "reference":
        from wgemma.engine.fallback import ReferenceBackend, ReferenceTowers

        return ReferenceBackend(gguf, options, ReferenceTowers(name, config.width, gguf, projectors))
    if device is None or isinstance(device, str):
        stages.begin("GPU")
        opened = open_device(device)
    else:
        opened = device
    try:
        towers = GpuTowers(opened, name, config.width, gguf, projectors, heard_by(progress))
        options = replace(options, images=towers.sees)
        stages.begin("self-test")
        await prepare(opened, config, gguf.tensors, options, meanwhile)
        stages.begin("weights")
        engine = await Engine.load(opened, gguf, options, progress)
        try:
            backend = GpuBackend(opened, engine, towers, owned=opened is not device)
            await opened.confirm()
        except OutOfMemory:
            engine.free()
            raise
        return backend
    except BaseException:
        if opened is not device:
            opened.close()
        raise


def open_device(name: str | None = None) -> Device:
    """The best adapter, or the first whose name holds `name`."""
    from wgemma.gpu.native import NativeDevice, adapters

    found = [a for a in adapters() if name is None or name.lower() in str(a.info["device"]).lower()]
    if not found:
        hint = f"no adapter is called {name!r}" if name else "no WebGPU adapter was found"
        raise DeviceError(f"{hint}. `wgemma doctor` shows what there is; the device 'reference' computes without one.")
    return NativeDevice(found[0])
