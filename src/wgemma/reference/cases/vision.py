"""Cases of the vision kernels: pixels to patches, positions, heads and attention, pooling, and clipped linears."""

from collections.abc import Iterator

import numpy as np

from wgemma.files.gguf import Tensor
from wgemma.files.quants import BY_NAME
from wgemma.gpu.device import Binding, Buffer, Span
from wgemma.gpu.tape import Tape
from wgemma.model.forms import CROWDED
from wgemma.model.picture import needed, taps
from wgemma.model.planes import PLANES
from wgemma.model.rotary import rotary_tables
from wgemma.model.tower import Bounds, Linear, linear, linear_direct
from wgemma.model.vision_config import ROPE_BASE
from wgemma.model.vision_tower import attention_constants, direct_constants
from wgemma.model.weights import Matrix, MatrixPart, RowOrder, repack
from wgemma.reference import twins
from wgemma.reference import vision as oracle
from wgemma.reference.decoder import rms
from wgemma.reference.dequantize import dequantize
from wgemma.reference.lab import EPS, EXACT, F32, THREADS, UNTOUCHED, Case, Lab, Outcome, case, framed, untouched
from wgemma.reference.twins import Array

VECTORS = ("F32", "F16", "BF16")


def cases() -> Iterator[Case]:
    yield from _resize_cases()
    for side, across, down in ((4, 3, 2), (16, 5, 3), (48, 2, 3)):
        yield case(_patches, side == 16, side=side, across=across, down=down)
    for kind in VECTORS:
        yield case(_places, True, kind=kind, columns=96, across=5, down=4)
    yield case(_places, False, kind="F32", columns=2112, across=2, down=9)
    for rows, columns in ((1, 4), (3, 96), (5, 6912)):
        yield case(_layer_norm, rows == 3, rows=rows, columns=columns)
    for across, down, columns in ((3, 3, 32), (9, 6, 260), (6, 12, 1152)):
        yield case(_pool, across == 9, across=across, down=down, columns=columns)
    for head, heads, across, down in ((8, 1, 1, 1), (64, 3, 5, 4), (72, 7, 3, 2), (128, 16, 2, 3), (64, 2, 300, 1)):
        yield case(_vision_heads, head in (64, 72), head=head, heads=heads, across=across, down=down)
    yield from _attention_cases()
    yield from _linear_cases()


# -- pixels


def _resize_cases() -> Iterator[Case]:
    table = [(True, 7, 20), (True, 50, 13), (False, 1, 48), (False, 33, 33), (False, 500, 3), (False, 3, 500)]
    for quick, before, size in table:
        for vertical in (False, True):
            yield case(_resize, quick, before=before, size=size, lines=70, vertical=vertical)
    yield case(_resize, True, before=90, size=30, lines=5, vertical=True, rows=(11, 23))


def _resize(
    lab: Lab, before: int, size: int, lines: int, vertical: bool, rows: tuple[int, int] | None = None
) -> Outcome:
    """`rows`: only these rows of the result, from just the pixels they need."""
    image = lab.rng.integers(0, 256, (before, lines, 4), dtype=np.uint8)
    image[::3, :, 3] = 255
    image[1::7, :, 3] = 0
    begin, end = rows or (0, size)
    first, last = needed(before, size, begin, end)
    given = image[first:last] if vertical else image.swapaxes(0, 1)
    y = lab.out(size * lines)
    found = taps(before, size)
    params = {"size": size, "longest": found.longest, "bits": found.bits}
    params |= {"first": first, "there": last - first, "lines": lines}
    params |= {"begin": begin, "count": end - begin} if vertical else {}
    columns, down = (lines, end - begin) if vertical else (size, lines)
    # fewer rows of workgroups than rows of pixels, so that each loops
    grid = [-(-columns // 64), -(-down // 2)]
    bindings = {"x": lab.put(given, "u1"), "taps": lab.put(np.frombuffer(found.table, np.int32), "i4"), "y": y}
    lab.run("resize", grid, bindings, params, {"VERTICAL": vertical})
    right = untouched(size, lines, 3)
    right[begin:end] = oracle.resample(oracle.white(image), size)[begin:end]
    expected = [framed(channel) for channel in np.moveaxis(right if vertical else right.swapaxes(0, 1), 2, 0)]
    return Outcome(_channels(lab.read(y, "<u4")), tuple(expected), EXACT)


def _channels(words: Array) -> tuple[Array, ...]:
    """Red, green and blue of the words written, which must be opaque; others are untouched."""
    bits = np.where(words == UNTOUCHED, 0, words).astype(np.int64)
    whole = np.where((words != UNTOUCHED) & (bits >> 24 != 255), np.inf, 0.0)
    return tuple(np.where(words == UNTOUCHED, UNTOUCHED, (bits >> shift & 255) + whole) for shift in (0, 8, 16))


def _patches(lab: Lab, side: int, across: int, down: int) -> Outcome:
    image = lab.rng.integers(0, 256, (down * side, across * side, 4), dtype=np.uint8)
    count, columns = across * down, 3 * side * side
    y = lab.out(count * columns)
    grid = [-(-columns // 256), count]
    params = {"side": side, "across": across, "scale": 2.0, "shift": -1.0}
    lab.run("patches", grid, {"x": lab.put(image, "u1"), "y": y}, params)
    return Outcome((lab.read(y),), (framed(2 * oracle.patches(image[..., :3], side) - 1),), F32)


# -- positions, norms and pooling


def _places(lab: Lab, kind: str, columns: int, across: int, down: int) -> Outcome:
    """More positions than the image needs, in both directions."""
    places = max(across, down) + 2
    matrix, table = lab.weights(kind, 2 * places, columns)
    x, y = lab.normal(across * down, columns), lab.out(across * down * columns)
    bindings = {**matrix.parts[0].bindings(), "x": lab.put(x), "y": y}
    grid = [-(-matrix.blocks // 64), across * down]
    params = {"blocks": matrix.blocks, "across": across, "places": places}
    lab.run("places", grid, bindings, params, {"TYPE": matrix.planes.reader})
    at = np.arange(across * down)
    expected = twins.wide(x) + twins.wide(table)[at % across] + twins.wide(table)[places + at // across]
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _layer_norm(lab: Lab, rows: int, columns: int) -> Outcome:
    """Numbers far from zero, like bright pixels."""
    eps, x, norms = 1e-5, 3 + lab.normal(rows, columns), lab.norms(2, columns)
    y = lab.out(x.size)
    bindings = {"x": lab.put(x), "norms": lab.put(norms), "y": y}
    lab.run("layer_norm", [rows], bindings, {"quads": columns // 4, "eps": eps}, {"THREADS": THREADS})
    weight, bias = twins.wide(norms)
    return Outcome((lab.read(y),), (framed(oracle.layer_norm(twins.wide(x), weight, bias, eps)),), F32)


def _pool(lab: Lab, across: int, down: int, columns: int) -> Outcome:
    x, adjust = lab.normal(across * down, columns), lab.norms(2, columns)
    tokens = across * down // 9
    y = lab.out(tokens * columns)
    bindings = {"x": lab.put(x), "adjust": lab.put(adjust), "y": y}
    params = {"quads": columns // 4, "across": across, "factor": float(np.sqrt(columns))}
    lab.run("pool", [-(-columns // 256), tokens], bindings, params)
    bias, scale = twins.wide(adjust)
    return Outcome((lab.read(y),), (framed((oracle.pool(x, across, down) - bias) * scale),), F32)


# -- heads


def _in_place(lab: Lab, values: Array) -> Buffer:
    """An input that is overwritten by the result, followed by poison."""
    buffer = lab.out(values.size)
    lab.device.write(buffer, 0, values.astype("<f4").tobytes())
    return buffer


def _vision_heads(lab: Lab, head: int, heads: int, across: int, down: int) -> Outcome:
    count = across * down
    raw, norms = lab.normal(3, count, heads, head, scale=2.0), lab.norms(2, head)
    turns = rotary_tables(ROPE_BASE, head // 2, head // 4, None, max(across, down))
    angles = oracle.grid_angles(across, down, head)
    q, k, v = twins.wide(raw)
    turned = [oracle.turn(twins.wide(n) * rms(x, EPS), angles) for n, x in zip(norms, (q, k), strict=True)]
    buffers = [_in_place(lab, x) for x in raw]
    bindings: dict[str, Binding] = {"norms": lab.put(norms), "turns": lab.put(np.frombuffer(turns, dtype="<f4"))}
    bindings |= zip("qkv", buffers, strict=True)
    lab.run("vision_heads", [count], bindings, {"heads": heads, "across": across, "eps": EPS}, {"PAIRS": head // 4})
    expected = tuple(framed(x) for x in (*turned, rms(v, EPS)))
    return Outcome(tuple(lab.read(buffer) for buffer in buffers), expected, F32)


def _attention_cases() -> Iterator[Case]:
    for count, heads, head in ((1, 1, 8), (33, 2, 64), (65, 3, 72), (130, 2, 128), (64, 2, 88), (32, 1, 120)):
        yield case(_vision_attention, head in (64, 72), count=count, heads=heads, head=head)
    # Scores that rise from tile to tile, so that earlier sums shrink to nothing.
    yield case(_vision_attention, True, count=100, heads=1, head=64, rising=True)
    for count, heads, head in ((1, 1, 8), (65, 3, 72)):
        yield case(_vision_attention, head == 72, "vision_direct", count=count, heads=heads, head=head, direct=True)
    yield case(_vision_attention, False, "vision_direct", count=100, heads=1, head=64, rising=True, direct=True)


def _vision_attention(
    lab: Lab, count: int, heads: int, head: int, rising: bool = False, direct: bool = False
) -> Outcome:
    q, k, v = (lab.normal(count, heads, head) for _ in range(3))
    if rising:
        k *= np.linspace(0, 6, count, dtype=np.float32)[:, None, None]
    out = _in_place(lab, q)
    bindings = {"q": out, "k": lab.put(k), "v": lab.put(v)}
    params, kernel, at_once = {"patches": count, "heads": heads}, "vision_attention", 64
    constants = attention_constants(lab.device, head)
    if direct:
        constants = direct_constants(lab.device, head)
        kernel, at_once = "vision_direct", constants["THREADS"]
    lab.run(kernel, [-(-count // at_once), heads], bindings, params, constants)
    expected = oracle.everybody(twins.wide(q), twins.wide(k), twins.wide(v))
    return Outcome((lab.read(out),), (framed(expected),), F32)


# -- linears


def _linear_cases() -> Iterator[Case]:
    for kind in VECTORS:
        yield case(_ragged, True, "repack", kind=kind, rows=5, columns=44)
        yield case(_clipped, True, "tile", kind=kind, rows=33, n=70, columns=44)
    yield case(_clipped, True, "tile", kind="BF16", rows=CROWDED + 5, n=70, columns=44)
    for rows, n, columns in ((1, 1, 4), (64, 64, 32), (65, 130, 96), (9, 65, 268)):
        for bias in (False, True):
            yield case(_clipped, rows in (9, 65), "tile", kind="F16", rows=rows, n=n, columns=columns, bias=bias)
            options = {"bias": bias, "direct": True}
            yield case(_clipped, rows == 9, "direct", kind="F16", rows=rows, n=n, columns=columns, **options)


def _matrix(lab: Lab, kind: str, rows: int, columns: int) -> tuple[Matrix, Array]:
    """A matrix whose rows may end within a block of 32, and its values."""
    raw, planes, padded = lab.raw(kind, rows, columns), PLANES[kind], -(-columns // 32) * 32
    size = planes.code_bytes(rows, padded)
    buffer = lab.out(size // 4)
    part = MatrixPart(0, rows, buffer, Span(buffer, 0, size), None)
    tape = Tape(lab.device, "repack")
    tensor = Tensor("sweep", (columns, rows), kind, 0, BY_NAME[kind].row_nbytes(columns) * rows)
    repack(tape, tensor, RowOrder(), part, lab.put(raw, "u1"), 0, rows)
    tape.program().replay()
    tape.free()
    return Matrix(kind, rows, columns, (part,)), dequantize(raw, kind, (rows, columns))


def _ragged(lab: Lab, kind: str, rows: int, columns: int) -> Outcome:
    """Only zeros follow the last weight of a row, to the end of its block."""
    matrix, w = _matrix(lab, kind, rows, columns)
    padded = Matrix(kind, rows, matrix.blocks * 32, matrix.parts)
    expected = np.zeros((rows, padded.columns))
    expected[:, :columns] = w
    return Outcome((lab.values(padded),), (framed(expected),), EXACT)


def _clipped(lab: Lab, kind: str, rows: int, n: int, columns: int, bias: bool = False, direct: bool = False) -> Outcome:
    """Bounds that take effect on both sides, before and after."""
    matrix, w = _matrix(lab, kind, n, columns)
    bounds = Bounds(-0.8, 1.1, -0.2, 0.15)
    added, x, stride = lab.normal(n, scale=0.1), lab.normal(rows, columns), n + 5
    y = lab.out(rows * stride)
    tape = Tape(lab.device, "linear")
    record = linear_direct if direct else linear
    record(tape, Linear(matrix, bounds, lab.put(added) if bias else None), rows, lab.put(x), y, stride, 3)
    tape.program().replay()
    tape.free()
    product = twins.linear(w, np.clip(x, bounds.input_min, bounds.input_max)) + (added if bias else 0)
    expected = untouched(rows, stride)
    expected[:, 3 : 3 + n] = np.clip(product, bounds.output_min, bounds.output_max)
    return Outcome((lab.read(y),), (framed(expected),), F32)
