"""Whether this GPU computes correctly: runs the kernels a model needs on small problems with stored answers.

A wrong kernel falls back to its plain variant, and middle.wgsl, if that is wrong too, to the kernels for fewer and for
more rows. The verdict is cached per adapter, driver and version: in a file beside
the downloaded models, or wherever another `keeper` puts it.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Protocol

from wgemma.engine.options import Options
from wgemma.errors import DeviceError, SourceError
from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Device
from wgemma.model.config import Config
from wgemma.selftest.problems import HEAD_SIZES, Problem, answers, problems_of
from wgemma.selftest.trial import Output, Trial
from wgemma.version import __version__

log = logging.getLogger(__name__)

TOLERANCE = 1e-3  # relative; an f16 cache may use half of it, everything else a hundredth
ROUNDED = 3e-2  # with inputs rounded to eight bits, which may use half of it
MOST_VERDICTS = 100
AVOIDED = "without middle"  # stands among the kernels of a verdict if middle.wgsl is wrong in either variant


async def prepare(
    device: Device,
    config: Config,
    tensors: Mapping[str, Tensor],
    options: Options,
    meanwhile: Callable[[], object] = lambda: None,
) -> Options:
    """Makes sure that this model's kernels compute correctly here, each in its plain variant if necessary. Calls
    `meanwhile` while they compile, if they do. Returns the options to go on with."""
    if any(layer.head_dim not in HEAD_SIZES for layer in config.layers):
        return options  # unsupported by any kernel; loading will say so
    wanted = problems_of(config, tensors, options)
    key = _key(device, wanted, options)
    known = (await _read()).get(key)
    if known is not None:
        device.distrust(known)
        return replace(options, middle=AVOIDED not in known)
    kernels = {"repack"}.union(*(problem.kernels(compact=device.compact) for problem in wanted))
    untouched = not any(device.plain(kernel) for kernel in kernels)
    wrong = (await self_test(device, config, wanted, options, meanwhile)).wrong
    if wrong:
        device.distrust(wrong)
        base = next(problem for problem in wanted if problem.kind)  # every trial needs a matrix
        again = [
            problem
            for problem in wanted
            if problem is base or "repack" in wrong or problem.kernels(compact=device.compact) & wrong
        ]
        still = wrong & (await self_test(device, config, again, options)).wrong
        if still - {"middle"}:
            raise DeviceError(
                f"{device.info.name} computes wrong numbers in {_listed(still)}, even in the plain variant. Install a "
                "newer driver, or load the model with device='reference'; `wgemma doctor --sweep` shows details."
            )
        told = {"the plain variant, which is slower, takes over": wrong - still}
        told["several sequences at a time do without it, which is slower"] = still
        for instead, names in told.items():
            if names:
                log.warning(
                    "%s computes wrong numbers in %s; %s. A newer driver may help; `wgemma doctor --sweep` shows more.",
                    device.info.name,
                    _listed(names),
                    instead,
                )
        if still:
            wrong |= {AVOIDED}
    if untouched:  # otherwise the verdict would cover only plain kernels
        await _remember(key, wrong)
    return replace(options, middle=AVOIDED not in wrong)


def _listed(kernels: Iterable[str]) -> str:
    return ", ".join(sorted(kernels))


# -- the test


@dataclass(frozen=True, slots=True)
class Verdict:
    """The kernels that gave wrong answers."""

    wrong: frozenset[str]


async def self_test(
    device: Device,
    config: Config,
    wanted: Sequence[Problem],
    options: Options,
    meanwhile: Callable[[], object] = lambda: None,
) -> Verdict:
    """Runs the problems on the device, with the requested cache type and precision, and compares the answers."""
    trial = Trial(device, config, options)
    try:
        fast, compact = options.precision == "fast", device.compact
        return judge(await trial.solve(wanted, meanwhile), trial.outputs, fast=fast, compact=compact)
    finally:
        trial.free()


def judge(arena: bytes, outputs: Iterable[Output], *, fast: bool, compact: bool) -> Verdict:
    """Which kernels are wrong. If no reader of a weight type is right, its repacking is suspect too."""
    wrong: set[str] = set()
    readers: dict[str, bool] = {}  # by weight type, whether any is right
    for problem, own in groupby(outputs, key=lambda output: output.problem):
        told, middle = answers()[problem.answer], problem.kernel == "middle"
        pairs = list(zip(own, told[:1] if middle else told, strict=True))
        rounds = fast and (problem.kernel == "matvec" or problem.in_bytes or (middle and not problem.fine))
        tolerance = ROUNDED if rounds else TOLERANCE
        right = all(output.error(arena, answer) <= tolerance for output, answer in pairs)  # False for NaN
        if not right:
            wrong |= problem.kernels(compact=compact)
        if problem.kind:
            readers[problem.kind] = right or readers.get(problem.kind, False)
    if not all(readers.values()):
        wrong.add("repack")
    return Verdict(frozenset(wrong))


# -- cached verdicts


def _key(device: Device, wanted: Sequence[Problem], options: Options) -> str:
    """The cache key of a verdict: if any part of it changes, the test runs again."""
    shaders = hashlib.sha256()
    for file in sorted(files("wgemma.kernels").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".wgsl"):
            shaders.update(file.read_bytes())
    asked = hashlib.sha256(repr((options.kv, options.precision, wanted)).encode())
    asked.update((files("wgemma.selftest") / "answers.json").read_bytes())
    info, features = device.info, ", ".join(sorted(device.features))
    adapter = (info.name, info.backend, info.driver, features)
    return " | ".join((*adapter, f"wgemma {__version__}", shaders.hexdigest()[:16], asked.hexdigest()[:16]))


class Keeper(Protocol):
    """Stores the verdicts between runs, as one text; read and write failures are ignored."""

    async def read(self) -> str | bytes: ...
    async def write(self, text: str) -> None: ...


class FileKeeper:
    """Stores verdicts in a file beside the downloaded models, written atomically."""

    async def read(self) -> bytes:
        path = self._path()
        try:
            return path.read_bytes() if path else b""
        except OSError:
            return b""

    async def write(self, text: str) -> None:
        path = self._path()
        if path is None:
            return
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text)
            draft.replace(path)
        except OSError as trouble:
            log.debug("the verdict is not remembered: %s", trouble)

    def _path(self) -> Path | None:
        from wgemma.files.download import cache_folder

        try:
            return cache_folder().parent / "verdicts.json"
        except SourceError:
            return None


keeper: Keeper = FileKeeper()


async def _read() -> dict[str, list[str]]:
    """All verdicts: by key, the kernels that must be plain. Malformed data are ignored."""
    try:
        told = json.loads(await keeper.read() or "{}")
    except (ValueError, RecursionError):
        return {}
    good = isinstance(told, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in told.values()
    )
    return told if good else {}


async def _remember(key: str, wrong: Iterable[str]) -> None:
    kept = {**await _read(), key: sorted(wrong)}
    await keeper.write(json.dumps(dict(list(kept.items())[-MOST_VERDICTS:]), indent=1))
