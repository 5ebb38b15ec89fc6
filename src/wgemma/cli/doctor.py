"""`wgemma doctor`: which adapter wgemma uses and why, what it can do, and whether its kernels compute correctly."""

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from wgemma.checks import counted
from wgemma.cli.output import ON_THE_PROCESSOR, as_json, clean, table
from wgemma.errors import DeviceError, StoreError
from wgemma.files.ollama import Store
from wgemma.files.stores import Stores
from wgemma.gpu.device import DEFAULT_LIMITS, AdapterInfo, Device, Limits
from wgemma.version import __version__

if TYPE_CHECKING:
    from wgemma.reference.sweep import CaseVerdict

FEATURES = ("shader-f16", "subgroups", "timestamp-query")
LIMITS = {
    "binding": "one binding",
    "buffer": "one buffer",
    "storage_buffers": "storage buffers per kernel",
    "workgroup_memory": "workgroup memory",
    "invocations": "threads per workgroup",
    "workgroups": "workgroups per dimension",
    "offset_alignment": "binding alignment",
}


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("doctor", help="show which GPU is used and test the kernels on it")
    verb.add_argument("--sweep", action="store_true", help="test every kernel in all shapes, not just a selection")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=doctor)


@dataclass(frozen=True, slots=True)
class Check:
    """The result for one kernel: its worst case, by error relative to tolerance; `trouble` if it could not run."""

    kernel: str
    cases: int
    failed: list[str]
    error: float
    tolerance: float
    trouble: str = ""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.trouble


@dataclass(frozen=True, slots=True)
class Diagnosis:
    versions: dict[str, str]
    adapters: list[AdapterInfo]
    used: str
    why: str
    features: dict[str, bool]
    limits: Limits
    floor: Limits
    checks: list[Check]
    stores: dict[str, int | str]  # models by folder, or what is wrong with it
    hints: list[str]


def doctor(options: argparse.Namespace) -> int:
    diagnosis = diagnose(quick=not options.sweep)
    if options.json:
        as_json(asdict(diagnosis))
    else:
        _print(diagnosis)
    wrong = [check.kernel for check in diagnosis.checks if not check.ok]
    if wrong:
        raise DeviceError(f"{diagnosis.used} computes wrong numbers in: {', '.join(wrong)}. Try a newer driver.")
    return 0


def diagnose(*, quick: bool) -> Diagnosis:
    """Opens the adapter wgemma would use and examines it."""
    device, listed = _open()
    try:
        checks = list(_checks(device, quick))
    finally:
        device.close()
    stores = Stores.find()
    return Diagnosis(
        versions=_versions(),
        adapters=listed,
        used=device.info.name,
        why=_why(listed),
        features={name: name in device.features for name in FEATURES},
        limits=device.limits,
        floor=DEFAULT_LIMITS,
        checks=checks,
        stores={str(store.root): _models(store) for store in (stores.own, stores.ollama)},
        hints=hints(device),
    )


def _open() -> tuple[Device, list[AdapterInfo]]:
    """The device, and all adapters, starting with the one in use."""
    try:
        from wgemma.gpu.native import NativeDevice, adapters
    except (ImportError, OSError, RuntimeError) as trouble:
        raise DeviceError(
            f"wgpu cannot be loaded: {trouble}. Reinstall it: `pip install --force-reinstall wgpu`."
        ) from None
    found = adapters()
    if not found:
        raise DeviceError(
            "no WebGPU adapter was found. Install your GPU's Vulkan driver, or mesa-vulkan-drivers for a software one."
        )
    infos = [adapter.info for adapter in found]
    listed = [AdapterInfo(i["device"], i["backend_type"], i["adapter_type"], i["description"]) for i in infos]
    return NativeDevice(found[0], compact=False), listed  # tests every kernel, even ones not used on this adapter


def _why(listed: list[AdapterInfo]) -> str:
    """Why the first adapter was chosen: they are sorted by kind, fastest first, then in the system's order."""
    used, others = listed[0], listed[1:]
    if not others:
        return "it is the only one"
    if used.kind == others[0].kind:
        return f"it is the first {used.kind} the system lists"
    return f"{used.kind} is preferred to {others[0].kind}"


def _versions() -> dict[str, str]:
    found = {"wgemma": __version__, "Python": platform.python_version()}
    for package in ("wgpu", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


# -- the self-test


def _checks(device: Device, quick: bool) -> Iterator[Check]:
    from wgemma.reference.sweep import cases

    kernels = list(dict.fromkeys(case.kernel for case in cases() if case.quick or not quick))
    for number, kernel in enumerate(kernels, 1):
        _tell(f"testing {number} of {len(kernels)}: {kernel}", aloud=not quick)
        yield _check(device, kernel, quick)
    _tell("")


def _check(device: Device, kernel: str, quick: bool) -> Check:
    """Runs a kernel's cases. A kernel that fails to compile is a finding, not a crash."""
    from wgemma.reference.sweep import sweep

    verdicts: list[CaseVerdict] = []
    trouble = ""
    try:
        verdicts.extend(sweep(device, only=kernel, quick=quick))
    except Exception as stopped:
        trouble = f"{type(stopped).__name__}: {stopped}"
    worst = max(verdicts, key=_badness, default=None)
    failed = [verdict.name for verdict in verdicts if not verdict.ok]
    error, tolerance = (worst.error, worst.tolerance) if worst else (0.0, 0.0)
    return Check(kernel, len(verdicts), failed, error, tolerance, trouble)


def _badness(verdict: "CaseVerdict") -> tuple[bool, float]:
    return not verdict.ok, verdict.error / verdict.tolerance if verdict.tolerance else verdict.error


def _tell(line: str, *, aloud: bool = False) -> None:
    """Progress on standard error: one line that updates in place on a terminal; elsewhere a new line, if `aloud`."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif aloud:
        print(line, file=sys.stderr)


# -- advice


def hints(device: Device) -> list[str]:
    """What would make wgemma faster here."""
    found = []
    if device.info.kind == "CPU":
        found.append(ON_THE_PROCESSOR)
    if "subgroups" not in device.features:
        found.append("The adapter lacks subgroups, so wgemma runs its plain kernels. A newer driver may add them.")
    if device.limits.binding <= DEFAULT_LIMITS.binding:
        found.append(
            f"A binding is limited to {_mebibytes(device.limits.binding)}, WebGPU's minimum: larger matrices are "
            "split, with a dispatch for each part."
        )
    if "timestamp-query" not in device.features:
        found.append("The adapter lacks timestamp-query: `wgemma bench --profile` cannot time kernels here.")
    return found


# -- for people


def _models(store: Store) -> int | str:
    """How many models are in a store, or why it cannot be read."""
    try:
        return len(store.models())
    except StoreError as error:
        return str(error)


def _print(diagnosis: Diagnosis) -> None:
    print(", ".join(f"{name} {number}" for name, number in diagnosis.versions.items()) + "\n")
    rows = [[str(i), a.name, a.backend, a.kind, a.driver] for i, a in enumerate(diagnosis.adapters)]
    table(["NUMBER", "ADAPTER", "BACKEND", "KIND", "DRIVER"], rows)
    print(f"wgemma uses {clean(diagnosis.used)}: {diagnosis.why}.\n")
    table(["FEATURE", "HERE"], [[name, "yes" if there else "no"] for name, there in diagnosis.features.items()])
    print()
    table(["LIMIT", "HERE", "WEBGPU'S MINIMUM"], _limit_rows(diagnosis))
    print()
    table(["KERNEL", "CASES", "WORST ERROR", "ALLOWED", "VERDICT"], [_check_row(check) for check in diagnosis.checks])
    print()
    for folder, models in diagnosis.stores.items():
        told = models if isinstance(models, str) else counted(models, "model") if models else "no models"
        print(f"Model store {clean(folder)}: {clean(told)}")
    if diagnosis.hints:
        print("\nHints:")
        for hint in diagnosis.hints:
            print(f"- {hint}")


def _limit_rows(diagnosis: Diagnosis) -> list[list[str]]:
    rows = []
    for name, title in LIMITS.items():
        show = _mebibytes if name in ("binding", "buffer", "workgroup_memory") else str
        rows.append([title, show(getattr(diagnosis.limits, name)), show(getattr(diagnosis.floor, name))])
    return rows


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.0f} KiB"


def _check_row(check: Check) -> list[str]:
    verdict = "passes" if check.ok else check.trouble or f"FAILS in {len(check.failed)}: {check.failed[0]}"
    return [check.kernel, str(check.cases), f"{check.error:.1e}", f"{check.tolerance:.0e}", verdict]
