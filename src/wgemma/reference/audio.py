"""Gemma 4's audio towers in NumPy, one obvious function per mathematical step.

The oracle for `model/audio.py`, and natively its fallback without a GPU. Its functions are also the twins of the audio
kernels: they compute in the precision of their inputs.

Shapes: F frames, T tokens, D the tower's width, H heads.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wgemma.errors import MediaError
from wgemma.files.gguf import Gguf
from wgemma.files.sounds import Sound
from wgemma.model.audio import LONGEST, sound_tokens
from wgemma.model.audio_config import CHUNK, PROJECTION, AudioConfig, ConformerConfig, audio_tensors
from wgemma.model.conformer import CAP, KEY_SCALE, KEYS, LONGEST_WAVE, QUERY_SCALE
from wgemma.model.mel import BANDS, BINS, FFT, FLOOR, FRAME, HOP, PAD, RATE, frame_count
from wgemma.model.resample import BETA, ZEROS
from wgemma.model.tower import BOUNDS, EPS, FAR, find
from wgemma.reference.decoder import rms, softcap, softmax
from wgemma.reference.dequantize import dequantize

Floats = NDArray[np.float32]
Array: TypeAlias = NDArray[Any]


class AudioReference:
    """The audio tower of one file."""

    def __init__(self, gguf: Gguf) -> None:
        self.config = AudioConfig.from_gguf(gguf)
        self.width = self.config.width
        self._gguf = gguf
        self._tensors = find(gguf, audio_tensors(self.config))
        self._kept: dict[str, Floats] = {}

    def tokens(self, samples: int) -> int:
        return sound_tokens(self.config, samples)

    def encode(self, samples: Sequence[float] | Array) -> Floats:
        """The soft tokens of a mono sound at 16 kHz: [tokens, width]."""
        wave = np.asarray(samples, dtype=np.float32)
        if not self.tokens(wave.size):
            raise MediaError(f"the sound is too short: {wave.size} samples at 16 kHz.")
        if wave.size > LONGEST:
            raise MediaError(f"the sound is too long: {wave.size / RATE:.1f} seconds. Split it into pieces of 30.")
        conformer = self.config.conformer
        if conformer is None:
            heard = frames(wave, self.tokens(wave.size), CHUNK, CHUNK, 0)
        else:
            heard = self._conformer(conformer, log_mel(wave))
        return self._linear(rms(heard, EPS), PROJECTION)

    def resample(self, sound: Sound) -> Floats:
        """The mean of the channels, at 16 kHz."""
        return resample(np.asarray(sound.samples, dtype=np.float32).reshape(-1, sound.channels), sound.rate)

    def _conformer(self, config: ConformerConfig, mel: Floats) -> Floats:
        x = mel[:, :, None]  # [F, BANDS, 1]
        for index in (0, 1):
            name = f"a.conv1d.{index}"
            x = subsample(x, self._tensor(f"{name}.weight"), self._tensor(f"{name}.norm.weight"))
        h = self._linear(x.reshape(len(x), -1), config.names.subsampled)  # [T, D]
        for index in range(config.blocks):
            h = self._block(config, f"a.blk.{index}.", h)
        return self._linear(h, config.names.output)

    def _block(self, config: ConformerConfig, block: str, h: Floats) -> Floats:
        names = config.names
        h = h + self._feed_forward(block, "", h)
        attended = self._attention(config, block, self._norm(h, block + names.before_attention))
        h = h + self._norm(attended, block + names.after_attention)
        u = self._linear(self._norm(h, f"{block}conv_norm"), f"{block}conv_pw1")
        light = light_conv(u, self._tensor(f"{block}conv_dw.weight"), self._tensor(f"{block}norm_conv.weight"))
        h = h + self._linear(light, f"{block}conv_pw2")
        h = h + self._feed_forward(block, "_1", h)
        return self._norm(h, block + names.block_end)

    def _feed_forward(self, block: str, which: str, h: Floats) -> Floats:
        x = silu(self._linear(self._norm(h, f"{block}ffn_norm{which}"), f"{block}ffn_up{which}"))
        step = self._norm(self._linear(x, f"{block}ffn_down{which}"), f"{block}ffn_post_norm{which}")
        return np.float32(0.5) * step

    def _attention(self, config: ConformerConfig, block: str, x: Floats) -> Floats:
        qkv = np.stack([self._linear(x, f"{block}attn_{which}") for which in "qkv"], axis=1)
        qkv = qkv.reshape(len(x), 3, config.heads, config.head_dim)
        scales = np.full((2, config.head_dim), KEY_SCALE, dtype=np.float32)
        scales[0] = QUERY_SCALE * config.head_dim**-0.5 * self._tensor(f"{block}per_dim_scale.weight")
        if f"{block}per_dim_k_scale.weight" in self._tensors:
            scales[1] *= self._tensor(f"{block}per_dim_k_scale.weight")
        relative = self._linear(distances(config.width), block + config.names.relative)
        out = local_attention(qkv, scales, relative.reshape(KEYS, config.heads, config.head_dim))
        return self._linear(out.reshape(len(x), -1), f"{block}attn_out")

    def _norm(self, x: Floats, name: str) -> Floats:
        return self._tensor(f"{name}.weight") * rms(x, EPS)

    def _linear(self, x: Floats, name: str) -> Floats:
        """clamp(W · clamp(x) + bias)."""
        low, high, y_low, y_high = (self._bound(f"{name}.{bound}") for bound in BOUNDS)
        y: Floats = np.clip(x, low, high) @ self._tensor(f"{name}.weight").T
        if f"{name}.bias" in self._tensors:
            y = y + self._tensor(f"{name}.bias")
        return np.clip(y, y_low, y_high)

    def _bound(self, name: str) -> np.float32:
        if name in self._tensors:
            return np.float32(self._tensor(name)[0])
        return np.float32(-FAR if name.endswith("_min") else FAR)

    def _tensor(self, name: str) -> Floats:
        if name not in self._kept:
            tensor = self._tensors[name]
            self._kept[name] = dequantize(self._gguf.read(name), tensor.type, tensor.shape[::-1])
        return self._kept[name]


# -- the waveform


def frames(wave: Array, count: int, size: int, hop: int, pad: int) -> Array:
    """wave[f · hop + i − pad], padded with silence: [count, size]."""
    at = np.arange(count)[:, None] * hop + np.arange(size) - pad
    inside = (at >= 0) & (at < wave.size)
    return np.where(inside, wave[np.where(inside, at, 0)], wave.dtype.type(0))


def log_mel(wave: Array) -> Floats:
    """[F, BANDS] of a sound at 16 kHz."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    pieces = frames(wave, frame_count(wave.size), FRAME, HOP, PAD)
    spectrum = np.fft.rfft(pieces.astype(np.float64) * window, FFT)
    return bands(np.stack([spectrum.real, spectrum.imag], axis=-1)).astype(np.float32)


def bands(spectrum: Array) -> Array:
    """ln(Σ_k triangle_m(k) · |spectrum[f, k]| + FLOOR) over [F, BINS, 2]."""
    magnitude = np.sqrt((spectrum.astype(np.float64) ** 2).sum(axis=-1))
    mel: Array = np.log(magnitude @ triangles().T + FLOOR)
    return mel


def triangles() -> Array:
    """[BANDS, BINS]: evenly spaced on HTK's mel scale, from 0 to half the rate, none scaled by its width."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    low, peak, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    hertz = np.arange(BINS) * RATE / FFT
    weights: Array = np.maximum(np.minimum((hertz - low) / (peak - low), (high - hertz) / (high - peak)), 0)
    return weights


def resample(x: Array, rate: int) -> Floats:
    """The mean of the channels at RATE, from [frames, channels] at another rate."""
    mono, ratio = x.astype(np.float64).mean(axis=1), min(RATE / rate, 1.0)
    y = np.empty(-(-mono.size * RATE // rate))
    for start in range(0, y.size, 1 << 14):
        i = np.arange(start, min(start + (1 << 14), y.size))
        y[i] = interpolated(mono, i * rate, RATE, ratio)
    return y.astype(np.float32)


def interpolated(mono: Array, places: Array, parts: int, ratio: float) -> Array:
    """ratio · Σ_j mono[j] · sinc((j − t) · ratio) at t = places / parts, with silence before and after."""
    reach = math.ceil(ZEROS / ratio)
    near = np.arange(-reach, reach + 2)
    whole, rest = np.divmod(places, parts)
    weights = windowed_sinc((near - rest[:, None] / parts) * ratio)
    padded = np.concatenate([np.zeros(reach), mono, np.zeros(reach + 2)])
    y: Array = ratio * (padded[whole[:, None] + near + reach] * weights).sum(axis=1)
    return y


def windowed_sinc(t: Array) -> Array:
    """sin(πt) / πt under a Kaiser window."""
    inside = np.maximum(1 - (t / ZEROS) ** 2, 0)
    window = np.where(np.abs(t) < ZEROS, np.i0(BETA * np.sqrt(inside)) / np.i0(BETA), 0)
    y: Array = np.sinc(t) * window
    return y


# -- the conformer


def silu(x: Array) -> Array:
    y: Array = x * sigmoid(x)
    return y


def sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(np.minimum(-x, x.dtype.type(80))))
    return y


def subsample(x: Array, w: Array, norm: Array) -> Array:
    """A 3 × 3 convolution of stride 2 with zeros around x, a norm over the channels, relu. x [T, F, C], w [N, C, 3, 3]
    → [T / 2, F / 2, N] rounded up."""
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    rows, columns = ((size - 1) // 2 + 1 for size in x.shape[:2])
    y = np.zeros((rows, columns, len(w)), dtype=x.dtype)
    for i in range(3):
        for j in range(3):
            near = padded[i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2]
            y += near @ w[:, :, i, j].T
    y -= y.mean(axis=-1, keepdims=True)
    positive: Array = np.maximum(norm * rms(y, EPS), x.dtype.type(0))
    return positive


def distances(width: int) -> Floats:
    """s(δ) = [sin(δ τ₀) …, cos(δ τ₀) …], τᵢ = 10000^(−i / (D/2 − 1)): [KEYS, D]."""
    half = width // 2
    angles = np.outer(np.arange(KEYS), LONGEST_WAVE ** (-np.arange(half) / max(half - 1, 1)))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def local_attention(qkv: Array, scales: Array, relative: Array) -> Array:
    """softmax over δ of 50 tanh(score / 50), score = (q[t] ⊙ a) · (k[t − δ] ⊙ b + relative[δ]). qkv [T, 3, H, D / H],
    relative [KEYS, H, D / H] → [T, H, D / H]."""
    q, k, v = qkv[:, 0] * scales[0], qkv[:, 1] * scales[1], qkv[:, 2]
    out = np.empty_like(v)
    for t in range(len(q)):
        back = np.arange(min(len(relative), t + 1))
        scores = np.einsum("hd,khd->hk", q[t], k[t - back] + relative[back])
        out[t] = np.einsum("hk,khd->hd", softmax(softcap(scores, CAP)), v[t - back])
    return out


def light_conv(u: Array, w: Array, norm: Array) -> Array:
    """silu(norm ⊙ rms(Σ_k w[n, k] · g[t − taps + 1 + k])), g the first half of u, gated by the second. u [T, 2 N]."""
    value, gate = np.split(u, 2, axis=-1)
    gated, taps = value * sigmoid(gate), w.shape[1]
    past = np.concatenate([np.zeros((taps - 1, gated.shape[1]), dtype=u.dtype), gated])
    y = sum((w[:, k] * past[k : k + len(gated)] for k in range(taps)), np.zeros_like(gated))
    return silu(norm * rms(y, EPS))
