"""Resamples audio to 16 kHz mono with a windowed sinc on the GPU, a piece at a time.

The sinc cuts off at half the lower of the two rates, under a Kaiser window. Sample i of the result is at
i · rate / 16000 of the source, so there is no delay; the audio is padded with silence at both ends.
"""

import math
from array import array
from functools import cache

from wgemma.files.sounds import Sound
from wgemma.gpu.device import Binding, Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.mel import RATE

ZEROS = 24  # of the sinc on either side
FINENESS = 512  # table entries from one zero to the next; linear interpolation is off by 2e-6
BETA = 8.0  # of the Kaiser window

PIECE = 1 << 18  # samples of the result at a time
PIECE_BYTES = 16 << 20  # of the source at a time, roughly


async def resample(device: Device, sound: Sound) -> "array[float]":
    """Averages the channels and resamples to RATE: ⌈frames · RATE / rate⌉ samples."""
    frames = len(sound.samples) // sound.channels
    if (sound.rate == RATE and sound.channels == 1) or not frames:
        return sound.samples[:frames]
    common = math.gcd(sound.rate, RATE)
    step, parts = sound.rate // common, RATE // common  # sample i of the result is at frame i · step / parts
    count = -(-frames * parts // step)
    most = max(min(PIECE, PIECE_BYTES * parts // (4 * sound.channels * step), (1 << 31) // step), 1)
    return await _Resampler(device, sound, step, parts, min(most, count)).run(count)


class _Resampler:
    def __init__(self, device: Device, sound: Sound, step: int, parts: int, most: int) -> None:
        self.device, self.sound = device, sound
        self.step, self.parts, self.most = step, parts, most
        self.ratio = min(parts / step, 1.0)
        self.reach = math.ceil(ZEROS / self.ratio)
        self.frames = len(sound.samples) // sound.channels

    async def run(self, count: int) -> "array[float]":
        widest = (self.most * self.step) // self.parts + 2 * self.reach + 4
        with Ledger(self.device) as scratch:
            source = scratch.buffer(4 * widest * self.sound.channels, "sound")
            result = scratch.buffer(4 * self.most, "sound at its new rate")
            table = scratch.buffer(4 * (ZEROS * FINENESS + 2), "sinc")
            self.device.write(table, 0, sinc_table())
            samples = array("f")
            for first in range(0, count, self.most):
                piece = min(self.most, count - first)
                self._resample(first, piece, source, table, result)
                samples.frombytes(await self.device.read(result, 0, 4 * piece))
            return samples

    def _resample(self, first: int, count: int, source: Buffer, table: Buffer, result: Buffer) -> None:
        channels = self.sound.channels
        begin = max(first * self.step // self.parts - self.reach, 0)
        end = min((first + count - 1) * self.step // self.parts + self.reach + 2, self.frames)
        needed = memoryview(self.sound.samples)[begin * channels : end * channels]
        self.device.write(source, 0, needed.cast("B"))
        start = first * self.step - begin * self.parts
        tape = Tape(self.device, "resample")
        params = {"count": count, "frames": end - begin, "channels": channels, "start": start, "ratio": self.ratio}
        params |= {"step": self.step, "parts": self.parts, "reach": self.reach, "zeros": ZEROS, "fineness": FINENESS}
        bindings: dict[str, Binding] = {"x": source, "table": table, "y": result}
        tape.run("resample", [-(-count // 64)], bindings, params)
        tape.program().replay()
        tape.free()


@cache
def sinc_table() -> bytes:
    """sin(πt) / πt · window(t) for t = 0, 1 / FINENESS … ZEROS, and one entry more."""
    whole = _bessel(BETA)
    table = array("f", [1.0])
    for i in range(1, ZEROS * FINENESS):
        t = i / FINENESS
        inside = math.sqrt(1 - (t / ZEROS) ** 2)
        table.append(math.sin(math.pi * t) / (math.pi * t) * _bessel(BETA * inside) / whole)
    table.extend((0.0, 0.0))
    return table.tobytes()


def _bessel(x: float) -> float:
    """I₀(x) = Σ_k ((x/2)^k / k!)²."""
    term = total = 1.0
    k = 0
    while term > 1e-17 * total:
        k += 1
        term *= (x / (2 * k)) ** 2
        total += term
    return total
