"""Decodes every block format to float32.

One function per format, from blocks of bytes [blocks, nbytes] to values [blocks, elements]. The WGSL is tested against
these: all arithmetic is float32, in the order the formulas are written.

Notation: x[i] is element i of a block; `d:f16 @0` is a half-precision number at byte 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.files.grids import GRIDS
from wgemma.files.quants import BY_NAME

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# The fp4 (E2M1) values, doubled to make them integers; their scales are halved.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)

# The unevenly spaced levels of IQ4_NL and IQ4_XS.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)

# What the levels of IQ3_XXS stand for; those of IQ3_S are 1, 3, … 15.
IQ3_LEVELS = np.array([4, 12, 20, 28, 36, 44, 52, 62], dtype=np.float32)


def dequantize(raw: bytes | memoryview | Bytes, kind: str, shape: tuple[int, ...] | None = None) -> Floats:
    """The values of the whole blocks in `raw`, in C order with the slowest axis first; flat without a `shape`."""
    if kind not in DEQUANTIZERS:
        raise ValueError(f"{kind} blocks cannot be dequantized; known are {', '.join(DEQUANTIZERS)}")
    block = BY_NAME[kind]
    data = np.frombuffer(np.ascontiguousarray(raw) if isinstance(raw, np.ndarray) else raw, dtype=np.uint8)
    if data.size % block.nbytes:
        raise ValueError(f"{kind} blocks are {block.nbytes} bytes long; {data.size} is not a multiple of that")
    values = DEQUANTIZERS[kind](data.reshape(-1, block.nbytes)) if data.size else np.empty(0, dtype=np.float32)
    return values.reshape(-1 if shape is None else shape)


def _f16(blocks: Bytes, at: int) -> Floats:
    """The half-precision number at byte `at` of every block: [blocks, 1]."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _fields(codes: Bytes, width: int) -> Bytes:
    """The `width`-bit fields of every byte, low bits first, on a new axis before the last: [..., 8 / width, n]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (codes[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _nibbles(codes: Bytes) -> Bytes:
    """The low nibbles of a run of bytes, then the high ones: [blocks, 2n]."""
    return _fields(codes, 4).reshape(len(codes), -1)


def _scaled(scales: Floats, q: NDArray[np.generic]) -> Floats:
    """scales[b, s] · q[b, s, i], with the blocks of q split into one sub-block per scale."""
    sub_blocks = q.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[..., None] * sub_blocks).reshape(len(scales), -1)


def _scaled_less_min(scales: Floats, mins: Floats, q: NDArray[np.generic]) -> Floats:
    """scales[b, s] · q[b, s, i] − mins[b, s]."""
    sub_blocks = q.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[..., None] * sub_blocks - mins[..., None]).reshape(len(scales), -1)


def _f32_values(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16_values(blocks: Bytes) -> Floats:
    return _f16(blocks, 0)


def _bf16_values(blocks: Bytes) -> Floats:
    """The upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    """d:f16 @0, qs[16] @2.  q[j] = qs[j] & 15, q[j + 16] = qs[j] >> 4;  x = d · (q − 8)."""
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    """d:f16 @0, m:f16 @2, qs[16] @4.  q as in Q4_0;  x = d · q + m."""
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _f16(blocks, 2)


def _five_bits(high: Bytes, low: Bytes) -> Floats:
    """q[i] = nibble i of low (as in Q4_0) | bit i of high[4] << 4."""
    fifth = np.unpackbits(high, axis=1, bitorder="little")
    return (_nibbles(low) | fifth << 4).astype(np.float32)


def _q5_0(blocks: Bytes) -> Floats:
    """d:f16 @0, qh:u32 @2, qs[16] @6.  q = nibble | bit of qh << 4;  x = d · (q − 16)."""
    return _f16(blocks, 0) * (_five_bits(blocks[:, 2:6], blocks[:, 6:]) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    """d:f16 @0, m:f16 @2, qh:u32 @4, qs[16] @8.  q as in Q5_0;  x = d · q + m."""
    return _f16(blocks, 0) * _five_bits(blocks[:, 4:8], blocks[:, 8:]) + _f16(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    """d:f16 @0, q:i8[32] @2.  x = d · q."""
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    """scales[16] @0, qs[64] @16, d:f16 @80, dmin:f16 @82; 16 sub-blocks of 16.

    q[128h + 32g + l] = (qs[32h + l] >> 2g) & 3;  x = d · (scales[s] & 15) · q − dmin · (scales[s] >> 4).
    """
    scales = blocks[:, :16]
    q = _fields(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    return _scaled_less_min(_f16(blocks, 80) * (scales & 15), _f16(blocks, 82) * (scales >> 4), q)


def _q3_k(blocks: Bytes) -> Floats:
    """hmask[32] @0, qs[64] @32, scales[12] @96, d:f16 @108; 16 sub-blocks of 16.

    q[128h + 32g + l] = ((qs[32h + l] >> 2g) & 3) + 4 · (bit 4h + g of hmask[l]) − 4
    scale[s] = nibble s of scales[:8] (all low ones first) | (scales[8 + s % 4] >> 2 (s / 4) & 3) << 4
    x = d · (scale − 32) · q
    """
    low = _fields(blocks[:, 32:96].reshape(-1, 2, 32), 2)
    high = _fields(blocks[:, :32], 1).reshape(low.shape)
    packed = blocks[:, 96:108]
    scales = _nibbles(packed[:, :8]) | _fields(packed[:, 8:], 2).reshape(-1, 16) << 4
    return _scaled(_f16(blocks, 108) * (scales.astype(np.float32) - 32), (low | high << 2).astype(np.int8) - 4)


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit mins out of 12 bytes b.

    s < 4: scale[s] = b[s] & 63, min[s] = b[s + 4] & 63
    s ≥ 4: scale[s] = (b[s + 4] & 15) | (b[s − 4] >> 6) << 4, min[s] = (b[s + 4] >> 4) | (b[s] >> 6) << 4
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, mins


def _q4_k(blocks: Bytes) -> Floats:
    """d:f16 @0, dmin:f16 @2, scales[12] @4, qs[128] @16; 8 sub-blocks of 32, each two sharing 32 bytes.

    q[64p + l] = qs[32p + l] & 15, q[64p + 32 + l] = qs[32p + l] >> 4;  x = d · scale[s] · q − dmin · min[s]
    """
    scales, mins = _six_bit_pairs(blocks[:, 4:16])
    q = _fields(blocks[:, 16:].reshape(-1, 4, 32), 4)
    return _scaled_less_min(_f16(blocks, 0) * scales, _f16(blocks, 2) * mins, q)


def _q5_k(blocks: Bytes) -> Floats:
    """d:f16 @0, dmin:f16 @2, scales[12] @4, qh[32] @16, qs[128] @48; 8 sub-blocks of 32.

    q[32s + l] = nibble as in Q4_K | (bit s of qh[l]) << 4;  x = d · scale[s] · q − dmin · min[s]
    """
    scales, mins = _six_bit_pairs(blocks[:, 4:16])
    low = _fields(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    q = low | _fields(blocks[:, 16:48], 1) << 4
    return _scaled_less_min(_f16(blocks, 0) * scales, _f16(blocks, 2) * mins, q)


def _q6_k(blocks: Bytes) -> Floats:
    """ql[128] @0, qh[64] @128, scales:i8[16] @192, d:f16 @208; 16 sub-blocks of 16.

    q[128h + 32g + l] = nibble g / 2 of ql[64h + 32 (g % 2) + l] | (qh[32h + l] >> 2g & 3) << 4
    x = d · scales[s] · (q − 32)
    """
    low = _fields(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    scales = _f16(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(scales, (low | high << 4).astype(np.int8) - 32)


def _levels(kind: str, entries: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The four levels of every entry of a grid, on the last axis: [blocks, n] → [blocks, 4n]."""
    four: NDArray[np.int64] = np.array(GRIDS[kind])[entries][..., None] >> np.arange(0, 12, 3) & 7
    return four.reshape(len(entries), -1)


def _signed(values: Floats, negative: Bytes) -> Floats:
    """values[i], below zero where bit i of `negative` is set, low bits first."""
    return np.where(np.unpackbits(negative, axis=1, bitorder="little"), -values, values)


def _iq3_xxs(blocks: Bytes) -> Floats:
    """d:f16 @0, entries[64] @2, w:u32[8] @66; 8 sub-blocks of 32, eight entries of the grid each.

    signs[4s + i] = (w[s] >> 7i) & 127 | parity << 7, so that their number is even;  scale[s] = w[s] >> 28
    x = d · (scale + 1/2) / 2 · ±IQ3_LEVELS[level]
    """
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")
    seven = (words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127).astype(np.uint8).reshape(-1, 32)
    parity = np.bitwise_xor.reduce(_fields(seven[..., None], 1), axis=-2)[..., 0]
    scales = _f16(blocks, 0) * ((words >> 28).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
    return _scaled(scales, _signed(IQ3_LEVELS[_levels("IQ3_XXS", blocks[:, 2:66])], seven | parity << 7))


def _iq3_s(blocks: Bytes) -> Floats:
    """d:f16 @0, entries[64] @2, ninth[8] @66, signs[32] @74, scales[4] @106; 8 sub-blocks of 32, eight entries each.

    entry[8s + i] = entries[8s + i] | (bit i of ninth[s]) << 8;  scale[s] = nibble s of scales (low, high, low, …)
    x = d · (2 · scale + 1) · ±(2 · level + 1)
    """
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.int64)
    values = (2 * _levels("IQ3_S", blocks[:, 2:66] | ninth << 8) + 1).astype(np.float32)
    scales = _f16(blocks, 0) * (2 * _fields(blocks[:, 106:, None], 4).reshape(-1, 8) + 1).astype(np.float32)
    return _scaled(scales, _signed(values, blocks[:, 74:106]))


def _iq4_nl(blocks: Bytes) -> Floats:
    """d:f16 @0, qs[16] @2.  x = d · IQ4_LEVELS[nibble as in Q4_0]."""
    return _f16(blocks, 0) * IQ4_LEVELS[_nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    """d:f16 @0, scales_h:u16 @2, scales_l[4] @4, qs[128] @8; 8 sub-blocks of 32, each laid out as in Q4_0.

    scale[s] = nibble s of scales_l (low, high, low, …) | (scales_h >> 2s & 3) << 4
    x = d · (scale − 32) · IQ4_LEVELS[q]
    """
    high = _fields(blocks[:, 2:4, None], 2).reshape(-1, 8)
    low = _fields(blocks[:, 4:8, None], 4).reshape(-1, 8)
    scales = _f16(blocks, 0) * ((low | high << 4).astype(np.float32) - 32)
    return _scaled(scales, IQ4_LEVELS[_fields(blocks[:, 8:].reshape(-1, 8, 16), 4)])


def _mxfp4(blocks: Bytes) -> Floats:
    """e:u8 @0, qs[16] @1.  x = 2^(e − 128) · E2M1_DOUBLED[nibble as in Q4_0]."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    with np.errstate(over="ignore"):
        return scales * E2M1_DOUBLED[_nibbles(blocks[:, 1:])]


def _nvfp4(blocks: Bytes) -> Floats:
    """d:u8[4] @0 (unsigned E4M3), qs[32] @4; 4 sub-blocks of 16, each laid out as in Q4_0 in small.

    x = E4M3(d[s]) / 2 · E2M1_DOUBLED[q]
    """
    return _scaled(_halved_e4m3(blocks[:, :4]), E2M1_DOUBLED[_fields(blocks[:, 4:].reshape(-1, 4, 8), 4)])


def _halved_e4m3(codes: Bytes) -> Floats:
    """exp = codes >> 3 & 15, man = codes & 7:  man · 2^−10 while exp = 0, then (8 + man) · 2^(exp − 11); 0x7F is 0."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    subnormal = exponent == 0
    values = np.ldexp(np.where(subnormal, mantissa, mantissa + 8), np.where(subnormal, -10, exponent - 11))
    return np.where(codes == 0x7F, np.float32(0), values)


DEQUANTIZERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32_values,
    "F16": _f16_values,
    "BF16": _bf16_values,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
