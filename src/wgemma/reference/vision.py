"""Gemma 4's vision towers in NumPy: float32, one obvious function per step, from pixels to soft tokens.

    pixels   on white → resized (bicubic, uint8 after each pass) → x in [0, 1] → patches, planar: channel, row, column
    tower    h = W · (2x − 1) + PosX[column] + PosY[row]
             per layer:  h += norm(W · attention(norm(h)));  h += norm(W · (gelu(W z) ⊙ W z)), z = norm(h);  h *= scale
             t = √D · mean of 3 × 3 patches, (t − bias) ⊙ scale if the file has them
    unified  t = LN(LN(W · LN(x) + b) + PosX[column] + PosY[row])
    tokens   W · rms(t)

Every W of the tower is a clipped linear: clamp(W · clamp(x)).
"""

import numpy as np
from numpy.typing import NDArray

from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.model.tower import EPS, PROJECTOR, read_bounds
from wgemma.model.vision_config import CHANNELS, PLACES, POOL, ROPE_BASE, read_vision
from wgemma.reference.decoder import Floats, attend, gelu, rms, root, rotate
from wgemma.reference.dequantize import dequantize
from wgemma.sync import run

Bytes = NDArray[np.uint8]

LAYER_NORM_EPS = 1e-5
QUERIES = 512  # at a time, because the scores of all patches would take gigabytes


class VisionReference:
    """The tower of one file."""

    def __init__(self, gguf: Gguf) -> None:
        self.config, self._tensors = read_vision(gguf)
        self._gguf = gguf

    def encode(self, pixels: Pixels, budget: int = 280) -> Floats:
        """The soft tokens of an image: [tokens, width]."""
        config = self.config
        image = resize(on_white(pixels), *config.fit(pixels.width, pixels.height, budget))
        x = patches(image, config.patch)  # [patches, columns]
        across, down = image.shape[1] // config.patch, image.shape[0] // config.patch
        h = self._unified(x, across, down) if config.unified else self._tower(x, across, down)
        return self._linear(rms(h, EPS), PROJECTOR)

    def _tower(self, x: Floats, across: int, down: int) -> Floats:
        h = (2 * x - 1) @ self._read("v.patch_embd.weight").reshape(-1, x.shape[1]).T + self._places(across, down)
        angles = grid_angles(across, down, self.config.head_dim)
        for layer in range(self.config.layers):
            block = f"v.blk.{layer}."
            h = h + self._norm(self._attention(block, self._norm(h, block + "ln1"), angles), block + "attn_post_norm")
            z = self._norm(h, block + "ln2")
            gated = gelu(self._linear(z, block + "ffn_gate")) * self._linear(z, block + "ffn_up")
            h = h + self._norm(self._linear(gated, block + "ffn_down"), block + "ffn_post_norm")
            if block + "out_scale.weight" in self._tensors:
                h = h * self._read(block + "out_scale.weight")
        t = pool(h, across, down)
        if "v.std_bias" in self._tensors:
            t = t - self._read("v.std_bias")
        return t * self._read("v.std_scale") if "v.std_scale" in self._tensors else t

    def _unified(self, x: Floats, across: int, down: int) -> Floats:
        h = self._layer_norm(x, 1) @ self._read("v.patch_embd.weight").T + self._read("v.patch_embd.bias")
        return self._layer_norm(self._layer_norm(h, 2) + self._places(across, down), 3)

    def _attention(self, block: str, x: Floats, angles: tuple[NDArray[np.float64], NDArray[np.float64]]) -> Floats:
        shape = (len(x), self.config.heads, self.config.head_dim)
        q, k, v = (self._linear(x, f"{block}attn_{name}").reshape(shape) for name in "qkv")
        q = turn(self._norm(q, block + "attn_q_norm"), angles)
        k = turn(self._norm(k, block + "attn_k_norm"), angles)
        return self._linear(everybody(q, k, rms(v, EPS)), block + "attn_out")

    def _places(self, across: int, down: int) -> Floats:
        """PosX[column] + PosY[row] of the patches, row by row: [patches, D]."""
        table = self._read(PLACES)  # [2, places, D]
        return (table[0, None, :across] + table[1, :down, None]).reshape(across * down, -1)

    def _norm(self, x: Floats, name: str) -> Floats:
        return self._read(f"{name}.weight") * rms(x, EPS)

    def _layer_norm(self, x: Floats, which: int) -> Floats:
        weight, bias = (self._read(f"v.patch_norm.{which}.{part}") for part in ("weight", "bias"))
        return layer_norm(x, weight, bias, LAYER_NORM_EPS)

    def _linear(self, x: Floats, name: str) -> Floats:
        """clamp(W · clamp(x))."""
        bounds = run(read_bounds(lambda tensor: self._gguf.aread(tensor.name), self._tensors, name))
        clipped = np.clip(x, np.float32(bounds.input_min), np.float32(bounds.input_max))
        y = clipped @ self._read(f"{name}.weight").T
        clipped_y: Floats = np.clip(y, np.float32(bounds.output_min), np.float32(bounds.output_max))
        return clipped_y

    def _read(self, name: str) -> Floats:
        tensor = self._tensors[name]
        raw = run(self._gguf.source.read(tensor.offset, tensor.nbytes))
        return dequantize(raw, tensor.type, tensor.shape[::-1])


# -- pixels


def on_white(pixels: Pixels) -> Bytes:
    """The image without transparency: [height, width, 3]."""
    return white(np.frombuffer(pixels.rgba, dtype=np.uint8).reshape(pixels.height, pixels.width, 4))


def white(rgba: Bytes) -> Bytes:
    """Composites colours on white by their alpha, over the last axis."""
    colour, alpha = rgba[..., :3].astype(np.uint32), rgba[..., 3:].astype(np.uint32)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def resize(image: Bytes, width: int, height: int) -> Bytes:
    """Bicubic with antialiasing, across and then down, rounded and clamped to whole numbers after each pass."""
    if image.shape[:2] == (height, width):
        return image
    return resample(resample(image.swapaxes(0, 1), width).swapaxes(0, 1), height)


def resample(image: Bytes, size: int) -> Bytes:
    """Resizes the first axis to `size`; the weights have 16 bits, as torchvision's."""
    before = len(image)
    scale = before / size
    wide = max(scale, 1.0)
    centres = (np.arange(size) + 0.5) * scale
    first = np.floor(centres - 2 * wide).astype(np.int64)
    taps = first[:, None] + np.arange(int(np.ceil(4 * wide)) + 2)  # [size, taps]
    weights = cubic((taps + 0.5 - centres[:, None]) / wide) * ((taps >= 0) & (taps < before))
    weights /= weights.sum(axis=1, keepdims=True)
    bits = 0
    while bits < 22 and np.floor(weights.max() * 2.0 ** (bits + 1) + 0.5) < 2**15:
        bits += 1
    whole = np.trunc(weights * 2.0**bits + np.copysign(0.5, weights)).astype(np.int64)
    out = np.empty((size, *image.shape[1:]), dtype=np.uint8)
    inside = np.clip(taps, 0, before - 1)
    for i in range(size):
        value = np.tensordot(whole[i], image[inside[i]].astype(np.int64), axes=1)
        out[i] = np.clip((value + (1 << bits >> 1)) >> bits, 0, 255)
    return out


def cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' kernel with a = −½."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    y: NDArray[np.float64] = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return y


def patches(image: Bytes, side: int) -> Floats:
    """Squares of the image in [0, 1], row by row; within one: channel, row, column. [patches, 3 · side²]"""
    down, across = image.shape[0] // side, image.shape[1] // side
    squares = image.reshape(down, side, across, side, CHANNELS).transpose(0, 2, 4, 1, 3)
    return squares.reshape(down * across, -1).astype(np.float32) / np.float32(255)


# -- the tower


def grid_angles(across: int, down: int, head_dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """θ by column and by row of every patch, for the hd/4 pairs of either half of a head: [patches, hd/4] each."""
    frequencies = ROPE_BASE ** (-4.0 * np.arange(head_dim // 4) / head_dim)
    place = np.arange(across * down)
    return np.outer(place % across, frequencies), np.outer(place // across, frequencies)


def turn(x: Floats, angles: tuple[NDArray[np.float64], NDArray[np.float64]]) -> Floats:
    """Rotates the first half of every head by the column, the second by the row: [patches, heads, head_dim]."""
    halves = np.split(x, 2, axis=-1)
    return np.concatenate([rotate(half, angle) for half, angle in zip(halves, angles, strict=True)], axis=-1)


def everybody(q: Floats, k: Floats, v: Floats) -> Floats:
    """Attention of every patch to every patch, unscaled: [patches, heads · head_dim]."""
    parts = []
    for first in range(0, len(q), QUERIES):
        some = q[first : first + QUERIES]
        parts.append(attend(some, k, v, np.ones((len(some), len(k)), dtype=np.bool_)))
    return np.concatenate(parts)


def pool(h: Floats, across: int, down: int) -> Floats:
    """√D · the mean of 3 × 3 patches: [tokens, D]."""
    squares = h.reshape(down // POOL, POOL, across // POOL, POOL, -1)
    mean: Floats = squares.mean(axis=(1, 3), dtype=np.float64).astype(np.float32)
    return root(h.shape[1]) * mean.reshape(-1, h.shape[1])


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
    """weight ⊙ (x − mean) / √(variance + ε) + bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Floats = weight * rms(centred, eps) + bias
    return y
