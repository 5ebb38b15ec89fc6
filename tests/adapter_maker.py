"""Adapters for tests: random ones of any shape, and what they amount to."""

from array import array

import numpy as np
from numpy.typing import NDArray

from wgemma.files.adapters import AdapterFile, Pair

Doubles = NDArray[np.float64]


def numbers(seed: int, count: int) -> "array[float]":
    return array("f", np.random.default_rng(seed).normal(0, 0.1, count).astype(np.float32).tobytes())


def pair(columns: int, rows: int, *, rank: int = 2, scale: float = 2.0, experts: int = 1, seed: int = 1) -> Pair:
    a, b = numbers(seed, experts * rank * columns), numbers(seed + 1, experts * rows * rank)
    return Pair(rank, columns, rows, a, b, scale, experts)


def adapter(**pairs: Pair) -> AdapterFile:
    """Pairs by tensor; "__" in a keyword stands for "." and ".weight" is left out."""
    named = {f"{name.replace('__', '.')}.weight": made for name, made in pairs.items()}
    return AdapterFile("made", named, 4.0)


def difference(made: Pair) -> Doubles:
    """scale · B · A: [rows, columns], of all experts behind each other."""
    a = np.frombuffer(made.a, np.float32).reshape(made.experts, made.rank, made.columns).astype(np.float64)
    b = np.frombuffer(made.b, np.float32).reshape(made.experts, made.rows, made.rank)
    product: Doubles = made.scale * (b @ a)
    return product.reshape(-1, made.columns)


def largest_error(ours: AdapterFile, theirs: AdapterFile) -> float:
    """The largest error of any matrix's difference, relative to that matrix's own largest value."""
    assert ours.pairs.keys() == theirs.pairs.keys()
    errors = [
        np.abs(difference(ours.pairs[name]) - difference(made)).max() / np.abs(difference(made)).max()
        for name, made in theirs.pairs.items()
    ]
    return float(max(errors))
