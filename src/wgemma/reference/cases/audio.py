"""Cases of the audio kernels: resample, frames, mel, subsample, rms, silu, local_attention, light_conv."""

import math
from collections.abc import Iterator

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.conformer import CAP, KEYS, halved, places
from wgemma.model.mel import BANDS, BINS, FLOOR, edges
from wgemma.model.resample import FINENESS, ZEROS, sinc_table
from wgemma.reference import audio
from wgemma.reference.decoder import rms
from wgemma.reference.lab import EPS, F32, THREADS, Case, Lab, Outcome, case, framed
from wgemma.reference.twins import wide

EXTREMES = ("zeros", "huge", "nan")


def cases() -> Iterator[Case]:
    yield from _wave_cases()
    yield from _subsample_cases()
    yield from _row_cases()
    yield from _attention_cases()


# -- the waveform


def _wave_cases() -> Iterator[Case]:
    for rate, channels, first in ((8000, 2, 0), (44_100, 1, 700), (48_000, 3, 0), (11_025, 1, 333), (16_000, 2, 5)):
        yield case(_resample, rate in (8000, 48_000), rate=rate, channels=channels, first=first)
    for samples, size, hop, pad in ((161, 320, 160, 160), (700, 320, 160, 160), (700, 640, 640, 0), (33, 7, 3, 20)):
        yield case(_frames, samples == 700, samples=samples, size=size, hop=hop, pad=pad)
    for frames in (1, 5):
        yield case(_mel, frames == 5, frames=frames)
    for extreme in ("zeros", "huge"):
        yield case(_mel, False, frames=2, extreme=extreme)


def _resample(lab: Lab, rate: int, channels: int, first: int, frames: int = 300) -> Outcome:
    """A piece of the result from sample `first` on; the kernel treats everything beyond the frames as silence."""
    common = math.gcd(rate, 16_000)
    step, parts = rate // common, 16_000 // common
    ratio = min(parts / step, 1.0)
    reach = math.ceil(ZEROS / ratio)
    begin = max(first * step // parts - reach, 0)
    start, count = first * step - begin * parts, min(70, frames * parts // step)
    x, y = lab.normal(frames, channels), lab.out(count)
    bindings: dict[str, Binding] = {"x": lab.put(x), "table": lab.put(np.frombuffer(sinc_table(), "<f4")), "y": y}
    params = {
        "count": count,
        "frames": frames,
        "channels": channels,
        "start": start,
        "step": step,
        "parts": parts,
        "reach": reach,
        "zeros": ZEROS,
        "fineness": FINENESS,
        "ratio": ratio,
    }
    lab.run("resample", [-(-count // 64)], bindings, params)
    expected = audio.interpolated(wide(x).mean(axis=1), start + np.arange(count) * step, parts, ratio)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _frames(lab: Lab, samples: int, size: int, hop: int, pad: int) -> Outcome:
    """One more frame than the sound fills."""
    count = (samples + pad) // hop + 1
    wave, y = lab.normal(samples), lab.out(count * size)
    params = {"samples": samples, "size": size, "hop": hop, "pad": pad}
    lab.run("frames", [-(-size // 64), count], {"wave": lab.put(wave), "y": y}, params)
    return Outcome((lab.read(y),), (framed(audio.frames(wide(wave), count, size, hop, pad)),), F32)


def _mel(lab: Lab, frames: int, extreme: str = "") -> Outcome:
    spectrum, y = lab.activations(frames, BINS, 2, extreme=extreme), lab.out(frames * BANDS)
    bindings: dict[str, Binding] = {"spectrum": lab.put(spectrum), "edges": lab.put(np.array(edges())), "y": y}
    lab.run("mel", [frames], bindings, {"bins": BINS, "bands": BANDS, "floor": FLOOR})
    return Outcome((lab.read(y),), (framed(audio.bands(spectrum)),), F32)


# -- the first convolutions


def _subsample_cases() -> Iterator[Case]:
    for rows, columns, channels, out in (
        (1, 1, 1, 4),
        (7, 128, 1, 128),
        (4, 64, 128, 32),
        (5, 9, 3, 100),
        (3, 70, 4, 256),
    ):
        yield case(_subsample, rows in (5, 7), rows=rows, columns=columns, channels=channels, out=out)
    for extreme in ("zeros", "huge"):
        yield case(_subsample, False, rows=3, columns=8, channels=4, out=32, extreme=extreme)


def _subsample(lab: Lab, rows: int, columns: int, channels: int, out: int, extreme: str = "") -> Outcome:
    x, w = lab.activations(rows, columns, channels, extreme=extreme), lab.normal(out, channels, 3, 3)
    norm, y = lab.norms(out), lab.out(halved(rows) * halved(columns) * out)
    turned = w.transpose(2, 3, 1, 0)
    bindings: dict[str, Binding] = {"x": lab.put(x), "w": lab.put(turned), "norm": lab.put(norm), "y": y}
    params = {
        "rows": rows,
        "columns": columns,
        "channels": channels,
        "out_columns": halved(columns),
        "out_channels": out,
        "eps": EPS,
    }
    together = places(out)
    lab.run("subsample", [-(-halved(columns) // together), halved(rows)], bindings, params, {"PLACES": together})
    return Outcome((lab.read(y),), (framed(audio.subsample(wide(x), wide(w), wide(norm))),), F32)


# -- row by row


def _row_cases() -> Iterator[Case]:
    for rows, columns, add in ((1, 4, False), (9, 96, True), (33, 640, False), (5, 1536, True), (2, 2112, False)):
        yield case(_rms, rows in (9, 33), rows=rows, columns=columns, add=add)
    for extreme in EXTREMES:
        yield case(_rms, extreme == "nan", rows=3, columns=96, add=True, extreme=extreme)
    for count in (1, 256, 1000):
        yield case(_silu, count == 1000, count=count)
    for extreme in EXTREMES:
        yield case(_silu, False, count=300, extreme=extreme)
    for rows, columns, taps in ((1, 32, 5), (9, 96, 5), (6, 1056, 4), (3, 64, 1)):
        yield case(_light_conv, rows in (6, 9), rows=rows, columns=columns, taps=taps)
    for extreme in ("zeros", "huge"):
        yield case(_light_conv, False, rows=7, columns=64, taps=5, extreme=extreme)


def _rms(lab: Lab, rows: int, columns: int, add: bool, extreme: str = "") -> Outcome:
    h, o = (lab.activations(rows, columns, extreme=extreme) for _ in range(2))
    norm, h_out, x = lab.norms(columns), lab.out(rows * columns), lab.out(rows * columns)
    bindings = {"h": lab.put(h), "o": lab.put(o), "norm": lab.put(norm), "h_out": h_out, "x": x}
    lab.run("rms", [rows], bindings, {"quads": columns // 4, "eps": EPS}, {"THREADS": THREADS, "ADD": add})
    v = wide(h) + wide(o) if add else wide(h)
    expected = framed(wide(norm) * rms(v, EPS))
    return (
        Outcome((lab.read(x), lab.read(h_out)), (expected, framed(v)), F32)
        if add
        else Outcome((lab.read(x),), (expected,), F32)
    )


def _silu(lab: Lab, count: int, extreme: str = "") -> Outcome:
    x = lab.activations(1, count, extreme=extreme)
    y = lab.out(count)
    lab.device.write(y, 0, x.tobytes())
    lab.run("silu", [-(-count // 256)], {"x": y}, {"count": count})
    return Outcome((lab.read(y),), (framed(audio.silu(wide(x))),), F32)


def _light_conv(lab: Lab, rows: int, columns: int, taps: int, extreme: str = "") -> Outcome:
    u, w, norm = lab.activations(rows, 2 * columns, extreme=extreme), lab.normal(columns, taps), lab.norms(columns)
    y = lab.out(rows * columns)
    bindings: dict[str, Binding] = {"u": lab.put(u), "w": lab.put(w), "norm": lab.put(norm), "y": y}
    lab.run("light_conv", [rows], bindings, {"n": columns, "taps": taps, "eps": EPS}, {"THREADS": THREADS})
    return Outcome((lab.read(y),), (framed(audio.light_conv(wide(u), wide(w), wide(norm))),), F32)


# -- attention


def _attention_cases() -> Iterator[Case]:
    for rows, heads, head in ((1, 1, 32), (14, 2, 64), (30, 3, 128), (13, 1, 200)):
        yield case(_local_attention, rows in (14, 30), rows=rows, heads=heads, head=head)
    for extreme in EXTREMES:
        yield case(_local_attention, extreme == "nan", rows=5, heads=2, head=32, extreme=extreme)


def _local_attention(lab: Lab, rows: int, heads: int, head: int, extreme: str = "") -> Outcome:
    """Scores large enough for the cap to matter, but too small for one key to dominate."""
    qkv = lab.activations(rows, 3, heads, head, extreme=extreme)
    scales, relative = 0.5 * lab.norms(2, head), lab.normal(KEYS, heads, head)
    out = lab.out(rows * heads * head)
    bindings = {"qkv": lab.put(qkv), "scales": lab.put(scales), "relative": lab.put(relative), "out": out}
    params = {"head": head, "width": heads * head, "cap": CAP}
    lab.run("local_attention", [heads, rows], bindings, params, {"KEYS": KEYS})
    expected = audio.local_attention(wide(qkv), wide(scales), wide(relative))
    return Outcome((lab.read(out),), (framed(expected),), F32)
