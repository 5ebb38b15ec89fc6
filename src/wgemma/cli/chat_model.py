"""From the name the user typed to a model ready to chat: finds or downloads it, reports its memory use, loads it.

All messages go to standard error; `quiet` suppresses them.
"""

import argparse
import string
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from wgemma.api import Model
from wgemma.checks import human_bytes
from wgemma.cli.chat_render import DIM, PLAIN, coloured
from wgemma.cli.output import ON_THE_PROCESSOR, Bar, clean, progress
from wgemma.cli.progress_line import no_line
from wgemma.engine.adapting import checked_scale
from wgemma.engine.opening import Plan
from wgemma.engine.options import Options
from wgemma.errors import AdapterError, DeviceError, SettingsError
from wgemma.files.adapters import OpenAdapter, open_adapter
from wgemma.files.download import download
from wgemma.files.locate import ModelFiles, locate
from wgemma.files.parts import part_urls
from wgemma.files.paths import mode, user_path
from wgemma.files.sources import HttpSource, NoRanges
from wgemma.gpu.device import Device
from wgemma.loading import Loading, open_device, open_files
from wgemma.sync import run

QUICK = 64 << 20  # bytes that load too fast for a progress bar


@dataclass(frozen=True)
class Opened:
    """A loaded model and what else the chat needs. `target` is what `wgemma show` takes."""

    model: Model
    files: ModelFiles
    target: str
    seconds: float
    device: Device | None

    @property
    def name(self) -> str:
        return _short(self.files)

    def close(self) -> None:
        self.model.close()
        if self.device is not None:
            self.device.close()


def _short(files: ModelFiles) -> str:
    return files.name if files.stored else Path(files.name).name


def open_model(target: str, options: argparse.Namespace, *, quiet: bool = False) -> Opened:
    """Loads a model. `options` has device, context, kv, precision and ple, and optionally projector and adapter."""
    settings = Options(context=options.context, kv=options.kv, precision=options.precision, ple=options.ple)
    files = _fetched(target, quiet=quiet)
    start = time.perf_counter()
    adapters = open_adapters(getattr(options, "adapter", None) or ())
    device = choose_device(options.device, quiet=quiet)
    with ExitStack() as stack:
        teller = _Teller(stack, adapters, quiet=quiet)
        if device is None:
            teller.begin(f"{_short(files)} on NumPy (reference)")
        loading = Loading(
            settings,
            device or "reference",
            [(adapter, None, scale) for adapter, scale in adapters],
            announce=lambda planned: teller.announce(_short(files), device, planned),
            progress=teller.advance,
        )
        model = run(open_files(files, loading, projector=getattr(options, "projector", None)))
    if not quiet:
        model.backend.towers.watch = _loading_tower
    return Opened(model, files, files.name, time.perf_counter() - start, device)


@contextmanager
def _loading_tower(name: str, size: int) -> Iterator[Bar]:
    with no_line(), progress(f"loading the {name} tower", size) as bar:
        yield bar


class _Teller:
    """Says what is loaded where, and shows a bar where that takes long; `stack` takes the bar down."""

    def __init__(self, stack: ExitStack, adapters: Sequence[tuple[OpenAdapter, float]], *, quiet: bool) -> None:
        self._stack = stack
        self._adapters = adapters
        self._quiet = quiet
        self._bar: Bar | None = None

    def begin(self, title: str) -> None:
        _tell(title, quiet=self._quiet)
        for adapter, scale in self._adapters:
            much = "" if scale == 1 else f", {scale:g} times"
            _tell(f"with the adapter {adapter.name}: rank {adapter.rank}{much}", quiet=self._quiet)

    def announce(self, name: str, device: Device | None, planned: Plan) -> None:
        assert device is not None
        software = device.info.kind == "CPU"
        title = f"{name} on {device.info.name}, {device.info.backend}"
        self.begin(describe_plan(title, planned, "memory" if software else "GPU"))
        if software:
            _tell(ON_THE_PROCESSOR, quiet=self._quiet)
        if not self._quiet and planned.reads >= QUICK:
            self._bar = self._stack.enter_context(progress("loading", planned.reads))

    def advance(self, amount: int) -> None:
        if self._bar is not None:
            self._bar(amount)


def open_adapters(named: Sequence[str]) -> list[tuple[OpenAdapter, float]]:
    """The adapters and scales of `--adapter PATH[=SCALE]`."""
    return [(open_adapter(path), scale) for path, scale in map(split_scale, named)]


def split_scale(text: str) -> tuple[str, float]:
    """PATH=SCALE → path and scale. An existing path that contains "=" is taken whole."""
    path, equals, scale = text.rpartition("=")
    if not equals or mode(user_path(text, AdapterError)):
        return text, 1.0
    try:
        return path, checked_scale(float(scale))
    except (ValueError, SettingsError):
        raise SettingsError(f"--adapter {text}: {scale!r} is not a scale; write PATH=0.5, for example.") from None


def choose_device(name: str | None, *, quiet: bool = False) -> Device | None:
    """The GPU to use; None is the NumPy reference, chosen by name or because there is no GPU."""
    if name == "reference":
        return None
    try:
        return open_device(name)
    except DeviceError as trouble:
        if name is not None:
            raise
        reason = str(trouble).partition(". ")[0].rstrip(".")
        _tell(
            f"No usable GPU ({reason}), so wgemma falls back to NumPy: correct but slow. To use a GPU, install its "
            "driver: on Linux its Vulkan driver, or mesa-vulkan-drivers for a software one.",
            quiet=quiet,
        )
        return None


def describe_plan(title: str, planned: Plan, place: str = "GPU") -> str:
    """Where memory will go: a small table on a terminal, one line elsewhere. `place` is what the device's memory is
    called."""
    table = place if planned.table_on_gpu else "host, read row by row"
    rows = [
        ("weights", planned.weights, place),
        *([("per-layer table", planned.table, table)] if planned.table else []),
        ("KV cache", planned.kv, f"{place}, once all {planned.context} tokens are in use"),
        ("activations", planned.activations, place),
        ("total", planned.gpu, place),
    ]
    if not sys.stderr.isatty():
        facts = ", ".join(f"{name} {human_bytes(size)} ({place})" for name, size, place in rows)
        return f"{title}: {facts}"
    lines = [f"  {name:<16} {human_bytes(size):>8}  {place}" for name, size, place in rows]
    return "\n".join([title, *lines])


def _tell(text: str, *, quiet: bool) -> None:
    if not quiet:
        dim, plain = (DIM, PLAIN) if coloured(sys.stderr) else ("", "")
        print(f"{dim}{clean(text)}{plain}", file=sys.stderr)


# -- from the web


def _fetched(target: str, *, quiet: bool) -> ModelFiles:
    """The model's files, which are downloaded first if they are on the web."""
    files = locate(target)
    if not isinstance(files.model, str):
        return files
    paths = [fetch(url, quiet=quiet) for url in part_urls(files.model)]
    return locate(paths[0]) if len(paths) == 1 else replace(files, model=tuple(paths))


def fetch(url: str, *, quiet: bool = False) -> Path:
    """The file behind the URL, from the cache or downloaded into it; the bar appears only during a download."""
    with ExitStack() as stack:
        bars: list[Bar] = []

        def advance(amount: int) -> None:
            if not bars:
                bars.append(stack.enter_context(progress("downloading", _size(url))))
            bars[0](amount)

        return download(url, progress=(lambda amount: None) if quiet else advance)


def _size(url: str) -> int | None:
    try:
        return HttpSource(quote(url, safe=string.punctuation)).size
    except NoRanges as server:
        return server.size
