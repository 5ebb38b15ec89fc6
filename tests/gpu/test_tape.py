"""A tape records what is dispatched, with which buffers and numbers; the device does the rest."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from wgemma.gpu.device import DEFAULT_LIMITS, AdapterInfo, Command, Copy, Dispatch, Span
from wgemma.gpu.shaders import Uniform
from wgemma.gpu.tape import Tape


@dataclass
class FakeBuffer:
    size: int
    data: bytes = b""


@dataclass
class FakeKernel:
    name: str
    bindings: Mapping[str, int]
    uniform: Uniform


@dataclass
class FakeDevice:
    """Remembers what it was asked for, and computes nothing."""

    kernels: dict[str, FakeKernel]
    live: list[FakeBuffer] = field(default_factory=list)
    programs: list[list[Command]] = field(default_factory=list)
    info = AdapterInfo("fake", "none", "CPU", "")
    limits = DEFAULT_LIMITS
    features: frozenset[str] = frozenset()

    def buffer(self, size: int, label: str) -> FakeBuffer:
        self.live.append(FakeBuffer(size))
        return self.live[-1]

    def free(self, buffer: Any) -> None:
        self.live.remove(buffer)

    def write(self, buffer: Any, offset: int, data: bytes | memoryview) -> None:
        buffer.data = buffer.data[:offset].ljust(offset, b"\0") + bytes(data) + buffer.data[offset + len(data) :]

    async def read(self, buffer: Any, offset: int = 0, size: int | None = None) -> bytes:
        raise NotImplementedError

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> FakeKernel:
        return self.kernels[name]

    def program(self, commands: Sequence[Command], label: str) -> Any:
        self.programs.append(list(commands))

    async def wait(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def device() -> FakeDevice:
    scale = FakeKernel("scale", {"params": 0, "x": 1, "y": 2}, Uniform("scale", {"count": "u32", "factor": "f32"}))
    return FakeDevice({"scale": scale, "plain": FakeKernel("plain", {"x": 0}, Uniform("plain", {}))})


def test_each_dispatch_gets_its_own_parameters(device: FakeDevice) -> None:
    tape, x, y = Tape(device, "step"), FakeBuffer(4), FakeBuffer(4)
    tape.run("scale", [1], {"x": x, "y": y}, {"count": 7, "factor": 0.5})
    tape.run("plain", [1], {"x": x})
    tape.run("scale", [1], {"x": x, "y": y}, {"factor": 0.25, "count": 8})  # in any order
    tape.program()
    first, plain, second = device.programs[0]
    assert isinstance(first, Dispatch) and isinstance(plain, Dispatch) and isinstance(second, Dispatch)
    assert "params" not in plain.bindings
    for dispatch, packed in ((first, struct.pack("<If", 7, 0.5)), (second, struct.pack("<If", 8, 0.25))):
        span = dispatch.bindings["params"]
        assert isinstance(span, Span) and isinstance(span.buffer, FakeBuffer)
        assert span.offset % device.limits.offset_alignment == 0
        assert span.buffer.data[span.offset : span.offset + len(packed)] == packed
    assert first.bindings["params"] != second.bindings["params"]


def test_parameters_can_be_changed_between_replays(device: FakeDevice) -> None:
    tape, x, y = Tape(device, "step"), FakeBuffer(4), FakeBuffer(4)
    for count in (7, 8):
        tape.run("plain", [1], {"x": x})
        tape.run("scale", [1], {"x": x, "y": y}, {"count": count, "factor": 0.5})
    tape.program()
    tape.change(1, {"count": 9, "factor": 0.25})
    found = [struct.unpack_from("<If", device.live[0].data, 256 * slot) for slot in (0, 1)]
    assert found == [(7, 0.5), (9, 0.25)]
    with pytest.raises(ValueError, match="no value for factor"):
        tape.change(0, {"count": 1})


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"count": 1}, "scale: no value for factor"),
        (None, "scale: no value for count, factor"),
        ({"count": 1, "factor": 1.0, "eps": 0.5}, "scale: Params has no field eps"),
        ({"count": 1.0, "factor": 1.0}, "scale: count is u32, and 1.0 is not"),
        ({"count": 1, "factor": 1}, "scale: factor is f32, and 1 is not"),
        ({"count": 1, "factor": True}, "scale: factor is f32, and True is not"),
        ({"count": -1, "factor": 1.0}, "scale: count is u32, and -1 is out of range"),
        ({"count": 1 << 32, "factor": 1.0}, "scale: count is u32, and 4294967296 is out of range"),
        ({"count": 1, "factor": 1e39}, r"scale: factor is f32, and 1e\+39 is out of range"),
    ],
)
def test_params_that_do_not_fit_the_uniform_are_refused(
    device: FakeDevice, params: dict[str, float] | None, complaint: str
) -> None:
    tape = Tape(device, "step")
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        tape.run("scale", [1], {"x": FakeBuffer(4), "y": FakeBuffer(4)}, params)
    assert tape.commands == []
    tape.program()
    assert device.live == []


def test_params_for_a_kernel_without_a_uniform_are_refused(device: FakeDevice) -> None:
    with pytest.raises(ValueError, match="plain: Params has no field count"):
        Tape(device, "step").run("plain", [1], {"x": FakeBuffer(4)}, {"count": 1})


def test_only_the_bindings_a_kernel_declares_are_kept(device: FakeDevice) -> None:
    tape, x = Tape(device, "step"), FakeBuffer(4)
    tape.run("plain", [1], {"x": x, "unknown": FakeBuffer(8)})
    command = tape.commands[0]
    assert isinstance(command, Dispatch)
    assert dict(command.bindings) == {"x": x}


def test_a_binding_that_is_missing_is_refused(device: FakeDevice) -> None:
    tape = Tape(device, "step")
    with pytest.raises(KeyError, match="y"):
        tape.run("scale", [1], {"x": FakeBuffer(4)}, {"count": 1, "factor": 1.0})
    assert tape.commands == []


@pytest.mark.parametrize("grid", [[0], [65_536], [1, 0], [1, 65_536], [1, 1, 65_536], [1, 1, 0]])
def test_a_grid_outside_the_limits_is_refused(device: FakeDevice, grid: list[int]) -> None:
    tape = Tape(device, "step")
    with pytest.raises(ValueError, match=r"plain: the grid .* is outside 1…65535"):
        tape.run("plain", grid, {"x": FakeBuffer(4)})
    assert tape.commands == []


@pytest.mark.parametrize(("grid", "full"), [([65_535], (65_535, 1, 1)), ([2, 3], (2, 3, 1)), ([2, 3, 4], (2, 3, 4))])
def test_a_grid_is_filled_up_to_three_dimensions(
    device: FakeDevice, grid: list[int], full: tuple[int, int, int]
) -> None:
    tape = Tape(device, "step")
    tape.run("plain", grid, {"x": FakeBuffer(4)})
    command = tape.commands[0]
    assert isinstance(command, Dispatch)
    assert command.grid == full


def test_copies_stand_among_dispatches_in_order(device: FakeDevice) -> None:
    tape, x, y = Tape(device, "step"), FakeBuffer(8), FakeBuffer(8)
    tape.run("plain", [1], {"x": x})
    tape.copy(x, 4, y, 0, 4)
    tape.run("plain", [1], {"x": y})
    tape.program()
    assert [type(command) for command in device.programs[0]] == [Dispatch, Copy, Dispatch]
    assert device.programs[0][1] == Copy(x, 4, y, 0, 4)
    assert tape.dispatches == 2


def test_freeing_a_tape_gives_its_parameters_back(device: FakeDevice) -> None:
    tape = Tape(device, "step")
    tape.run("scale", [1], {"x": FakeBuffer(4), "y": FakeBuffer(4)}, {"count": 1, "factor": 1.0})
    tape.program()
    assert len(device.live) == 1
    tape.free()
    tape.free()
    assert device.live == []


def test_a_tape_without_parameters_takes_no_memory(device: FakeDevice) -> None:
    tape = Tape(device, "step")
    tape.run("plain", [1], {"x": FakeBuffer(4)})
    tape.program()
    assert device.live == []
