"""Records the log-mel spectrogram, the input of E2B's and E4B's audio tower.

frame i  = samples [160 i − 160, 160 i + 160), a Hann window over them
spectrum = |DFT of 512|, 257 bins of 31.25 Hz       a product with a matrix that includes the window
mel      = ln(Σ_k triangle_m(k) · spectrum[k] + 0.001), 128 triangles evenly spaced in mels up to 8 kHz
"""

import math
from array import array
from dataclasses import dataclass

from wgemma.gpu.device import Binding, Buffer, Span
from wgemma.gpu.tape import Tape
from wgemma.model.tower import Bounds, Linear, linear
from wgemma.model.weights import Matrix, MatrixPart, Uploader

RATE = 16_000  # samples per second
FRAME, HOP, PAD = 320, 160, 160  # samples; PAD zeros precede the first
FFT = 512
BINS = FFT // 2 + 1
BANDS = 128
FLOOR = 1e-3


def frame_count(samples: int) -> int:
    """Frames of a clip; the first needs one sample more than a frame."""
    return max((samples + PAD - FRAME - 1) // HOP + 1, 0)


def transform() -> "array[float]":
    """[BINS, 2, FRAME]: cosine and sine for every bin, times the (periodic Hann) window."""
    turn = [math.cos(2 * math.pi * i / FFT) for i in range(FFT)]
    window = [0.5 - 0.5 * math.cos(2 * math.pi * i / FRAME) for i in range(FRAME)]
    rows = array("f")
    for k in range(BINS):
        rows.extend(w * turn[k * i % FFT] for i, w in enumerate(window))
        rows.extend(w * turn[(k * i - FFT // 4) % FFT] for i, w in enumerate(window))
    return rows


def edges() -> "array[float]":
    """[BANDS + 2]: the corners of the triangles in bins; triangle m has corners m, m + 1 and m + 2."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    hertz = (700 * (10 ** (top * m / (BANDS + 1) / 2595) - 1) for m in range(BANDS + 2))
    return array("f", (f * FFT / RATE for f in hertz))


@dataclass(frozen=True, slots=True)
class Mel:
    transform: Linear
    edges: Buffer


def load_mel(uploader: Uploader) -> Mel:
    buffer = uploader.upload(transform().tobytes(), "Fourier transform")
    part = MatrixPart(0, 2 * BINS, buffer, Span(buffer, 0, buffer.size), None)  # F32 needs no repacking
    matrix = Matrix("F32", 2 * BINS, FRAME, (part,))
    return Mel(Linear(matrix, Bounds(), None), uploader.upload(edges().tobytes(), "mel bands"))


def record_frames(
    tape: Tape, wave: Binding, samples: int, count: int, size: int, hop: int, pad: int, y: Buffer
) -> None:
    """`count` frames of `size` samples, `hop` apart, the first starting `pad` samples early: [count, size]."""
    params = {"samples": samples, "size": size, "hop": hop, "pad": pad}
    tape.run("frames", [-(-size // 64), count], {"wave": wave, "y": y}, params)


def record_mel(tape: Tape, mel: Mel, count: int, frames: Buffer, spectrum: Buffer, y: Buffer) -> None:
    """Frames [count, FRAME] to their spectrum [count, BINS, 2] to log bands [count, BANDS]."""
    linear(tape, mel.transform, count, frames, spectrum)
    bindings: dict[str, Binding] = {"spectrum": spectrum, "edges": mel.edges, "y": y}
    tape.run("mel", [count], bindings, {"bins": BINS, "bands": BANDS, "floor": FLOOR})
