"""Checks every kernel against its twin on a device: one table of shapes, types and edge cases.

    for verdict in sweep(device):
        print(verdict.name, verdict.error, verdict.ok)

A case creates random inputs, dispatches one kernel as the decoder does, and returns what was written and what should
have been, including what must not be written (`lab.py`). Errors are relative rms against a float64 twin.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from wgemma.gpu.device import Device
from wgemma.reference.cases import (
    attention,
    attention_tile,
    audio,
    experts,
    matmul,
    middle,
    sampling,
    stream,
    tiles,
    training,
    training_attention,
    training_experts,
    vision,
    weights,
)
from wgemma.reference.lab import Case


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    name: str
    kernel: str
    error: float
    tolerance: float
    ok: bool


def cases() -> Iterator[Case]:
    """All cases, kernel by kernel."""
    inference = (weights, stream, matmul, middle, tiles, experts, attention, attention_tile, sampling, audio, vision)
    for family in (*inference, training, training_attention, training_experts):
        yield from family.cases()


def sweep(device: Device, only: str | None = None, *, quick: bool = False) -> Iterator[CaseVerdict]:
    """Runs the cases of one kernel, or all; `quick` selects a subset that still covers every kernel and weight type."""
    for case in cases():
        if only in (None, case.kernel) and (case.quick or not quick):
            outcome = case.run(device)
            error = outcome.error()
            yield CaseVerdict(case.name, case.kernel, error, outcome.tolerance, error <= outcome.tolerance)
