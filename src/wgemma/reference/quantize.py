"""Quantises float weights to block formats, choosing scales that keep each block's squared error small.

The inverse of `dequantize` for the formats wgemma writes. Rows (the last axis) fill whole blocks. The error is
unweighted: every weight of a block counts the same.

The search for a scale, in all formats: a candidate scale fixes the codes q by rounding; for fixed codes the best
scale is a least-squares solution; the candidate whose solution leaves the least error wins. Scales are then rounded
to what the format can store, and the codes are rounded once more against the stored scales.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from wgemma.files.quants import BY_NAME

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Halves = NDArray[np.float16]

# Weights per slab, so that its temporaries stay in a core's cache.
SLAB = 1 << 17

# Beyond the range of every block format; clipping to it keeps sums of squares finite in float32.
LARGEST = np.float32(1e9)

# Half the smallest half-precision number: weights below it become zero, so no range is treated as smaller.
SMALLEST = np.float32(2.0**-25)

F16_MAX = np.float32(65504)

# A candidate scale spreads the weights over this many more levels than there are codes: above 0 it clips the largest
# weights, below 0 it leaves codes unused, and either may round the rest better.
SIGNED_STRETCHES = np.linspace(-0.9, 1.8, 19, dtype=np.float32)
UNSIGNED_STRETCHES = np.linspace(-1.0, 1.6, 14, dtype=np.float32)


def quantize(values: Floats, kind: str) -> Bytes:
    """The blocks of every row of `values`: bytes of shape [..., row bytes]."""
    if kind not in QUANTIZERS:
        raise ValueError(f"cannot quantize to {kind}; known are {', '.join(QUANTIZERS)}")
    block, encode = BY_NAME[kind], QUANTIZERS[kind]
    row_nbytes = block.row_nbytes(values.shape[-1])
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, block.elements)
    packed = np.empty((len(blocks), block.nbytes), dtype=np.uint8)
    step = SLAB // block.elements
    for start in range(0, len(blocks), step):
        packed[start : start + step] = encode(blocks[start : start + step])
    return packed.reshape(*values.shape[:-1], row_nbytes)


def _f32_bytes(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _f16_bytes(blocks: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return blocks.astype("<f2").view(np.uint8)


def _bf16_bytes(blocks: Floats) -> Bytes:
    """The upper half of each float32, rounded to nearest, ties to even; the quiet bit keeps a NaN a NaN."""
    bits = blocks.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(blocks), bits >> 16 | 64, rounded).astype("<u2").view(np.uint8)


def _q8_0(blocks: Floats) -> Bytes:
    """d = max |x| / 127."""
    x = _clipped(blocks)
    d = _stored(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127))
    codes = _codes(x, d.astype(np.float32), -127, 127).astype(np.int8)
    return np.concatenate([d.view(np.uint8), codes.view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> Bytes:
    """d by search; the codes −8 … 7 are stored with 8 added."""
    x = _clipped(blocks)
    d = _stored(_signed_scales(x, 8)[:, None])
    q = (_codes(x, d.astype(np.float32), -8, 7) + 8).astype(np.uint8)
    return np.concatenate([d.view(np.uint8), q[:, :16] | q[:, 16:] << 4], axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    """The sub-block scale that is farthest from zero becomes −128 steps of d; d has its opposite sign."""
    x = _clipped(blocks).reshape(-1, 16, 16)
    scales = _signed_scales(x, 32)
    d = _stored_outward(_extreme(scales)[:, None] / np.float32(-128))
    steps = _codes(scales, d.astype(np.float32), -128, 127)
    q = _codes(x, (d.astype(np.float32) * steps)[..., None], -32, 31)
    return _packed_q6_k(d, steps.astype(np.int8), q)


def _packed_q6_k(d: Halves, steps: NDArray[np.int8], codes: Floats) -> Bytes:
    """The Q6_K layout described in `dequantize`, from codes in −32 … 31."""
    q = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # [blocks, half, group, 32]
    low, high = q & 15, q >> 4
    ql = low[:, :, :2] | low[:, :, 2:] << 4
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.concatenate([ql.reshape(-1, 128), qh.reshape(-1, 64), steps.view(np.uint8), d.view(np.uint8)], axis=1)


def _q5_0(blocks: Floats) -> Bytes:
    """d by search; the codes −16 … 15 are stored with 16 added."""
    x = _clipped(blocks)
    d = _stored(_signed_scales(x, 16)[:, None])
    q = (_codes(x, d.astype(np.float32), -16, 15) + 16).astype(np.uint8)
    return np.concatenate([d.view(np.uint8), _packed_five_bits(q)], axis=1)


def _q5_1(blocks: Floats) -> Bytes:
    """d and m by search, from the smallest weight on."""
    x = _clipped(blocks)
    low = x.min(axis=1, keepdims=True)
    scales, below = _scales_and_mins(x - low, 31)
    d, m = _stored(scales[:, None]), _stored(low - below[:, None])
    q = _codes(x - m.astype(np.float32), d.astype(np.float32), 0, 31).astype(np.uint8)
    return np.concatenate([d.view(np.uint8), m.view(np.uint8), _packed_five_bits(q)], axis=1)


def _packed_five_bits(q: Bytes) -> Bytes:
    """The fifth bits of a block's 32 codes, then their nibbles."""
    low = q & 15
    return np.concatenate([np.packbits(q >> 4, axis=1, bitorder="little"), low[:, :16] | low[:, 16:] << 4], axis=1)


def _q4_k(blocks: Floats) -> Bytes:
    scales, q = _k_blocks(blocks, 15)
    return np.concatenate([scales, _packed_nibbles(q)], axis=1)


def _q5_k(blocks: Floats) -> Bytes:
    """Q4_K with a fifth bit: that of sub-block s is bit s of the 32 bytes before the nibbles."""
    scales, q = _k_blocks(blocks, 31)
    fifth = np.packbits(q >> 4, axis=1, bitorder="little")[:, 0]
    return np.concatenate([scales, fifth, _packed_nibbles(q & np.uint8(15))], axis=1)


def _k_blocks(blocks: Floats, top: int) -> tuple[Bytes, Bytes]:
    """The first 16 bytes of Q4_K and Q5_K blocks, and the codes 0 … top: [blocks, 8, 32].

    The largest scale and the largest min of a block become 63 steps of d and of dmin.
    """
    x = _clipped(blocks).reshape(-1, 8, 32)
    scales, mins = _scales_and_mins(x, top)
    d = _stored_outward(scales.max(axis=1, keepdims=True) / np.float32(63))
    dmin = _stored_outward(mins.max(axis=1, keepdims=True) / np.float32(63))
    steps, min_steps = _nearby_steps(x, scales, mins, d.astype(np.float32), dmin.astype(np.float32), top)
    q = _codes(x + (dmin * min_steps)[..., None], (d * steps)[..., None], 0, top)
    return _packed_scales(d, dmin, steps.astype(np.uint8), min_steps.astype(np.uint8)), q.astype(np.uint8)


def _nearby_steps(x: Floats, scales: Floats, mins: Floats, d: Floats, dmin: Floats, top: int) -> tuple[Floats, Floats]:
    """The 6-bit steps of each sub-block's scale and min, from the nearest ones and their neighbours.

    Rounded separately, a scale and its min may both err to the same side; nine pairs are tried for the least error.
    """
    nearest, nearest_min = _codes(scales, d, 0, 63), _codes(mins, dmin, 0, 63)
    best, best_min, best_error = nearest, nearest_min, np.full_like(nearest, np.inf)
    for up, up_min in product((0, -1, 1), repeat=2):
        steps, min_steps = np.clip(nearest + up, 0, 63), np.clip(nearest_min + up_min, 0, 63)
        error = _error(x + (dmin * min_steps)[..., None], (d * steps)[..., None], top)
        better = error < best_error
        best, best_min = np.where(better, steps, best), np.where(better, min_steps, best_min)
        best_error = np.minimum(error, best_error)
    return best, best_min


def _error(x: Floats, scale: Floats, top: int) -> Floats:
    """Σ (x − scale·q)² over each last axis, with the codes q = 0 … top nearest to x."""
    rest = _codes(x, scale, 0, top)
    rest *= -scale
    rest += x
    return _dot(rest, rest)


def _packed_scales(d: Halves, dmin: Halves, steps: Bytes, min_steps: Bytes) -> Bytes:
    """The Q4_K and Q5_K layout described in `dequantize`, up to the codes."""
    first = steps[:, :4] | steps[:, 4:] >> 4 << 6
    second = min_steps[:, :4] | min_steps[:, 4:] >> 4 << 6
    third = steps[:, 4:] & 15 | (min_steps[:, 4:] & 15) << 4
    return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), first, second, third], axis=1)


def _packed_nibbles(q: Bytes) -> Bytes:
    """Every two sub-blocks of [blocks, 8, 32] share 32 bytes."""
    pairs = q.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)).reshape(-1, 128)


def _clipped(blocks: Floats) -> Floats:
    return np.clip(blocks, -LARGEST, LARGEST)


def _stored(scale: Floats) -> Halves:
    """The half-precision number nearest to a scale, never infinite."""
    return np.clip(scale, -F16_MAX, F16_MAX).astype(np.float16)


def _stored_outward(scale: Floats) -> Halves:
    """The nearest half-precision number not closer to zero, so that its largest multiple reaches the largest scale.

    Blocks of small weights have a subnormal d; rounding it to nearest could lose a large part of it.
    """
    stored = _stored(scale)
    outer = np.nextafter(stored, np.copysign(np.float16(F16_MAX), stored))
    return np.where(np.abs(stored) < np.abs(scale), outer, stored)


def _codes(x: Floats, scale: Floats, low: int, high: int) -> Floats:
    """The codes low … high nearest to x / scale; 0 where the scale is 0."""
    return _rounded(x, np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0), low, high)


def _rounded(x: Floats, inverse: Floats, low: int, high: int) -> Floats:
    """x · inverse to the nearest whole number in low … high."""
    q = x * inverse
    np.rint(q, out=q)
    return np.clip(q, low, high, out=q)


def _extreme(x: Floats) -> Floats:
    """The value farthest from zero along the last axis, with its sign."""
    high: Floats = x.max(axis=-1)
    low: Floats = x.min(axis=-1)
    return np.where(high > -low, high, low)


def _dot(a: Floats, b: Floats) -> Floats:
    """Σ a·b over each last axis."""
    sums: Floats = np.einsum("...i,...i->...", a, b)
    return sums


def _signed_scales(x: Floats, levels: int) -> Floats:
    """s minimising Σ (x − s·q)² over each last axis, q = −levels … levels − 1.

    For fixed q the best s is Σxq / Σq², and it takes (Σxq)² / Σq² off the error. The value farthest from zero gets the
    code −levels, as the negative codes reach one farther; s has the sign opposite to it.
    """
    extreme = _extreme(x)
    unit = -1 / np.copysign(np.maximum(np.abs(extreme), SMALLEST), extreme)
    best, best_gain = np.zeros_like(extreme), np.zeros_like(extreme)
    for stretch in SIGNED_STRETCHES:
        q = _rounded(x, (unit * (levels + stretch))[..., None], -levels, levels - 1)
        xq, qq = _dot(x, q), np.maximum(_dot(q, q), 1)
        gain = xq * xq / qq
        better = gain > best_gain
        best = np.where(better, xq / qq, best)
        best_gain = np.maximum(gain, best_gain)
    return best


def _scales_and_mins(x: Floats, top: int) -> tuple[Floats, Floats]:
    """(s, m) minimising Σ (x − (s·q − m))² over each last axis, q = 0 … top, with s ≥ 0 and m ≥ 0."""
    low = np.minimum(x.min(axis=-1), 0)
    span = np.maximum(x.max(axis=-1) - low, SMALLEST)
    shifted = x - low[..., None]
    sum_x, n = x.sum(axis=-1), np.float32(x.shape[-1])
    best_s, best_m, best_gain = np.zeros_like(low), -low, np.full_like(low, -np.inf)
    for stretch in UNSIGNED_STRETCHES:
        q = _rounded(shifted, ((top + stretch) / span)[..., None], 0, top)
        s, m, gain = _line(sum_x, q.sum(axis=-1), _dot(q, q), _dot(x, q), n)
        better = gain > best_gain
        best_s, best_m = np.where(better, s, best_s), np.where(better, m, best_m)
        best_gain = np.maximum(gain, best_gain)
    return best_s, best_m


def _line(sum_x: Floats, sum_q: Floats, qq: Floats, xq: Floats, n: np.float32) -> tuple[Floats, Floats, Floats]:
    """The least-squares (s, m) of x ≈ s·q − m for fixed q, and how much Σx² exceeds the error it leaves.

    Unconstrained: s = (n Σxq − Σx Σq) / (n Σq² − (Σq)²), m = (s Σq − Σx) / n; where that m < 0: m = 0, s = Σxq / Σq².
    """
    covariance: Floats = np.maximum(n * xq - sum_x * sum_q, 0)
    variance: Floats = np.maximum(n * qq - sum_q * sum_q, 1)
    s = covariance / variance
    m = (s * sum_q - sum_x) / n
    s = np.where(m >= 0, s, np.maximum(xq, 0) / np.maximum(qq, 1))
    m = np.maximum(m, 0)
    gain = 2 * (s * xq - m * sum_x) - s * s * qq + 2 * s * m * sum_q - n * m * m
    return s, m, gain


QUANTIZERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": _f32_bytes,
    "F16": _f16_bytes,
    "BF16": _bf16_bytes,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
