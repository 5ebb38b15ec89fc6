"""Cases of the kernels that choose a token: peaks, sample, logprobs.

A drawn token is either right or wrong, so integers are compared by their difference from the expected value.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.passes import Row
from wgemma.reference.lab import F32, UNTOUCHED, Case, Lab, Outcome, case, framed, takes, untouched
from wgemma.reference.sampling import distribution, drawn, keys, peaks
from wgemma.reference.twins import Array

VOCAB = 262144  # of every Gemma 4
POSITION = 77
MARGIN = 1e-5  # how close a drawn token may be to the next, as a share of the total
LOWEST = -1e30  # used for ln 0


def cases() -> Iterator[Case]:
    yield from _peaks_cases()
    yield from _sample_cases()
    yield from _logprobs_cases()


def _peaks_cases() -> Iterator[Case]:
    for vocab in (1, 63, 64, 257, 2049, VOCAB):
        for sums in (False, True):
            yield case(_peaks, vocab == 257, vocab=vocab, sums=sums)
    for extreme in ("nan", "infinite", "suppressed", "zeros"):
        yield case(_peaks, extreme == "nan", vocab=300, sums=extreme == "suppressed", extreme=extreme)


def _peaks(lab: Lab, vocab: int, sums: bool, extreme: str = "") -> Outcome:
    logits = _logits(lab, vocab, 4.0, extreme)
    blocks = -(-vocab // 64)
    found, added = lab.out(blocks), lab.out(blocks)
    bindings: dict[str, Binding] = {"logits": lab.put(logits), "peaks": found, "sums": added}
    lab.run("peaks", [-(-blocks // 32)], bindings, {"vocab": vocab}, {"SUMS": sums})
    order, shares = peaks(logits)
    wanted = framed(shares) if sums else framed(untouched(blocks))
    return Outcome((_off(lab.read(found, "<u4"), framed(order)), lab.read(added)), (_right(framed(order)), wanted), F32)


def _logits(lab: Lab, vocab: int, scale: float, extreme: str) -> Array:
    """`extreme` is nan or infinite (one of them), suppressed (most are), equal (all are), zeros, or nothing."""
    logits = lab.normal(vocab, scale=scale)
    if extreme == "nan":
        logits[vocab // 2] = -np.float32(np.nan)
    elif extreme == "infinite":
        logits[vocab // 2] = np.inf
    elif extreme == "suppressed":
        logits[np.arange(vocab) % 97 != 40] = -np.inf
    elif extreme == "equal":
        logits[:] = -1.5
    elif extreme == "zeros":
        logits[:] = np.where(np.arange(vocab) % 3 == 2, 0.0, -0.0)
    return logits


def _off(got: Array, expected: Array) -> Array:
    """The differences of integers from their expected values."""
    return np.where(expected == UNTOUCHED, got, got - expected)


def _right(expected: Array) -> Array:
    return np.where(expected == UNTOUCHED, expected, 0.0)


def _sample_cases() -> Iterator[Case]:
    for threads in (256, 1024):
        quick = threads == 256
        # All logits of a small vocabulary, those of a large one above a bound, and all of a large one.
        for vocab in (1, 3, 64, 300, 513, VOCAB):
            yield case(_sample, quick, threads=threads, vocab=vocab)
            yield case(_sample, quick, threads=threads, vocab=vocab, top_k=64, top_p=0.95, temperature=1.3)
            yield case(_sample, quick, threads=threads, vocab=vocab, scale=8.0, top_k=0, top_p=0.9, temperature=1.0)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=8.0, top_k=0, temperature=0.7)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=8.0, top_k=3000, min_p=0.01, temperature=1.0)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=6.0, top_k=300, temperature=1.0)  # many blocks
        yield case(_sample, quick, threads=threads, vocab=VOCAB, top_k=99, top_p=0.99, min_p=0.1, temperature=1.5)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, min_p=0.1, temperature=1.5)
        yield case(_sample, quick, threads=threads, vocab=300, top_k=300, top_p=0.3, temperature=1.0)
    for extreme in ("suppressed", "equal", "zeros"):
        yield case(_sample, False, threads=1024, vocab=2000, extreme=extreme)
        yield case(_sample, extreme == "equal", threads=1024, vocab=2000, top_k=5, temperature=1.0, extreme=extreme)


@dataclass(frozen=True, slots=True)
class Sample:
    threads: int
    vocab: int
    scale: float = 4.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    temperature: float = 0.0
    extreme: str = ""


@takes(Sample)
def _sample(lab: Lab, asked: Sample) -> Outcome:
    vocab, top_k, min_p, temperature = asked.vocab, asked.top_k, asked.min_p, asked.temperature
    logits = _logits(lab, vocab, asked.scale, asked.extreme)
    seed = int(lab.rng.integers(1 << 63))
    floats = (max(temperature, 1e-6), asked.top_p, math.log(min_p) if min_p else LOWEST, 1, 0, 0)
    settings = struct.pack("<6f6I", *floats, top_k, 0, seed & 0xFFFFFFFF, seed >> 32, temperature == 0, 0)
    rows, picked = lab.put_rows([Row(1, 5), Row(1, POSITION - 1)]), lab.put(np.array([1]), "<u4")
    history, results = lab.out(100), lab.out(64 * 8)
    bindings: dict[str, Binding] = {
        "settings": lab.put(np.frombuffer(settings, "<u4"), "<u4"),
        **_with_peaks(lab, logits, sums=False),
        "rows": rows,
        "picked": picked,
        "history": history,
        "results": results,
    }
    constants = {"THREADS": min(asked.threads, lab.device.limits.invocations)}
    lab.run("sample", [1], bindings, {"vocab": vocab}, constants)

    # Ties stay together, so there may be more than top_k.
    least = np.sort(logits)[-top_k] if 0 < top_k < vocab else -np.inf
    most = int(np.count_nonzero(logits >= least))
    ids, shares = distribution(logits, top_k=most, top_p=asked.top_p, min_p=min_p, temperature=temperature)
    token = int(np.argmax(logits)) if temperature == 0 else drawn(ids, shares, seed, POSITION, MARGIN)
    total = 1.0 if temperature == 0 else 1 / shares.max()
    wanted = untouched(64, 8)
    wanted[POSITION % 64] = [token, 0, 0, total, logits.max(), POSITION, 0, 0]
    whole, real = (lab.read(results, kind) for kind in ("<u4", "<f4"))
    at = POSITION % 64 * 8
    threshold = int(whole[at + 2])
    if temperature > 0:  # otherwise only the largest, or one tied with it, is drawn
        astray = np.setxor1d(np.flatnonzero(keys(logits) >= threshold), ids).size
        whole[at + 2] = astray
    else:
        whole[at + 2] -= keys(logits).max()
    numbers = framed(wanted)
    numbers[at + 3 : at + 5] = whole[at + 3 : at + 5]  # compared as floats
    past = untouched(100)
    past[POSITION] = token
    row = np.array([1, POSITION, token, POSITION])
    got = (
        _off(whole, numbers),
        real[at + 3 : at + 5],
        lab.read(rows, "<u4")[:4] - row,
        lab.read(picked, "<u4")[:1],
        _off(lab.read(history, "<u4"), framed(past)),
    )
    expected = (_right(numbers), np.array([total, logits.max()]), np.zeros(4), np.zeros(1), _right(framed(past)))
    return Outcome(got, expected, F32)


def _with_peaks(lab: Lab, logits: Array, sums: bool) -> dict[str, Binding]:
    blocks = -(-logits.size // 64)
    bindings: dict[str, Binding] = {"logits": lab.put(logits), "peaks": lab.out(blocks), "sums": lab.out(blocks)}
    lab.run("peaks", [-(-blocks // 32)], bindings, {"vocab": logits.size}, {"SUMS": sums})
    return bindings


def _logprobs_cases() -> Iterator[Case]:
    for threads in (256, 1024):
        for vocab, count in ((1, 0), (3, 3), (300, 31), (VOCAB, 0), (VOCAB, 5), (VOCAB, 31)):
            yield case(_logprobs, threads == 256, threads=threads, vocab=vocab, count=count)
    for extreme in ("suppressed", "equal"):
        yield case(_logprobs, extreme == "equal", threads=1024, vocab=2000, count=9, extreme=extreme)


def _logprobs(lab: Lab, threads: int, vocab: int, count: int, extreme: str = "") -> Outcome:
    logits = _logits(lab, vocab, 4.0, extreme)
    if vocab > 200:
        logits[[100, 200]] = logits.max()  # the lower comes first
    token = vocab * 2 // 3 if extreme != "suppressed" else 40
    report = lab.out(64 * 32 * 2)
    bindings: dict[str, Binding] = {
        "settings": lab.put(np.array([*[0] * 11, count]), "<u4"),
        **_with_peaks(lab, logits, sums=True),
        "rows": lab.put_rows([Row(1, POSITION, token)]),
        "report": report,
    }
    constants = {"THREADS": min(threads, lab.device.limits.invocations)}
    lab.run("logprobs", [1], bindings, {"vocab": vocab}, constants)

    wide = logits.astype(np.float64)
    exact = wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))
    tokens = [token, *np.argsort(-exact, kind="stable")[:count]]
    numbers, values = untouched(64, 32, 2), untouched(64, 32, 2)
    numbers[POSITION % 64, : len(tokens), 0] = tokens
    values[POSITION % 64, : len(tokens), 1] = exact[tokens]
    whole, real = (lab.read(report, kind).reshape(-1, 2) for kind in ("<u4", "<f4"))
    ids, shares = (framed(x).reshape(-1, 2) for x in (numbers, values))
    got = (_off(whole[:, 0], ids[:, 0]), real[:, 1])
    return Outcome(got, (_right(ids[:, 0]), shares[:, 1]), F32)
