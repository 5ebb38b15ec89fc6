"""What every kernel must compute, one short NumPy function each.

The twin of `kernels/NAME.wgsl` takes the same inputs as plain arrays and returns what the kernel writes, always in
float64. If the forward pass already has the function (`decoder.py`), the twin is that function.

Shapes: R rows, K columns of x and W, N rows of W, E experts, S slots (experts per row), H heads of D.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wgemma.model.rows import PAGE, Row
from wgemma.model.weights import RowOrder
from wgemma.reference.decoder import attend, gelu, rms, rotate, softcap

Array: TypeAlias = NDArray[Any]


def wide(x: Array) -> Array:
    return x.astype(np.float64)


# -- weights


def placed(count: int, order: RowOrder) -> NDArray[np.int64]:
    """repack: the row in the matrix of each of a tensor's `count` rows."""
    i = np.arange(count)
    inner = i % order.group
    return order.add + i // order.group * order.group_stride + inner % order.half * order.step + inner // order.half


def splice(source: bytes, start: int, target: bytes, to: int, size: int) -> bytes:
    """The target after bytes of the source are copied into it."""
    return target[:to] + source[start : start + size] + target[to + size :]


def embed(w: Array, picked: Sequence[int], scale: float) -> Array:
    """scale · W[token]: [R, K]."""
    return np.float32(scale) * wide(w)[list(picked)]


def stream(words: NDArray[np.uint32]) -> bool:
    """Whether the eight vectors of some thread, 256 apart, sum to all ones: words [groups, 8, 256, 4]."""
    return bool((words.sum(axis=(1, 3), dtype=np.uint32) == 0xFFFFFFFF).any())


# -- the residual stream


def residual(h: Array, o: Array, norms: Array, scale: float, eps: float, *, norm: bool) -> tuple[Array, Array]:
    """norm, and matvec's first step: (v, x), v = scale · (h + post ⊙ rms(o)), x = norm ⊙ rms(v) or v."""
    post, before = wide(norms)
    v = np.float32(scale) * (wide(h) + post * rms(wide(o), eps))
    return v, before * rms(v, eps) if norm else v


def experts_norm(h: Array, o: Array, norms: Array, eps: float) -> tuple[Array, Array]:
    """(v, x): v = h + post ⊙ rms(o), and the three inputs norm[i] ⊙ rms(v): [3, R, K]."""
    post, *three = wide(norms)
    v = wide(h) + post * rms(wide(o), eps)
    return v, np.stack([norm * rms(v, eps) for norm in three])


def experts_join(dense: Array, routed: Array, norms: Array, eps: float) -> Array:
    """norm₁ ⊙ rms(dense) + norm₂ ⊙ rms(Σₛ routed[s])."""
    first, second = wide(norms)
    y: Array = first * rms(wide(dense), eps) + second * rms(wide(routed).sum(axis=1), eps)
    return y


def ple(c: Array, table: Array, norm: Array, scale: float, eps: float) -> Array:
    """(norm ⊙ rms(scale · c) + table) / √2 over [R, L, P]."""
    y: Array = (wide(norm) * rms(np.float32(scale) * wide(c), eps) + wide(table)) / np.sqrt(2)
    return y


# -- matmuls, and what may follow them


def rounded(x: Array, largest: int = 127) -> Array:
    """to_bytes, and matvec if QUICK: x rounded to integers up to `largest` with a scale per 32, as numbers again."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.round(blocks * np.where(most == 0, np.float32(0), np.float32(largest) / most))
    numbers: Array = codes.astype(np.float64) * (most / np.float32(largest))
    return numbers.reshape(x.shape)


def linear(w: Array, x: Array) -> Array:
    """tile, and matvec without a mode: y[r, n] = Σ_k W[n, k] · x[r, k]."""
    return wide(x) @ wide(w).T


def shared(w: Array, x: Array, shares: int) -> Array:
    """tile with K split into shares of nearly equal numbers of 32-blocks: [shares, r, n]."""
    edges = [32 * (i * x.shape[-1] // 32 // shares) for i in range(shares + 1)]
    return np.stack([linear(w[:, first:end], x[:, first:end]) for first, end in pairwise(edges)])


def geglu(y: Array) -> Array:
    """gelu(y₂ₙ) · y₂ₙ₊₁."""
    return gated(y[..., 0::2], y[..., 1::2])


def apart(y: Array) -> Array:
    """gelu of the first half of each row · the second half."""
    gate, up = np.split(wide(y), 2, axis=-1)
    return gated(gate, up)


def gated(y: Array, side: Array) -> Array:
    """PLE and SIDE: gelu(y) · side."""
    return gelu(wide(y)) * wide(side)


def capped(y: Array, cap: float) -> Array:
    """SOFTCAP: cap · tanh(y / cap); 0 means no cap."""
    return softcap(wide(y), cap or None)


def low_project(a: Array, x: Array, scales: Array, shares: int, *, made: bool) -> Array:
    """scales[n] · Σ_k a[n, k] · x[r, k]: [R, N, shares], each share of so many vectors of four; `made`, all in the
    first. `scales` has one setting for all rows, or one for each: [N] or [R, N]."""
    each = 4 * -(-(a.shape[1] // 4) // shares)
    z: Array = np.zeros((len(x), len(a), shares))
    for share in range(1 if made else shares):
        some = slice(None) if made else slice(share * each, (share + 1) * each)
        z[:, :, share] = linear(a[:, some], x[:, some]) * wide(scales)
    return z


def low(z: Array, b: Array, targets: NDArray[np.int64]) -> Array:
    """low_add, and matvec with LOW: what adapters add to y, Σ_j z[r, targets[n], j] · b[j, n], of z [R, T, rank]."""
    y: Array = np.einsum("rnj,jn->rn", wide(z)[:, targets], wide(b))
    return y


def low_experts(z: Array, b: Array, scales: Array, chosen: NDArray[np.int64], targets: NDArray[np.int64]) -> Array:
    """Σ_j scales[t, j] · z[r, s, t, j] · b[chosen[r, s], j, n], t = targets[n]: z [R, S, T, rank], b [E, rank, N].
    Every row may have scales of its own."""
    weighed = wide(z) * wide(scales).reshape(-1, 1, *z.shape[2:])
    y: Array = np.einsum("rsnj,rsjn->rsn", weighed[:, :, targets], wide(b)[chosen])
    return y


def low_embed(table: Array, b: Array, scales: Array, tokens: Sequence[int], scale: float) -> Array:
    """scale · Σ_j scales[j] · table[token, j] · b[j]: [R, K]. Every row may have scales of its own."""
    return np.float32(scale) * ((wide(table)[list(tokens)] * wide(scales)) @ wide(b))


def experts(w: Array, x: Array, chosen: NDArray[np.int64], weights: Array | None = None) -> Array:
    """y[r, s] = W[chosen[r, s]] · x[r], with weights: · x[r, s], times weights[r, s].  w [E, N, K] → [R, S, N]."""
    inputs = np.broadcast_to(x[:, None], (*chosen.shape, x.shape[-1])) if weights is None else x
    y: Array = np.einsum("rsnk,rsk->rsn", wide(w)[chosen], wide(inputs))
    return y if weights is None else y * wide(weights)[..., None]


def group(chosen: NDArray[np.int64], experts: int, tall: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(order, tiles): the pairs of `chosen` [R, S] sorted by expert, and their tiles: [R·S / tall + E, 4]."""
    order = np.argsort(chosen.ravel(), kind="stable")
    ends = np.searchsorted(chosen.ravel()[order], np.arange(experts), side="right")
    tiles = []
    for expert, (start, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
        for i in range(end // tall - start // tall + 1):
            first = min(start + i * tall, end)
            tiles.append((expert, first, min(end - first, tall), 0))
    return order, np.array(tiles)


def route(scores: Array, expert_scale: Array, used: int) -> tuple[NDArray[np.int64], Array]:
    """(chosen, weights) [R, S]: the largest scores first, ties to the lower index; softmax over them, times scale."""
    chosen = np.argsort(-wide(scores), axis=-1, kind="stable")[:, :used]
    best = np.take_along_axis(wide(scores), chosen, axis=-1)
    shares = np.exp(best - best[:, :1])
    return chosen, shares / shares.sum(axis=-1, keepdims=True) * wide(expert_scale)[chosen]


# -- attention


def angles(positions: Sequence[int], base: float, head_dim: int, pairs: int) -> Array:
    """θ[t, j] = t · base^(−2j / D), the frequencies rounded to f32: [R, pairs]."""
    frequencies = (base ** (-2 * np.arange(pairs) / head_dim)).astype(np.float32)
    return np.outer(positions, wide(frequencies))


def turned(raw: Array, norm: Array, turns: Array, eps: float) -> Array:
    """A query or key as it is used: rotate(norm ⊙ rms(raw)) over [R, H, D]."""
    return rotate(wide(norm) * rms(wide(raw), eps), turns)


def paired(keys: Array) -> Array:
    """The cache's element order of a key: j and j + D/2 side by side."""
    return np.stack(np.split(keys, 2, axis=-1), axis=-1).reshape(keys.shape)


def kv(k_raw: Array, v_raw: Array, norm: Array, turns: Array, eps: float) -> tuple[Array, Array]:
    """What is stored in the cache: (k paired, v), k = rotate(norm ⊙ rms(k_raw)), v = rms(v_raw)."""
    return paired(turned(k_raw, norm, turns, eps)), rms(wide(v_raw), eps)


def places(positions: Array, table: Array) -> Array:
    """Where positions lie in the arena."""
    found: Array = table[positions // PAGE] * PAGE + positions % PAGE
    return found


def attention(q: Array, keys: Array, values: Array, rows: Sequence[Row], window: int, tables: Sequence[Array]) -> Array:
    """softmax(q · k) v of every row over the places [places, kv_heads, D] it sees, by its own table; 0 for an unused
    row. [R, H, D]"""
    out = np.zeros(q.shape)
    for r, row in enumerate(rows):
        if row.used:
            begin = row.position + 1 - window - (row.used - 1)
            first, last = (max(begin, 0), row.sees) if window else (0, row.position)
            at = places(np.arange(first, last + 1), tables[r])
            all_of_them = np.ones((1, at.size), dtype=np.bool_)
            out[r] = attend(wide(q[r : r + 1]), wide(keys)[at], wide(values)[at], all_of_them).reshape(q.shape[1:])
    return out


def attention_join(outs: Array, states: Array) -> Array:
    """Σₛ e^(maxₛ − max) outₛ / Σₛ e^(maxₛ − max) sumₛ over outs [R, H, splits, D] and (max, sum) [R, H, splits, 2]; 0
    where all are empty."""
    highest, sums, outs = wide(states[..., :1]), wide(states[..., 1:]), wide(outs)
    shares = np.exp(highest - highest.max(axis=-2, keepdims=True))
    total = (shares * sums).sum(axis=-2)
    joined = (shares * outs).sum(axis=-2)
    out: Array = np.divide(joined, total, out=np.zeros_like(joined), where=total != 0)
    return out
