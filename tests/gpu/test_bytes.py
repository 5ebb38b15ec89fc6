"""Bytes of any remainder go in, across and out, and leave their neighbours alone; what WebGPU refuses is refused."""

import random
from collections.abc import Iterator

import pytest

from strict_device import Refused, check_copy, check_map, check_write
from wgemma.gpu.bytes import around, cut
from wgemma.gpu.device import Copy, Span
from wgemma.gpu.native import NativeBuffer, NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.sync import run

SIZE = 64
FULL = bytes(range(1, SIZE + 1))


@pytest.fixture
def buffer(floor: NativeDevice) -> Iterator[NativeBuffer]:
    """A buffer that is full of something."""
    before = floor.allocated
    made = floor.buffer(SIZE, "test")
    floor.write(made, 0, FULL)
    yield made
    floor.free(made)
    assert floor.allocated == before


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 11])
def test_a_write_leaves_its_neighbours_alone(floor: NativeDevice, buffer: NativeBuffer, offset: int, size: int) -> None:
    data = bytes(200 + i for i in range(size))
    floor.write(buffer, offset, data)
    assert run(floor.read(buffer)) == FULL[:offset] + data + FULL[offset + size :]


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11])
def test_any_bytes_are_read(floor: NativeDevice, buffer: NativeBuffer, offset: int, size: int) -> None:
    assert run(floor.read(buffer, offset, size)) == FULL[offset : offset + size]


def test_any_bytes_are_copied(floor: NativeDevice, buffer: NativeBuffer) -> None:
    other, chance = floor.buffer(SIZE, "other"), random.Random(1)
    for _ in range(40):
        size, start, to = (chance.randrange(1, 33) for _ in range(3))
        floor.write(other, 0, bytes(SIZE))
        tape = Tape(floor, "copy")
        tape.copy(buffer, start, other, to, size)
        tape.program().replay()
        tape.free()
        assert run(floor.read(other)) == bytes(to) + FULL[start : start + size] + bytes(SIZE - to - size)
    floor.free(other)


def test_ragged_copies_reach_far_into_large_buffers(floor: NativeDevice) -> None:
    """More than one dispatch, and offsets that a binding must be moved for."""
    size, start, to = (8 << 20) + 13, 1021, 514
    data = random.Random(2).randbytes(size)
    source, target = floor.buffer(start + size, "source"), floor.buffer(to + size + 1, "target")
    floor.write(source, start, data)
    tape = Tape(floor, "far")
    tape.copy(source, start, target, to, size)
    tape.program().replay()
    tape.free()
    assert run(floor.read(target, to, size)) == data
    floor.free(source)
    floor.free(target)


def test_bytes_are_cut_into_words_and_ends() -> None:
    for offset in range(8):
        for size in range(1, 20):
            whole, ends = cut(offset, size)
            assert sorted([*whole, *(i for end in ends for i in end)]) == list(range(size))
            assert (offset + whole.start) % 4 == 0 == len(whole) % 4 or not whole
            assert all(len(end) < 4 for end in ends)
            start, room = around(offset, size)
            assert start % 4 == 0 == room % 4 and start <= offset and offset + size <= start + room
            assert room < size + 8


# -- the rules themselves


def test_what_a_browser_would_refuse_is_refused(floor: NativeDevice, buffer: NativeBuffer) -> None:
    handle, other = buffer.handle, floor.buffer(SIZE, "other")
    for offset, size in ((2, 4), (0, 6), (60, 8)):
        with pytest.raises(Refused, match="writeBuffer"):
            check_write(handle, offset, bytes(size))
        with pytest.raises(Refused, match="copyBufferToBuffer"):
            check_copy(handle, offset, other.handle, 0, size)
    with pytest.raises(Refused, match="one buffer"):
        floor.program([Copy(buffer, 0, buffer, 32, 4)], "itself")
    with pytest.raises(Refused, match="MAP_READ"):
        check_map(handle, 4)
    floor.free(other)


def test_bindings_a_browser_would_refuse_are_refused(floor: NativeDevice, buffer: NativeBuffer) -> None:
    large = floor.buffer(1024, "large")
    wrong: list[tuple[Span, str]] = [
        (Span(large, 4, 64), "not aligned"),
        (Span(large, 0, 62), "multiple of 4"),
        (Span(large, 768, 512), "past its buffer"),
        (Span(large, 0, 0), "empty"),
    ]
    for span, rule in wrong:
        tape = Tape(floor, "wrong")
        tape.run("clear", [1], {"words": span}, {"count": 1})
        with pytest.raises(Refused, match=rule):
            tape.program()
        tape.free()
    tape = Tape(floor, "alias")
    params = {"start": 0, "to": 0, "size": 1}
    tape.run("splice", [1], {"source": Span(large, 0, 512), "words": Span(large, 256, 512)}, params)
    with pytest.raises(Refused, match="shares what one of them writes"):
        tape.program()
    tape.free()
    floor.free(large)
