"""How long passes may be: a second at most, and the longest where that is quick."""

from typing import Any

import pytest

from wgemma.engine import stride as module
from wgemma.engine.stride import Stride
from wgemma.sync import run


class Clock:
    """A device and a clock: a row takes `per_row` seconds on the GPU, preparing a pass `host` seconds. A submission
    `blocks`, or not, until those before it are done."""

    def __init__(self, per_row: float, *, compact: bool = False, host: float = 0.0, blocks: bool = False) -> None:
        self.compact = compact
        self.per_row, self.host, self.blocks = per_row, host, blocks
        self.now = self.busy = self.paced = 0.0

    async def pace(self) -> None:
        self.now = max(self.now, self.busy if self.blocks else self.paced)
        self.paced = self.busy

    def submit(self, rows: int) -> None:
        self.now += self.host
        self.busy = max(self.busy, self.now) + rows * self.per_row


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    def read(device: Any, passes: int, rows: int | None = None, stride: Stride | None = None) -> Stride:
        """Reads a prompt of this many passes."""
        monkeypatch.setattr(module, "perf_counter", lambda: device.now)
        stride = stride or Stride(device, 512)
        stride.begin()
        for _ in range(passes):
            each = stride.rows if rows is None else rows
            device.submit(each)
            run(stride.follow(each))
        return stride

    return read


def test_a_fast_gpu_keeps_the_longest_passes(read: Any) -> None:
    assert read(Clock(1e-4), 9).rows == 512


def test_a_slow_gpu_gets_shorter_ones_after_the_first(read: Any) -> None:
    assert read(Clock(5e-3), 1).rows == 128
    assert read(Clock(0.02), 1).rows == 32
    assert read(Clock(10.0), 1).rows == 32


def test_a_software_adapter_begins_short_and_grows(read: Any) -> None:
    device = Clock(1e-3, compact=True)
    assert Stride(device, 512).rows == 32  # type: ignore[arg-type]
    assert read(device, 1).rows == 512


def test_passes_that_grow_slower_get_shorter(read: Any) -> None:
    device = Clock(1e-3)
    stride = read(device, 4)
    device.per_row = 4e-3
    assert stride.rows == 512 and read(device, 4, stride=stride).rows == 128


def test_a_slow_host_does_not_count_as_a_slow_gpu(read: Any) -> None:
    device = Clock(1e-4)
    stride = read(device, 2)
    device.host = 5.0
    assert read(device, 4, stride=stride).rows == 512


@pytest.mark.parametrize("blocks", [False, True])
def test_the_length_settles(read: Any, blocks: bool) -> None:
    device = Clock(5e-3, compact=True, blocks=blocks)
    stride = read(device, 1)
    for _ in range(6):
        assert read(device, 1, stride=stride).rows == 128
    assert read(device, 6, stride=stride).rows == 128


def test_a_few_rows_tell_nothing(read: Any) -> None:
    assert read(Clock(0.3), 3, rows=8).rows == 512


def test_only_the_first_pass_is_waited_for_at_once(read: Any) -> None:
    device = Clock(1e-3)
    stride = read(device, 1)
    assert device.now == device.busy
    read(device, 3, stride=stride)
    assert device.now < device.busy


def test_every_pass_of_a_software_adapter_is_waited_for(read: Any) -> None:
    device = Clock(1e-3, compact=True, blocks=True)
    read(device, 5)
    assert device.now == device.busy
