"""From the name the user typed to a model ready to chat: finds or downloads it, reports its memory use, loads it.

All messages go to standard error; `quiet` suppresses them.
"""

import argparse
import re
import string
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from wgemma.api import Model
from wgemma.cli.chat_render import DIM, PLAIN, coloured
from wgemma.cli.output import Bar, clean, human_bytes, progress
from wgemma.engine.adapting import checked_scale
from wgemma.engine.engine import Options, Plan, context_of, plan, table_choices
from wgemma.errors import DeviceError, SettingsError
from wgemma.files.adapters import AdapterFile, check_fits, read_adapter
from wgemma.files.download import download
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.locate import ModelFiles, locate
from wgemma.files.sources import HttpSource, is_url
from wgemma.gpu.device import Device
from wgemma.loading import load, open_device
from wgemma.model.config import Config, find_tensors
from wgemma.model.text import TABLE
from wgemma.model.vision_config import has_vision

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
    return files.name if files.stored else Path(files.model).name


def open_model(target: str, options: argparse.Namespace, *, quiet: bool = False) -> Opened:
    """Loads a model. `options` has device, context, kv, precision and ple, and optionally projector and adapter."""
    path = fetch(target, quiet=quiet) if _is_download(target) else target
    files = locate(path)
    projector = getattr(options, "projector", None)
    settings = Options(context=options.context, kv=options.kv, precision=options.precision, ple=options.ple)
    start = time.perf_counter()
    with Gguf.open(files.model) as gguf:
        config = Config.from_gguf(gguf)
        context = context_of(config, settings)  # rejects a bad one before a device is opened
        tensors = find_tensors(config, gguf.tensors)
        adapters = read_adapters(getattr(options, "adapter", None) or (), tensors)
        settings = replace(settings, images=has_vision(gguf) or bool(projector or files.projectors))
        device = choose_device(options.device, quiet=quiet)
        total = 0
        if device is None:
            _tell(f"{_short(files)} on NumPy (reference)", quiet=quiet)
        else:
            choices = table_choices(device, gguf, config, settings)
            total = sum(t.nbytes for name, t in tensors.items() if name != TABLE or choices[0])
            planned = plan(config, gguf.tensors, settings, context, choices[0])
            _tell(describe_plan(f"{_short(files)} on {_adapter(device)}", planned, context), quiet=quiet)
    for adapter, scale in adapters:
        much = "" if scale == 1 else f", {scale:g} times"
        _tell(f"with the adapter {adapter.name}: rank {adapter.rank}{much}", quiet=quiet)
    with ExitStack() as stack:
        bar: Bar = (lambda amount: None) if quiet or total < QUICK else stack.enter_context(progress("loading", total))
        model = load(
            path,
            device=device or "reference",
            context=options.context,
            kv=options.kv,
            precision=options.precision,
            ple=options.ple,
            projector=projector,
            progress=bar,
        )
    try:
        for adapter, scale in adapters:
            model.load_adapter(adapter, model.backend.adapters.unused(adapter.name), scale)
    except BaseException:
        model.close()
        raise
    if not quiet:
        model.backend.towers.watch = lambda name, size: progress(f"loading the {name} tower", size)
    return Opened(model, files, str(path), time.perf_counter() - start, device)


def read_adapters(named: Sequence[str], tensors: Mapping[str, Tensor]) -> list[tuple[AdapterFile, float]]:
    """The adapters and scales of `--adapter PATH[=SCALE]`; one that does not fit is rejected before the model loads."""
    found = []
    for text in named:
        path, scale = split_scale(text)
        adapter = read_adapter(path)
        check_fits(adapter, tensors)
        found.append((adapter, scale))
    return found


def split_scale(text: str) -> tuple[str, float]:
    """PATH=SCALE → path and scale. An existing path that contains "=" is taken whole."""
    path, equals, scale = text.rpartition("=")
    if not equals or Path(text).exists():
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


def _adapter(device: Device) -> str:
    return f"{device.info.name}, {device.info.backend}"


def describe_plan(title: str, planned: Plan, context: int) -> str:
    """Where memory will go: a small table on a terminal, one line elsewhere."""
    where = "GPU" if planned.table_on_gpu else "host, read row by row"
    rows = [
        ("weights", planned.weights, "GPU"),
        *([("per-layer table", planned.table, where)] if planned.table else []),
        ("KV cache", planned.kv, f"GPU, once all {context} tokens are in use"),
        ("activations", planned.activations, "GPU"),
        ("total", planned.gpu, "GPU"),
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


def _is_download(target: str) -> bool:
    return is_url(target) and re.split("[?#]", target)[0].lower().endswith(".gguf")


def fetch(url: str, *, quiet: bool = False) -> Path:
    """The file behind the URL, from the cache or downloaded into it; the bar appears only during a download."""
    with ExitStack() as stack:
        bars: list[Bar] = []

        def advance(amount: int) -> None:
            if not bars:
                bars.append(
                    stack.enter_context(progress("downloading", HttpSource(quote(url, safe=string.punctuation)).size))
                )
            bars[0](amount)

        return download(url, progress=(lambda amount: None) if quiet else advance)
