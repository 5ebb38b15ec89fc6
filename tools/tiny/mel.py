"""Waves → the log-mel frames of transformers' Gemma 4 feature extractor, in batches on a GPU."""

import math

import numpy as np
import torch
from torch import Tensor


def frames_of(samples: int) -> int:
    return max(0, (samples + 160 - 321) // 160 + 1)


def tokens_of(samples: int) -> int:
    half = (frames_of(samples) + 1) // 2
    return (half + 1) // 2


def filters() -> Tensor:
    """128 triangles, equally spaced on the HTK mel scale from 0 to 8000 Hz: [257, 128]."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return 700 * (10 ** (mel / 2595) - 1)

    edges = hertz(np.linspace(0, 2595 * math.log10(1 + 8000 / 700), 130))
    bins = np.arange(257) * 16000 / 512
    rise = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return torch.from_numpy(np.maximum(0, np.minimum(rise, fall)).astype(np.float32))


def waves_to_mel(waves: list[Tensor], device: str) -> tuple[Tensor, Tensor]:
    """[n, frames, 128], zero where a wave has ended, and which frames are its own."""
    counts = [frames_of(len(wave)) for wave in waves]
    most = max(counts)
    padded = torch.zeros(len(waves), 160 * most + 320, device=device)
    for i, wave in enumerate(waves):
        padded[i, 160 : 160 + len(wave)] = wave.to(device)[: 160 * most + 160]
    frames = padded.unfold(1, 320, 160)[:, :most]
    window = torch.hann_window(320, periodic=True, device=device)
    mel = torch.fft.rfft(frames * window, 512).abs() @ filters().to(device)
    valid = torch.arange(most, device=device)[None] < torch.tensor(counts, device=device)[:, None]
    return torch.log(mel + 1e-3) * valid[..., None], valid
