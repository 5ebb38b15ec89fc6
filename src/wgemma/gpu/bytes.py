"""Byte-granular access: WebGPU itself writes, copies and reads only aligned four-byte words.

Whole words are transferred directly; ragged ends go through kernels/splice.wgsl, which leaves the neighbouring bytes
alone.
"""

from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.tape import Tape

WORD = 4


def around(offset: int, size: int) -> tuple[int, int]:
    """The whole words that hold these bytes, as (offset, size) in bytes."""
    start = offset // WORD * WORD
    return start, -(-(offset + size) // WORD) * WORD - start


def cut(offset: int, size: int) -> tuple[range, list[range]]:
    """Splits the bytes into whole words and the ragged ends, as ranges counted from the first byte."""
    start, end = -(-offset // WORD) * WORD, (offset + size) // WORD * WORD
    if start > end:  # all inside one word
        return range(0), [range(size)]
    whole = range(start - offset, end - offset)
    ends = [range(whole.start), range(whole.stop, size)]
    return whole, [part for part in ends if part]


def put_end(device: Device, buffer: Buffer, offset: int, data: bytes) -> None:
    """Writes less than a word."""
    spare = device.buffer(WORD, "ragged end")
    tape = Tape(device, "ragged end")
    try:
        device.write(spare, 0, data.ljust(WORD, b"\0"))
        tape.copy(spare, 0, buffer, offset, len(data))
        tape.program().replay()
    finally:
        tape.free()
        device.free(spare)
