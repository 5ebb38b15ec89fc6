"""The long sound of the media-odd fixtures, which is a formula there: whole numbers, exact everywhere."""

from array import array
from functools import cache


def _triangle(p: int) -> int:
    return 4 * p - 16_000 if p < 8000 else 48_000 - 4 * p


@cache
def formula(count: int) -> "array[int]":
    """The first `count` samples, of 16 bits at 16 kHz: two tones, noise, and a silence every three seconds."""
    samples, u = array("h"), 1
    for n in range(count):
        u = (u * 4093 + 57_421) % 65_536
        sound = _triangle(330 * n % 16_000) // 4 + _triangle(n * n // 128 % 16_000) // 4 + u // 32 - 1024
        samples.append(0 if n % 48_000 >= 40_000 else sound)
    return samples


def sound(count: int) -> "array[float]":
    return array("f", (sample / 32_768 for sample in formula(count)))
