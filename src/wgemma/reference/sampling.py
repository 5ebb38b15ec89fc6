"""Which tokens may come next, and how likely each is: the NumPy twin of GPU sampling.

In this order, l = logits:

    bias         l_t + bias_t
    penalties    c_t = how often t is among the last ids; where c_t > 0:
                 l_t ← (l_t ≤ 0 ? l_t · repeat : l_t / repeat) − c_t · frequency − presence
    top_k        the k largest
    top_p        p = softmax(l), descending: the shortest run from the top whose sum reaches top_p
    min_p        l_t ≥ max l + ln(min_p)
    temperature  softmax(l / T); T ≤ 0 leaves only the largest

With a grammar, a token is first drawn without it. If it is forbidden, another is drawn among the survivors that are
allowed; where none of them is, the allowed tokens go through the steps from top_k on by themselves.

All arithmetic is float64. Ties are ordered by id. Also here: the twins of the kernels' parts, namely the keys of
logits, the peaks of their blocks, and which token a seed draws.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Doubles = NDArray[np.float64]


def distribution(
    logits: NDArray[np.floating],
    *,
    history: Sequence[int] = (),  # oldest first
    logit_bias: Mapping[int, float] | None = None,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,  # −1: the whole history
    top_k: int = 0,  # ≤ 0: all
    top_p: float = 1.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    allowed: NDArray[np.bool_] | None = None,  # what may be drawn when a token is drawn again
) -> tuple[Ids, Doubles]:
    """The surviving ids, most likely first, and their probabilities. A token at −∞ never survives."""
    biased = logits.astype(np.float64)
    for token, bias in (logit_bias or {}).items():
        biased[token] += bias
    recent = history[-repeat_last_n:] if repeat_last_n > 0 else history if repeat_last_n < 0 else ()
    penalised = _penalised(biased, recent, repeat_penalty, presence_penalty, frequency_penalty)
    ids = _survivors(penalised, top_k, top_p, min_p)
    if allowed is not None:
        ids = ids[allowed[ids]]
        if temperature <= 0 or not len(ids):
            ids = _survivors(np.where(allowed, penalised, -np.inf), top_k, top_p, min_p)
    if temperature <= 0:
        return ids[:1], np.ones(len(ids[:1]))
    return ids, softmax(penalised[ids] / temperature)


def _survivors(logits: Doubles, top_k: int, top_p: float, min_p: float) -> Ids:
    ids = np.argsort(-logits, kind="stable")
    ids = ids[: np.count_nonzero(logits > -np.inf)]
    if top_k > 0:
        ids = ids[:top_k]
    if top_p < 1:
        ids = ids[: _nucleus(softmax(logits[ids]), top_p)]
    if min_p > 0:
        floor = logits[ids[:1]] + np.log(min(min_p, 1.0))
        ids = ids[logits[ids] >= floor]
    return ids


def softmax(x: Doubles) -> Doubles:
    """exp(x) / Σ exp(x), shifted by the largest x so that nothing overflows."""
    weights: Doubles = np.exp(x - x.max(initial=-np.inf))
    weights /= weights.sum()
    return weights


def _penalised(logits: Doubles, recent: Sequence[int], repeat: float, presence: float, frequency: float) -> Doubles:
    tokens, counts = np.unique(np.asarray(recent, dtype=np.int64), return_counts=True)
    seen = logits[tokens]
    penalised = logits.copy()
    penalised[tokens] = np.where(seen <= 0, seen * repeat, seen / repeat) - counts * frequency - presence
    return penalised


def _nucleus(descending: Doubles, top_p: float) -> int:
    """How many of the largest probabilities it takes to reach top_p; at least one."""
    return int(np.searchsorted(np.cumsum(descending), top_p)) + 1


def keys(logits: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Integers in the same order (keys.wgsl); NaN is above everything."""
    bits = (logits + np.float32(0)).view(np.uint32)  # −0 becomes 0
    ordered = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(0x80000000))
    return np.where(np.isnan(logits), np.uint32(0xFFFFFFFF), ordered)


def ranked(logits: NDArray[np.float32], token: int, count: int) -> list[tuple[int, float]]:
    """(token, log-probability) of `token`, then of the `count` most likely ones."""
    shifted = logits.astype(np.float64) - logits.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    best = np.argsort(-logs, kind="stable")[:count]
    return [(token, float(logs[token])), *((int(i), float(logs[i])) for i in best)]


def peaks(logits: NDArray[np.float32], block: int = 64) -> tuple[NDArray[np.uint32], Doubles]:
    """peaks: the largest key of each block, and Σ e^(l − largest)."""
    padded = np.full(-(-logits.size // block) * block, -np.inf)
    padded[: logits.size] = logits
    blocks = padded.reshape(-1, block)
    largest = np.maximum(blocks.max(axis=1), -3.4e38)
    order = keys(padded.astype(np.float32)).reshape(-1, block).max(axis=1)
    return order, np.exp(blocks - largest[:, None]).sum(axis=1)


def drawn(ids: Ids, shares: Doubles, seed: int, position: int, margin: float, *, again: bool = False) -> int:
    """The token drawn by a hash of seed and position, in id order; fails if rounding would decide it."""
    goal = draw_of(seed, position, again=again)
    order = np.argsort(ids)
    reached = np.cumsum(shares[order])
    assert np.abs(reached - goal).min() > margin, "choose another seed"
    return int(ids[order[int(np.searchsorted(reached, goal))]])


def draw_of(seed: int, position: int, *, again: bool = False) -> float:
    """The random number of a seed and a position, in [0, 1); the one to draw `again` is another."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    mixed = _hash(position ^ _hash(low ^ _hash(high + 0x9E3779B9 & 0xFFFFFFFF)))
    return ((_hash(mixed + 0x9E3779B9 & 0xFFFFFFFF) if again else mixed) >> 8) / 2**24


def _hash(x: int) -> int:
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
