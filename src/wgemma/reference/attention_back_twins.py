"""What the attention kernels must compute in training, forward on packed rows and backward (see twins.py).

Packed rows are whole sequences one after another; each row's key is in its own slot.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wgemma.model.rows import Row
from wgemma.reference.backward_twins import rms_back
from wgemma.reference.decoder import rotate
from wgemma.reference.twins import Array, paired, turned, wide


def packed_visible(rows: Sequence[Row], window: int) -> NDArray[np.bool_]:
    """Which row's key each row sees: of its own sequence, not later, t − p < window. [R, R]"""
    r, p = np.arange(len(rows))[:, None], np.arange(len(rows))
    first = r - np.array([[row.position] for row in rows])
    used = np.array([[row.used > 0] for row in rows])
    mask: NDArray[np.bool_] = used & (first <= p) & (p <= r) & ((r - p < window) if window else True)
    return mask


def _shares(q: Array, keys: Array, rows: Sequence[Row], window: int) -> tuple[Array, Array]:
    """(p, lse): softmax(q · k) [R, H, R] with zeros for unseen keys, and log Σ e^(q · k) [R, H]."""
    group = q.shape[1] // keys.shape[1]
    mask = packed_visible(rows, window)[:, None]
    k = np.where(np.isnan(keys), 0, wide(keys)).repeat(group, axis=1)
    scores = np.where(mask, np.einsum("rhd,phd->rhp", wide(q), k), -np.inf)
    highest = np.where(mask.any(axis=-1), scores.max(axis=-1), 0)
    powers = np.exp(scores - highest[..., None])
    total = np.where(mask.any(axis=-1), powers.sum(axis=-1), 1)
    return powers / total[..., None], highest + np.log(total)


def packed_attention(q: Array, keys: Array, values: Array, rows: Sequence[Row], window: int) -> tuple[Array, Array]:
    """attention, PACKED: (out [R, H, D], lse [R, H]); 0 for an unused row."""
    shares, lse = _shares(q, keys, rows, window)
    v = np.where(np.isnan(values), 0, wide(values)).repeat(q.shape[1] // keys.shape[1], axis=1)
    return np.einsum("rhp,phd->rhd", shares, v), lse


def attention_prepare(
    raw: Array, norm: Array, turns: Array, out: Array, d_out: Array, lse: Array, rows: Sequence[Row], eps: float
) -> Array:
    """q in pairs, then lse, Σ d_out · out, 0, 0: [R, H, D + 4]; 0 for an unused row."""
    delta = (wide(out) * wide(d_out)).sum(axis=-1)
    tail = np.stack([wide(lse), delta, np.zeros(delta.shape), np.zeros(delta.shape)], axis=-1)
    made = np.concatenate([paired(turned(raw, norm, turns, eps)), tail], axis=-1)
    made[[row.used == 0 for row in rows]] = 0
    return made


def attention_back(
    q: Array, keys: Array, values: Array, d_out: Array, rows: Sequence[Row], window: int
) -> tuple[Array, Array, Array]:
    """(dq [R, H, D], dk, dv [R, KV, D]) of packed attention; attention_back writes the first, attention_back_kv the
    others, dq and dk in pairs."""
    kv_heads, group = keys.shape[1], q.shape[1] // keys.shape[1]
    k, v = (np.where(np.isnan(x), 0, wide(x)).repeat(group, axis=1) for x in (keys, values))
    shares, _ = _shares(q, keys, rows, window)
    d_shares = np.einsum("rhd,phd->rhp", wide(d_out), v)
    slopes = shares * (d_shares - (shares * d_shares).sum(axis=-1, keepdims=True))
    dq = np.einsum("rhp,phd->rhd", slopes, k)
    dk, dv = np.einsum("rhp,rhd->phd", slopes, wide(q)), np.einsum("rhp,rhd->phd", shares, wide(d_out))
    dk, dv = (x.reshape(len(rows), kv_heads, group, -1).sum(axis=2) for x in (dk, dv))
    return dq, dk, dv


def turned_back(dk: Array, raw: Array, norm: Array, turns: Array, eps: float) -> Array:
    """kv_back, keys or queries: the gradient of raw, given dk, that of rotate(norm ⊙ rms(raw))."""
    return rms_back(raw, norm, rotate(wide(dk), -turns), eps)


def values_back(dv: Array, raw: Array, eps: float) -> Array:
    """kv_back, values: the gradient of raw, given dv, that of rms(raw)."""
    return rms_back(raw, np.ones(raw.shape[-1]), dv, eps)
