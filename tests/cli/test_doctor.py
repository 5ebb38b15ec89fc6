"""`wgemma doctor`: what it finds here, and what it says if there is no GPU or a broken one."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wgemma.cli import main
from wgemma.cli.doctor import hints
from wgemma.gpu.device import DEFAULT_LIMITS, AdapterInfo
from wgemma.gpu.native import adapters
from wgemma.reference.sweep import CaseVerdict, cases

needs_adapter = pytest.mark.skipif(not adapters(), reason="there is no WebGPU adapter")
QUICK = {case.kernel for case in cases() if case.quick}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))


@needs_adapter
def test_this_machine_is_well(capfd: pytest.CaptureFixture[str], data: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert found["used"] == found["adapters"][0]["name"]
    assert found["limits"]["binding"] >= found["floor"]["binding"] == 128 << 20
    assert set(found["features"]) == {"shader-f16", "subgroups", "timestamp-query"}
    assert set(found["versions"]) == {"wgemma", "Python", "wgpu", "numpy"}
    assert {check["kernel"] for check in found["checks"]} == QUICK
    assert all(check["cases"] and not check["failed"] and not check["trouble"] for check in found["checks"])
    assert found["stores"].keys() == {os.environ["WGEMMA_MODELS"], str(data / "ollama-store")}
    assert sum(found["stores"].values()) > 0


@needs_adapter
def test_people_get_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.reference.sweep.sweep", judged())
    assert main(["doctor", "--sweep"]) == 0
    printed = capsys.readouterr()
    assert "\nNUMBER  ADAPTER " in printed.out
    assert "\nwgemma uses " in printed.out
    assert "\nmatvec " in printed.out
    assert "testing 1 of " in printed.err


@needs_adapter
def test_a_kernel_that_fails_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.reference.sweep.sweep", judged(wrong="tile", broken="route"))
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert printed.err.endswith("computes wrong numbers in: route, tile. Try a newer driver.\n")
    assert "FAILS in 1: tile case" in printed.out
    assert "RuntimeError: it does not compile" in printed.out


def judged(wrong: str = "", broken: str = "") -> Any:
    def sweep(device: Any, only: str | None = None, *, quick: bool = False) -> Iterator[CaseVerdict]:
        if only == broken:
            raise RuntimeError("it does not compile")
        yield CaseVerdict(f"{only} case", only or "", 0.5 if only == wrong else 0.0, 1e-5, only != wrong)

    return sweep


def test_no_adapter_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.gpu.native.adapters", list)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "wgemma: No WebGPU adapter was found. Install your GPU's Vulkan driver, "
        "or mesa-vulkan-drivers for a software one.\n"
    )


def test_hints_fit_the_adapter() -> None:
    good = SimpleNamespace(
        info=AdapterInfo("Big GPU", "Vulkan", "DiscreteGPU", "1.0"),
        limits=replace(DEFAULT_LIMITS, binding=2 << 30),
        features=frozenset({"shader-f16", "subgroups", "timestamp-query"}),
    )
    assert hints(good) == []  # type: ignore[arg-type]
    plain = SimpleNamespace(
        info=replace(good.info, kind="CPU"), limits=DEFAULT_LIMITS, features=frozenset({"timestamp-query"})
    )
    cpu, lacking, floor = hints(plain)  # type: ignore[arg-type]
    assert "the processor does the work" in cpu
    assert "lacks subgroups" in lacking
    assert "limited to 128 MiB" in floor
