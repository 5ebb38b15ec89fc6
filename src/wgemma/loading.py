"""Loads models: `load` finds the files, tests the device, uploads the weights and returns a `Model`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

from wgemma.api import Model
from wgemma.checks import called, checked, counted, shown
from wgemma.engine.adapting import Adapters
from wgemma.engine.backend import Backend, GpuBackend
from wgemma.engine.opening import Plan, open_engine, plan, table_choices
from wgemma.engine.options import SLOTS, Options, check_room, context_of
from wgemma.engine.towers import GpuTowers, heard_by
from wgemma.errors import DeviceError, ModelError, SettingsError
from wgemma.files.adapters import fitting_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles, locate
from wgemma.files.sources import is_url
from wgemma.gpu.device import Device
from wgemma.gpu.ledger import Ledger
from wgemma.habits import refuse_unknown_options
from wgemma.model.config import Config, find_tensors
from wgemma.model.matmul import Precision
from wgemma.options import LoadOptions
from wgemma.selftest.verdict import prepare
from wgemma.stages import Stages
from wgemma.sync import run
from wgemma.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load a model, and whom to notify: `announce` gets the plan before anything is uploaded, `progress` the
    byte count of every piece, `stages` the current stage. Each of `adapters` is (file, name, scale); a name of None
    means the file's own."""

    options: Options = field(default_factory=Options)
    device: Device | str | int | None = None
    adapters: Sequence[tuple[Any, str | None, float]] = ()
    announce: Callable[[Plan], None] | None = None
    progress: Callable[[int], None] = lambda nbytes: None
    stages: Stages = field(default_factory=Stages)


@checked
def load(target: str | Path | None = None, **options: Unpack[LoadOptions]) -> Model:
    """Loads the model `target`: a model's name, a .gguf path or an http(s) URL; by default the one in wgemma itself.

    Options:
        device: a GPU adapter by its number in `wgemma doctor` or by part of its name, or "reference" for NumPy; by
            default the best GPU.
        context: the most tokens of prompt and reply together; by default as many as the model allows,
            or its own `num_ctx`.
        kv: the type of the KV cache, "f16" (the default) or "f32".
        precision: "exact" (the default), or "fast": products of a few rows take 8-bit inputs, those around attention
            16-bit, if the GPU supports that; in prefill, feed-forward products take 8-bit inputs and all others f32.
        ple: where the per-layer table of E2B and E4B lies, "gpu" or "host"; by default "auto", where it fits.
        memory: the most GPU memory to use, in bytes.
        slots: how many answers are written at the same time, 1 to 64 (default: 8); more of them wait in line. Room for
            several is made when a second one begins.
        arena: the most GPU memory for keys and values, in bytes; by default enough for one whole context, or for 4096
            tokens in each slot if that is more. It begins small and grows when needed.
        projector: the file with the vision and audio towers, if the model file lacks them.
        adapter: a PEFT folder or .gguf adapter, a list of them, or a dict by name.
        announce: called with the memory `Plan` before anything is loaded.
        progress: called with the byte count of every piece.
    """
    return run(aload(target, **options))


@checked
async def aload(target: str | Path | None = None, **options: Unpack[LoadOptions]) -> Model:
    """`load`, for code that runs in an event loop."""
    refuse_unknown_options("load", options)
    return await _load(target, **options)


async def _load(
    target: str | Path | None,
    *,
    projector: str | Path | None = None,
    adapter: "str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None" = None,
    device: Device | str | int | None = None,
    context: int | None = None,
    kv: str = "f16",
    precision: Precision = "exact",
    ple: str = "auto",
    memory: int | None = None,
    slots: int = SLOTS,
    arena: int | None = None,
    announce: Callable[[Plan], None] | None = None,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> Model:
    options = Options(context=context, kv=kv, precision=precision, ple=ple, memory=memory, slots=slots, arena=arena)
    called("progress", progress, "a function that takes a number of bytes")
    if announce is not None:
        called("announce", announce, "a function that takes a Plan")
    named = isinstance(device, str | int) and not isinstance(device, bool)
    if not (device is None or named or hasattr(device, "limits")):
        raise SettingsError(
            f'device is {shown(device)}; it must be the number or name of a GPU adapter, "reference", or None.'
        )
    return await open_files(
        locate(target), Loading(options, device, _named(adapter), announce, progress), projector=projector
    )


async def open_files(files: ModelFiles, loading: Loading, *, projector: str | Path | None = None) -> Model:
    """The model in these files, with its own adapters and the requested ones."""
    projectors = files.projectors if projector is None else [_projector(projector)]
    with ExitStack() as unless_loaded:
        paths = [_on_disk(file, loading.progress) for file in (files.model, *projectors)]
        opened = [unless_loaded.enter_context(await Gguf.aopen(path)) for path in paths]
        model = await assemble(files, opened, replace(loading, adapters=[*_own_adapters(files), *loading.adapters]))
        unless_loaded.pop_all()
        return model


def _projector(target: str | Path) -> Any:
    """A projector's file: a path or URL, never a model's name."""
    return locate(Path(target) if isinstance(target, str) and not is_url(target) else target).model


def _own_adapters(files: ModelFiles) -> list[tuple[Any, str | None, float]]:
    """The adapters of a model in the store; their files are unnamed, so they are named after the model."""
    return [(path, files.name if i == 0 else f"{files.name} {i + 1}", 1.0) for i, path in enumerate(files.adapters)]


def _named(adapter: Any) -> list[tuple[Any, str | None, float]]:
    """`load`'s adapter argument as (file, name, scale)."""
    if adapter is None:
        return []
    if isinstance(adapter, Mapping):
        return [(path, name, 1.0) for name, path in adapter.items()]
    return [(path, None, 1.0) for path in (adapter if isinstance(adapter, list | tuple) else [adapter])]


async def assemble(files: ModelFiles, opened: Sequence[Gguf], loading: Loading) -> Model:
    """The model in open files, its own first, then its projectors'; they stay open if this fails."""
    stages = loading.stages

    @cache
    def vocabulary() -> Tokenizer:
        with stages.within("vocabulary"):
            return Tokenizer.from_gguf(opened[0])

    with ExitStack() as unless_loaded:
        try:
            config = Config.from_gguf(opened[0])
            loading = replace(loading, options=_within_own_context(files, config, loading.options))
            fitting = await _adapters(opened[0], config, loading)  # before loading, so a misfit fails early
            backend = await _backend(files.name, opened, config, loading, vocabulary)
            unless_loaded.callback(backend.close)
            if fitting:
                stages.begin("adapters")
                await backend.adapt(fitting)
            model = Model(files, opened, config, backend, vocabulary())
            stages.end()
        except ModelError as error:  # use the name the user knows it by
            raise ModelError(str(error).replace(opened[0].source.name, files.name)) from None
        unless_loaded.pop_all()
        return model


def _within_own_context(files: ModelFiles, config: Config, options: Options) -> Options:
    """The options; a caller who names no context gets the model's own `num_ctx`, as far as it can go."""
    own = files.params.get("num_ctx", 0)
    return (
        options if options.context is not None or own < 1 else replace(options, context=min(own, config.context_length))
    )


async def _adapters(gguf: Gguf, config: Config, loading: Loading) -> Adapters:
    beside, tensors = Adapters(), find_tensors(config, gguf.tensors)
    for target, name, scale in loading.adapters:
        file = await fitting_adapter(tensors, target, name)
        beside = beside.having(file, name or beside.unused(file.name), scale)
    return beside


def _on_disk(file: str | Path | tuple[Path, ...], progress: Callable[[int], None]) -> Path | tuple[Path, ...]:
    """A model's local files; a URL is downloaded first, and the download kept."""
    if not isinstance(file, str):
        return file
    from wgemma.files.download import download_parts

    return download_parts(file, progress=progress)


async def _backend(
    name: str, files: Sequence[Gguf], config: Config, loading: Loading, meanwhile: Callable[[], object]
) -> Backend:
    gguf, *projectors = files
    context_of(config, loading.options)  # refuse a bad one before opening a device
    device = loading.device
    if device == "reference":
        from wgemma.engine.fallback import ReferenceBackend, ReferenceTowers

        return ReferenceBackend(gguf, loading.options, ReferenceTowers(name, config.width, gguf, projectors))
    if device is None or isinstance(device, str | int):
        loading.stages.begin("GPU")
        opened = open_device(device)
    else:
        opened = device
    ledger = Ledger(opened, limit=loading.options.memory)
    try:
        towers = GpuTowers(ledger, name, config.width, gguf, projectors, heard_by(loading.progress))
        options = replace(loading.options, images=towers.sees)
        check_room(config, options, opened.limits)
        if loading.announce is not None:
            on_gpu = (await table_choices(opened, gguf, config, options))[0]
            loading.announce(await plan(opened, gguf, config, options, table_on_gpu=on_gpu))
        loading.stages.begin("self-test")
        options = await prepare(opened, config, gguf.tensors, options, meanwhile)
        loading.stages.begin("weights")
        engine = await open_engine(ledger, gguf, config, options, loading.progress)
        backend = GpuBackend(engine, towers, owned=opened is not device)
        await opened.confirm()
        return backend
    except BaseException:
        ledger.free()
        if opened is not device:
            opened.close()
        raise


def open_device(wanted: str | int | None = None) -> Device:
    """Opens the best adapter, the one of that number, or the first whose name contains `wanted`."""
    from wgemma.gpu.native import NativeDevice, adapters

    every, number = adapters(), _number(wanted)
    if number is not None:
        found = [adapter for i, adapter in enumerate(every) if i == number]
    else:
        name = str(wanted or "").lower()
        found = [adapter for adapter in every if name in str(adapter.info["device"]).lower()]
    if not found:
        hint = "no WebGPU adapter was found" if wanted in (None, "") else f"no adapter is called {shown(wanted)}"
        if number is not None:
            there = f"this machine has {counted(len(every), 'adapter')}, from number 0 on"
            hint = f"there is no adapter {shown(number)}: {there}"
        raise DeviceError(f"{hint}. `wgemma doctor` lists the adapters; the device 'reference' runs without one.")
    return NativeDevice(found[0])


def _number(wanted: str | int | None) -> int | None:
    """An adapter's number: digits are one, unless there are so many that they are part of a name, as in 4090."""
    if isinstance(wanted, str):
        return int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) <= 2 else None
    return wanted
