"""The device on this machine: bytes go in and come out, tapes replay the same on both paths, nothing is left behind."""

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from wgemma.errors import DeviceError, DeviceLost, OutOfMemory
from wgemma.gpu import native, raw
from wgemma.gpu.device import DEFAULT_LIMITS, Span
from wgemma.gpu.native import NativeBuffer, NativeDevice, least_subgroup, open_floor_device
from wgemma.gpu.tape import Tape
from wgemma.sync import run


@pytest.fixture(scope="module")
def opened() -> Iterator[NativeDevice]:
    device = open_floor_device()
    yield device
    device.close()


@pytest.fixture
def device(opened: NativeDevice) -> Iterator[NativeDevice]:
    """The device, and the claim that every test gives back what it took."""
    before = opened.allocated
    yield opened
    assert opened.allocated == before


def floats(device: NativeDevice, buffer: NativeBuffer) -> tuple[float, ...]:
    return struct.unpack(f"<{buffer.size // 4}f", run(device.read(buffer)))


def filled(device: NativeDevice, *numbers: float) -> NativeBuffer:
    buffer = device.buffer(4 * len(numbers), "test")
    device.write(buffer, 0, struct.pack(f"<{len(numbers)}f", *numbers))
    return buffer


# -- buffers


@pytest.mark.parametrize("size", [1, 3, 4, 5, 127, 4096, (1 << 20) + 1])
def test_bytes_come_back_as_they_went(device: NativeDevice, size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    buffer = device.buffer(size, "test")
    device.write(buffer, 0, data)
    back = run(device.read(buffer))
    assert back[:size] == data
    assert len(back) == buffer.size == -(-size // 4) * 4
    assert not any(back[size:])
    device.free(buffer)


def test_a_new_buffer_is_zero(device: NativeDevice) -> None:
    buffer = device.buffer(1000, "test")
    assert not any(run(device.read(buffer)))
    device.free(buffer)


def test_a_part_of_a_buffer_is_written_and_read_alone(device: NativeDevice) -> None:
    buffer = device.buffer(16, "test")
    device.write(buffer, 4, memoryview(b"abcdefgh")[2:6])
    assert run(device.read(buffer)) == bytes(4) + b"cdef" + bytes(8)
    assert run(device.read(buffer, 4, 4)) == b"cdef"
    assert run(device.read(buffer, 12)) == bytes(4)
    device.free(buffer)


def test_writes_and_tapes_happen_in_the_order_of_the_calls(device: NativeDevice) -> None:
    words, seen = device.buffer(8, "words"), device.buffer(8, "seen")
    tape = Tape(device, "order")
    tape.copy(words, 0, seen, 0, 4)
    program = tape.program()
    device.write(words, 0, b"one.")
    program.replay()
    device.write(words, 0, b"two.")
    assert run(device.read(seen, 0, 4)) == b"one."
    assert run(device.read(words, 0, 4)) == b"two."
    device.free(words)
    device.free(seen)


# -- readings


@pytest.fixture(params=["polled", "by wgpu's thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading: by wgpu-native's C functions, and by wgpu's public methods where those are missing."""
    assert raw._map_answered is not None
    if request.param != "polled":
        monkeypatch.setattr(raw, "_map_answered", None)


@pytest.mark.usefixtures("way")
def test_readings_in_flight_each_get_what_was_there_when_they_asked(device: NativeDevice) -> None:
    buffer = device.buffer(4, "test")
    for _ in range(3):  # with staging memory of their own, then with what came back
        readings = []
        for i in range(5):
            device.write(buffer, 0, struct.pack("<I", i))
            readings.append(device.read_later(buffer, 0, 4))
        order = (0, 1, 4, 2, 3)
        assert [struct.unpack("<I", run(readings[i].bytes()))[0] for i in order] == list(order)
    device.free(buffer)


@pytest.mark.usefixtures("way")
def test_staging_memory_comes_back_and_is_used_again(device: NativeDevice) -> None:
    buffer = filled(device, 1, 2)
    run(device.read(buffer))
    before = list(device._staging)
    for _ in range(10):
        assert floats(device, buffer) == (1, 2)
    assert device._staging == before
    device.free(buffer)


def test_a_reading_does_not_wait_for_what_was_submitted_after_it(device: NativeDevice) -> None:
    count = 4 << 20
    x, y, small = device.buffer(8 * count, "x"), device.buffer(4 * count, "y"), filled(device, 7)
    tape = Tape(device, "long")
    for _ in range(8):
        tape.run("activate", [count // 256], {"x": x, "y": y}, {"n": count}, {"GEGLU": True})
    program = tape.program()
    reading = device.read_later(small, 0, 4)
    begun = time.perf_counter()
    program.replay()
    assert struct.unpack("<f", run(reading.bytes())) == (7,)
    read = time.perf_counter()
    run(device.wait())
    assert read - begun < (time.perf_counter() - begun) / 2
    tape.free()
    for buffer in (x, y, small):
        device.free(buffer)


def test_a_reading_nobody_waits_for_disturbs_nobody(device: NativeDevice) -> None:
    buffer = filled(device, 3)
    for _ in range(20):
        device.read_later(buffer, 0, 4)
        assert floats(device, buffer) == (3,)
    device.free(buffer)


@pytest.mark.parametrize("how", ["closed", "by the driver"])
@pytest.mark.usefixtures("way")
def test_a_reading_whose_device_is_lost_says_so(how: str) -> None:
    device = open_floor_device()
    reading = device.read_later(filled(device, 1), 0, 4)
    device.close() if how == "closed" else device._device.destroy()
    with pytest.raises(DeviceLost, match="was lost"):
        run(reading.bytes())


def test_ctrl_c_while_the_answer_arrives_is_heard(device: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    class Struck(dict[int, object]):
        """Readings of which the first to be looked up is met by Ctrl-C."""

        struck = False

        def get(self, number: int, default: object = None) -> object:
            if not self.struck:
                self.struck = True
                raise KeyboardInterrupt
            return super().get(number, default)

    buffer = filled(device, 1)
    run(device.wait())
    monkeypatch.setattr(raw, "_asked", Struck())
    reading = device.read_later(buffer, 0, 4)
    with pytest.raises(KeyboardInterrupt):
        run(reading.bytes())
    assert floats(device, buffer) == (1,)
    device.free(buffer)


def test_a_result_that_cannot_be_given_is_a_sentence(device: NativeDevice) -> None:
    buffer = filled(device, 1)
    reading = device.read_later(buffer, 0, 4)
    reading._staging.destroy()
    with pytest.raises(
        DeviceError, match=r"^reading a result from the GPU failed on .* tests this GPU and its driver\.$"
    ):
        run(reading.bytes())
    device.free(buffer)


@pytest.mark.parametrize("size", [DEFAULT_LIMITS.buffer + 1, 1 << 33, 1 << 40])
def test_a_buffer_beyond_the_limits_is_out_of_memory(device: NativeDevice, size: int) -> None:
    with pytest.raises(OutOfMemory, match="the weights needs "):
        device.buffer(size, "the weights")


def test_an_error_of_wgpus_is_a_sentence_and_its_own_text_the_cause(device: NativeDevice) -> None:
    buffer = filled(device, 1)
    device.free(buffer)
    with pytest.raises(
        DeviceError, match=r"^writing to the GPU failed on [^\n]* tests this GPU and its driver\.$"
    ) as told:
        device.write(buffer, 0, bytes(4))
    assert told.value.__cause__ is not None


def test_more_bytes_than_a_binding_holds_are_out_of_memory(
    floor: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floor, "_largest_binding", 256)
    buffer, tape = floor.buffer(512, "test"), Tape(floor, "test")
    tape.run("clear", [1], {"words": buffer}, {"count": 128})
    with pytest.raises(OutOfMemory, match=r"^clear needs 512 bytes at once; .* allows 256\.$"):
        tape.program()
    floor.free(buffer)


def test_allocated_counts_live_bytes(device: NativeDevice) -> None:
    before = device.allocated
    buffers = [device.buffer(size, "test") for size in (4, 5, 100)]
    assert device.allocated - before == 4 + 8 + 100
    for buffer in buffers:
        device.free(buffer)
    assert device.allocated == before


# -- kernels


def test_a_kernel_is_made_once_for_the_same_constants(device: NativeDevice) -> None:
    first = device.kernel("norm", {"THREADS": 64, "NORM": True, "PAIRS": 1})
    count = device.pipelines
    assert device.kernel("norm", {"PAIRS": 1, "NORM": True, "THREADS": 64}) is first
    assert device.pipelines == count
    assert device.kernel("norm", {"THREADS": 64, "NORM": False, "PAIRS": 1}) is not first
    assert device.pipelines == count + 1


def test_what_is_wrong_with_a_kernel_is_raised_when_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = NativeDevice()
    monkeypatch.setattr(
        native, "load_shader", lambda name, constants: "@compute @workgroup_size(1) fn main() { nobody(); }"
    )
    device.kernel("clear")
    with pytest.raises(DeviceError, match="clear cannot be compiled"):
        run(device.confirm())
    run(device.confirm())  # it is forgotten
    monkeypatch.undo()
    device.kernel("clear")
    run(device.confirm())
    device.close()


def test_a_kernel_knows_its_bindings(device: NativeDevice) -> None:
    assert device.kernel("activate", {"GEGLU": True}).bindings == {"params": 0, "x": 1, "y": 2}
    assert device.kernel("activate", {"SIDE": True}).bindings == {"params": 0, "x": 1, "y": 2, "side": 3}


@pytest.mark.parametrize(
    ("vendor", "backend", "name", "width"),
    [
        (0x10DE, "Vulkan", "NVIDIA H200", 32),
        (0x1002, "D3D12", "AMD Radeon RX 7800 XT", 32),
        (0, "Metal", "Apple M3", 32),
        (0, "Metal", "AMD Radeon Pro 560", 4),
        (0x8086, "Vulkan", "Intel(R) Arc(tm) A770", 4),
        (0x10005, "Vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)", 8),
        (0x10005, "Vulkan", "llvmpipe (LLVM 19.1.7, 128 bits)", 4),
    ],
)
def test_subgroups_are_as_wide_as_is_known_whatever_wgpu_says(vendor: int, backend: str, name: str, width: int) -> None:
    told = {"vendor_id": vendor, "backend_type": backend, "device": name, "stackgroup_min_size": 4}
    assert least_subgroup(told) == width


def test_the_floor_has_the_default_limits_and_no_features(device: NativeDevice) -> None:
    assert device.limits == DEFAULT_LIMITS
    assert device.features == frozenset()


def test_a_smaller_limit_holds() -> None:
    device = NativeDevice(limits=replace(DEFAULT_LIMITS, buffer=1 << 20, binding=1 << 20), features=False)
    with pytest.raises(OutOfMemory):
        device.buffer((1 << 20) + 4, "test")
    device.close()


# -- programs


def gelu_products(device: NativeDevice) -> tuple[Tape, list[NativeBuffer]]:
    """y = gelu(x₀) · x₁, twice over with a copy between: dispatch, copy, dispatch."""
    x, y, copied, z = filled(device, 1, 2, 3, 4), filled(device, 0, 0), filled(device, 0, 0), filled(device, 0)
    tape = Tape(device, "test")
    tape.run("activate", [1], {"x": x, "y": y}, {"n": 2}, {"GEGLU": True})
    tape.copy(y, 0, copied, 0, 8)
    tape.run("activate", [1], {"x": copied, "y": z}, {"n": 1}, {"APART": True})
    return tape, [x, y, copied, z]


def test_raw_replay_equals_replay_by_the_public_methods(device: NativeDevice) -> None:
    results = []
    for quick in (True, False):
        tape, buffers = gelu_products(device)
        program = tape.program()
        assert program._raw is not None
        if not quick:
            program._raw = None
        program.replay()
        results.append([floats(device, buffer) for buffer in buffers])
        tape.free()
        for buffer in buffers:
            device.free(buffer)
    assert results[0] == results[1]
    y = results[0][1]
    assert y == pytest.approx((1.682384, 11.985451), rel=1e-5)
    assert results[0][3] == pytest.approx((1.6045 * 11.985451,), rel=1e-3)


def test_a_program_can_be_replayed_again_on_new_data(device: NativeDevice) -> None:
    tape, (x, y, *others) = gelu_products(device)
    program = tape.program()
    program.replay()
    first = floats(device, y)
    device.write(x, 0, struct.pack("<4f", 0, 2, 3, 0))
    program.replay()
    assert floats(device, y) == (0, 0) != first
    tape.free()
    for buffer in (x, y, *others):
        device.free(buffer)


def test_params_reach_the_kernel_in_order(device: NativeDevice) -> None:
    x, side, y = filled(device, 100, 100), filled(device, *range(8)), filled(device, 0, 0)
    tape = Tape(device, "test")
    params = {"n": 1, "side_stride": 4, "side_offset": 3}
    tape.run("activate", [1, 2], {"x": x, "side": side, "y": y}, params, {"SIDE": True})
    tape.program().replay()
    assert floats(device, y) == (300, 700)  # side[r · 4 + 3]
    tape.free()
    for buffer in (x, side, y):
        device.free(buffer)


def test_a_span_binds_a_part_of_a_buffer(device: NativeDevice) -> None:
    both = device.buffer(512, "both")
    device.write(both, 256, struct.pack("<2f", 100, 3))
    y = filled(device, 0)
    tape = Tape(device, "test")
    tape.run("activate", [1], {"x": Span(both, 256, 8), "y": y}, {"n": 1}, {"GEGLU": True})
    tape.program().replay()
    assert floats(device, y) == (300,)
    tape.free()
    device.free(both)
    device.free(y)


def test_a_grid_beyond_the_device_s_limit_is_refused(device: NativeDevice) -> None:
    words = device.buffer(4, "test")
    tape = Tape(device, "test")
    with pytest.raises(ValueError, match="clear: the grid"):
        tape.run("clear", [device.limits.workgroups + 1], {"words": words}, {"count": 1})
    device.free(words)


def test_many_tapes_leave_no_memory_behind(device: NativeDevice) -> None:
    before, pipelines = device.allocated, 0
    for turn in range(20):
        tape, buffers = gelu_products(device)
        tape.program().replay()
        tape.free()
        for buffer in buffers:
            device.free(buffer)
        if turn == 0:
            pipelines = device.pipelines
    run(device.wait())
    assert device.allocated == before
    assert device.pipelines == pipelines


def test_pace_leaves_only_the_latest_work_in_flight(device: NativeDevice) -> None:
    buffer = device.buffer(64, "work")
    readings: list[Any] = []
    for value in range(4):
        device.write(buffer, 0, bytes([value]) * 64)
        readings.append(device.read_later(buffer, 0, 64))
        run(device.pace())
        assert all(reading.answer == "" for reading in readings[:-1])
    assert [run(reading.bytes()) for reading in readings] == [bytes([value]) * 64 for value in range(4)]
    device.free(buffer)
