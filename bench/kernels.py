"""How close each kernel comes to the adapter's limits: `python bench/kernels.py [--only tile] [--json FILE]`.

For every kernel, form and shape: its time, the bytes it must move and the operations it must do, and their share of the
adapter's peak bandwidth and arithmetic, both measured first. Shapes are those of E2B, E4B, 26B-A4B and 31B in Q4_K_M;
weights are random. A kernel that reads weights once cycles through copies of them, so that no cache holds them.

`--types` compares the weight types instead: for each, the speed of one row, of a few and of many relative to Q4_K's.

`--keep bench/results` records each kernel's best time on this adapter, with the date (stopwatch.py describes the
timing).
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from names import slug
from numpy.typing import NDArray
from stopwatch import LONGEST, Stopwatch

from wgemma.cli.bench import stream_bandwidth
from wgemma.gpu.device import Binding, Buffer, Dispatch, Span
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import NEVER
from wgemma.model.attention import SPLITS, few_shape, heads_together, keys_at_a_time, many_form, slices
from wgemma.model.attention_tile import QUERIES, split_of
from wgemma.model.attention_tile import tile_shape as attention_shape
from wgemma.model.forms import FEW, MIDDLE, THREADS, tile_shape
from wgemma.model.matmul import AT_ONCE, Choices, Groups, Matmuls, Precision, Result
from wgemma.model.planes import PLANES
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import pages_of
from wgemma.model.weights import Matrix, MatrixPart
from wgemma.reference.lab import Lab
from wgemma.sync import run

COLD = 256 << 20  # bytes of copies, more than any cache holds
SEED = 64  # rows of random weights; a matrix repeats them
EPS = 1e-6

# (model, what, type, K, N): the matrices of a token in each model, without duplicates.
MATRICES = [
    ("E2B", "q", "Q4_K", 1536, 2048),
    ("E2B", "k", "Q4_K", 1536, 256),
    ("E2B", "gate/up", "Q4_K", 1536, 24576),
    ("E2B", "down", "Q6_K", 12288, 1536),
    ("E2B", "head", "Q6_K", 1536, 262144),
    ("E4B", "gate/up", "Q4_K", 2560, 20480),
    ("E4B", "down", "Q4_K", 10240, 2560),
    ("26B", "q", "Q4_K", 2816, 4096),
    ("26B", "down", "Q8_0", 2112, 2816),
    ("31B", "gate/up", "Q4_K", 5376, 43008),
    ("31B", "down", "Q6_K", 21504, 5376),
]
TILED = [("E2B", "q"), ("E2B", "k"), ("E2B", "gate/up"), ("E2B", "down"), ("26B", "down"), ("31B", "down")]
EXPERTS = (128, 8, 704)  # of 26B-A4B: how many, how many are used, how wide
HEADS = [  # (model, kind, heads, kv heads, head size, window)
    ("E2B", "sliding", 8, 1, 256, 512),
    ("E2B", "full", 8, 1, 512, 0),
    ("31B", "full", 32, 4, 512, 0),
]
MANY_HEADS = [*HEADS, ("31B", "sliding", 32, 16, 256, 1024)]
DEPTHS = (512, 4096, 16384)
CROWDS = (("gate/up", "Q4_K"), ("down", "Q8_0"))  # of 26B-A4B's experts
RANK = 16
TYPED = [("E2B", "gate/up"), ("31B", "gate/up")]  # matrices for --types
PRECISIONS: tuple[Precision, ...] = ("exact", "fast")


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel in one form on one shape."""

    kernel: str
    form: str
    shape: str
    microseconds: float
    megabytes: float
    gigaflop: float
    gb_per_s: float
    tflop_per_s: float
    of_stream: float
    of_arithmetic: float
    of_q4_k: float | None = None  # the speed of the same product in Q4_K


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help="kernels whose name begins so: tile, tile_back, matvec, low, …")
    parser.add_argument(
        "--types",
        nargs="?",
        const=",".join(PLANES),
        metavar="TYPE,…",
        help="compare these weight types, or all, to Q4_K",
    )
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that everything runs")
    parser.add_argument("--rows", type=int, default=512, help="of tile and tile_back (default: 512)")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="remember there the best time of each")
    options = parser.parse_args()
    device = NativeDevice()
    bench = Bench(device, quick=options.quick, rows=options.rows, repeat=2 if options.quick else options.repeat)
    print(f"{device.info.name}: {bench.stream / 1e9:.1f} GB/s, {bench.watch.arithmetic / 1e12:.2f} TFLOP/s")
    print(
        f"{'kernel':14} {'form':18} {'shape':40} {'µs':>10} {'MB':>8} {'GB/s':>7} {'':>4} {'GFLOP':>8} {'TFLOP/s':>7}"
        + (f" {'':>4} {'of Q4_K':>7}" if options.types else "")
    )
    figures = []
    for figure in bench.types(options.types.split(",")) if options.types else bench.all(options.only or ""):
        figures.append(figure)
        moved = f"{figure.megabytes:8.2f} {figure.gb_per_s:7.1f} {figure.of_stream:4.0%}"
        done = f"{figure.gigaflop:8.3f} {figure.tflop_per_s:7.3f} {figure.of_arithmetic:4.0%}"
        done += "" if figure.of_q4_k is None else f" {figure.of_q4_k:7.0%}"
        print(
            f"{figure.kernel:14} {figure.form:18} {figure.shape:40} {figure.microseconds:10.1f} {moved} {done}",
            flush=True,
        )
        if options.keep:  # immediately, since all of them take minutes
            keep(figure, device.info.name, options.keep)
    if options.json:
        limits = {"stream": bench.stream, "arithmetic": bench.watch.arithmetic}
        told: dict[str, Any] = {"adapter": device.info.name, "driver": device.info.driver, "limits": limits}
        told["kernels"] = [asdict(figure) for figure in figures]
        options.json.write_text(json.dumps(told, indent=1, ensure_ascii=False))
    device.close()


class Bench:
    """One device, its limits, and the kernels measured against them."""

    def __init__(self, device: NativeDevice, *, quick: bool, rows: int, repeat: int) -> None:
        self.device, self.quick = device, quick
        self.rows = min(rows, 64) if quick else rows
        self.watch = Stopwatch(device, repeat, longest=1 if quick else LONGEST)
        self.stream = stream_bandwidth(device)

    def all(self, only: str) -> Iterator[Figure]:
        kernels: dict[str, Callable[[], Iterator[Figure]]] = {
            "matvec": self.matvec,
            "experts_matvec": self.experts_matvec,
            "tile": self.tile,
            "tile_bytes": self.tile_bytes,
            "tile_back": self.tile_back,
            "attention": self.attention,
            "attention_tile": self.attention_tile,
            "low": self.low,
        }
        for name, make in kernels.items():
            if name.startswith(only) or (only.startswith(name) and only not in kernels):
                yield from (figure for figure in make() if figure.kernel.startswith(only))

    # -- products

    def types(self, kinds: Sequence[str]) -> Iterator[Figure]:
        """One row, some, and many, of every type, recorded as the decoder does."""
        for model, what, _, columns, count in MATRICES:
            if (model, what) not in TYPED[:1] + ([] if self.quick else TYPED[1:]):
                continue
            columns, count = (256, 128) if self.quick else (columns, count)
            for rows, precision in product((1, 16, self.rows), PRECISIONS):
                best = self._typed("Q4_K", model, what, columns, count, rows, precision)
                yield replace(best, of_q4_k=1.0)
                for kind in (kind for kind in kinds if kind != "Q4_K"):
                    figure = self._typed(kind, model, what, columns, count, rows, precision)
                    yield replace(figure, of_q4_k=best.microseconds / figure.microseconds)

    def _typed(
        self, kind: str, model: str, what: str, columns: int, count: int, rows: int, precision: Precision
    ) -> Figure:
        with Lab(self.device, 1) as lab:
            copies = self._copies(lab, kind, columns, count) if rows == 1 else [self._matrix(lab, kind, columns, count)]
            n = copies[0].rows
            x, y, room = self._numbers(lab, rows * columns), lab.out(rows * n), lab.out(rows * columns // 32 * 20)
            result = Result(y, bytes=room if rows <= MIDDLE[1] else None, rounded=room if rows > MIDDLE[1] else None)
            matmuls, tape = Matmuls(self.device, EPS, precision), Tape(self.device, "bench")
            for matrix in copies:
                matmuls.linear(tape, matrix, rows, x, result)
            (kernel,) = {d.kernel.name for d in tape.commands if isinstance(d, Dispatch)} - {"to_bytes"}
            size = nbytes(copies[0]) + 4 * rows * (columns + n)
            shape = f"{model} {what} {columns}→{n} {rows} rows"
            return self._figure(kernel, f"{kind} {precision}", shape, tape, size, 2 * rows * columns * n)

    def matvec(self) -> Iterator[Figure]:
        """One row and eight, with every matrix, exact and fast."""
        for model, what, kind, columns, count in self._matrices():
            for rows in (1, FEW):
                if rows > 1 and (model, what) not in TILED:
                    continue
                with Lab(self.device, 1) as lab:
                    copies = self._copies(lab, kind, columns, count)
                    x, y = self._numbers(lab, rows * columns), lab.out(rows * copies[0].rows)
                    shape = f"{model} {what} {columns}→{copies[0].rows} {rows} rows"
                    size = nbytes(copies[0]) + 4 * rows * (columns + copies[0].rows)
                    for precision in PRECISIONS:
                        matmuls, tape = Matmuls(self.device, EPS, precision), Tape(self.device, "bench")
                        for matrix in copies:
                            matmuls.linear(tape, matrix, rows, x, Result(y))
                        done = 2 * rows * columns * copies[0].rows
                        yield self._figure("matvec", f"{kind} {precision}", shape, tape, size, done)

    def experts_matvec(self) -> Iterator[Figure]:
        """One row with experts of 26B-A4B."""
        yield from map(self._experts, PRECISIONS)

    def _experts(self, precision: Precision) -> Figure:
        there, used, wide = (8, 2, 64) if self.quick else EXPERTS
        columns = 256 if self.quick else 2816
        with Lab(self.device, 1) as lab:
            matrix = self._matrix(lab, "Q4_K", columns, there * 2 * wide, unit=2 * wide)
            there = matrix.rows // (2 * wide)
            choices = Choices(1, used, there, lab.put(np.arange(used) * (there // used), "<u4"))
            x, y = self._numbers(lab, columns), lab.out(used * wide)
            tape = Tape(self.device, "bench")
            Matmuls(self.device, EPS, precision).experts(tape, matrix, choices, x, y, geglu=True)
            count = used * 2 * wide
            size = nbytes(matrix) * used // there + 4 * columns
            shape = f"26B experts {columns}→{used}×{2 * wide}"
            return self._figure("experts_matvec", f"Q4_K {precision}", shape, tape, size, 2 * columns * count)

    def tile(self) -> Iterator[Figure]:
        yield from self._tiles("tile")
        for what, kind in CROWDS:
            yield self._crowd("tile", what, kind, "alone", None)
            for form, constants in self._forms(self.rows):
                yield self._crowd("tile", what, kind, form, constants)

    def _crowd(self, kernel: str, what: str, kind: str, form: str, constants: dict[str, Any] | None) -> Figure:
        """Rows spread evenly over 26B-A4B's experts, each by itself or grouped. Counts only the operations needed, not
        the padding of tiles."""
        there, used, wide = (8, 2, 64) if self.quick else EXPERTS
        width = 256 if self.quick else 2816
        columns, each = (width, 2 * wide) if what == "gate/up" else (wide, width)
        with Lab(self.device, 1) as lab:
            matrix = self._matrix(lab, kind, columns, there * each, unit=each)
            grid = (self.rows, used, matrix.rows // each)
            pairs = self.rows * used
            chosen = lab.put(np.stack([lab.rng.permutation(grid[2])[:used] for _ in range(self.rows)]), "<u4")
            x = self._numbers(lab, (self.rows if what == "gate/up" else pairs) * columns)
            y, weights = lab.out(pairs * each), None if what == "gate/up" else self._numbers(lab, pairs)
            matmuls = Matmuls(self.device, EPS, "fast" if kernel == "tile_bytes" else "exact")
            tape, groups = Tape(self.device, "bench"), None
            if constants:
                tall, rounded = constants["ROWS"], lab.out(x.size // 4 * 12 // 32)
                groups = Groups(lab.out(pairs), lab.out(4 * Groups.count(*grid, tall)), rounded, tall)
                bound: dict[str, Binding] = {"chosen": chosen, "order": groups.order, "tiles": groups.tiles}
                params = {"pairs": pairs, "tall": tall}
                tape.run("group", [grid[2]], bound, params, {"THREADS": THREADS})  # however few there are
            matmuls.experts(tape, matrix, Choices(*grid, chosen, groups), x, y, weights=weights)
            shape = f"26B experts {what} {columns}→{each} {self.rows} rows"
            size = nbytes(matrix) + x.size + 4 * pairs * each
            return self._figure(kernel, f"{kind} {form}", shape, tape, size, 2 * pairs * columns * each)

    def tile_bytes(self) -> Iterator[Figure]:
        """Without rounding the input, except for experts."""
        yield from self._tiles("tile_bytes")
        for what, kind in CROWDS:
            for form, constants in self._forms(self.rows):
                yield self._crowd("tile_bytes", what, kind, form, constants)

    def tile_back(self) -> Iterator[Figure]:
        yield from self._tiles("tile_back")

    def _tiles(self, kernel: str) -> Iterator[Figure]:
        """Every tile height."""
        for model, what, kind, columns, count in self._matrices():
            if (model, what) not in TILED:
                continue
            with Lab(self.device, 1) as lab:
                matrix = self._matrix(lab, kind, columns, count)
                if kernel == "tile_bytes" and not matrix.planes.quick:
                    continue
                for rows in (self.rows,) if self.quick else sorted({32, self.rows}):
                    x, y = self._numbers(lab, rows * columns), self._numbers(lab, rows * matrix.rows)
                    size = nbytes(matrix) + 4 * rows * (columns + matrix.rows)
                    shape = f"{model} {what} {columns}→{matrix.rows} {rows} rows"
                    for form, constants in self._forms(rows):
                        tape = Tape(self.device, "bench")
                        constants["TYPE"] = matrix.planes.reader
                        self._tile(tape, kernel, matrix, rows, x, y, constants)
                        yield self._figure(
                            kernel, f"{kind} {form}", shape, tape, size, 2 * rows * columns * matrix.rows
                        )

    def _tile(
        self, tape: Tape, kernel: str, matrix: Matrix, rows: int, x: Buffer, y: Buffer, constants: dict[str, Any]
    ) -> None:
        (part,), high = matrix.parts, -(-rows // constants["ROWS"])
        params = {"blocks": matrix.blocks, "n": matrix.rows, "rows": rows}
        params |= (
            {"stride": matrix.rows, "offset": 0, "add": False}
            if kernel == "tile_back"
            else {"y_stride": matrix.rows, "y_offset": 0}
        )
        if kernel == "tile":
            tape.run(kernel, [-(-matrix.rows // 64), high], {**part.bindings(), "x": x, "y": y}, params, constants)
        elif kernel == "tile_bytes":
            bound: dict[str, Binding] = {**part.bindings(), "bytes": x, "y": y}
            tape.run(kernel, [-(-matrix.rows // 64), high], bound, params, constants | {"QUICK": True})
        else:
            bindings: dict[str, Binding] = {**part.bindings(), "dy": y, "dx": x}
            tape.run(kernel, [-(-matrix.blocks // 2), high], bindings, params, constants)

    def _forms(self, rows: int) -> Iterator[tuple[str, dict[str, Any]]]:
        for tall in (32, 64, 128):
            if (tall == 32 or rows > 32) and (tall + 64) * 128 <= self.device.limits.workgroup_memory:
                yield str(tall), tile_shape(tall)

    # -- attention

    def attention(self) -> Iterator[Figure]:
        """One row at every depth, with heads separate and together, and its history in one piece and in several; and a
        chunk of rows after it. The KV cache is f16."""
        for model, kind, *shape in HEADS:
            heads, kv_heads, head, window = shape
            for depth in DEPTHS[:1] if self.quick else DEPTHS:
                what = f"{model} {kind} depth {depth}"
                for together in sorted({1, heads_together(self.device, head, heads // kv_heads)}):
                    form = few_shape(head, together, self.device.subgroup_size, f16=True)
                    pieces = -(-min(depth, window or depth) // keys_at_a_time(form))
                    for splits in sorted({1, min(pieces, SPLITS // 2), min(pieces, SPLITS)}):
                        with Lab(self.device, 1) as lab:
                            yield self._look(lab, what, 1, depth, shape, splits, form)
                with Lab(self.device, 1) as lab:
                    yield self._look(lab, what, self.rows, depth, shape, 1, many_form(self.device, f16=True))

    def _look(
        self, lab: Lab, what: str, rows: int, depth: int, shape: Sequence[int], splits: int, form: dict[str, Any]
    ) -> Figure:
        heads, kv_heads, head, window = shape
        pairs = 64 if head == 512 else head // 2
        table = np.frombuffer(rotary_tables(10_000.0, head, pairs, None, depth + rows), dtype="<f4")
        places = depth + rows
        keys, values = (self._numbers(lab, places * kv_heads * head, "<f2") for _ in range(2))
        positions = np.arange(depth, depth + rows)
        bindings: dict[str, Binding] = {
            "rows": self._rows(lab, positions),
            "q_raw": self._numbers(lab, rows * heads * head),
            "norm": lab.put(lab.norms(head)),
            "turns": lab.put(table),
            "partial": lab.out(rows * heads * splits * (head + 2)),
            "out": lab.out(rows * heads * head),
            "keys": keys,
            "values": values,
        }
        constants = {"HEAD": head, "PAIRS": pairs, "WORD": "vec4<u32>", "PER_WORD": 8, "F16_CACHE": True}
        together = form.get("HEADS", 0)
        params = {"heads": heads, "kv_heads": kv_heads, "stride": heads * head, "window": window, "eps": EPS}
        params |= {"table": rows, "table_step": 0, "first": 0, "count": places}
        params |= {"splits": splits, "resumes": False, "final_segment": True}
        tape = Tape(self.device, "bench")
        kernel = "attention_few" if together else "attention"
        tape.run(kernel, [heads // (together or 1), rows, splits], bindings, params, constants | form)
        if splits > 1:
            tape.run("attention_join", [heads, rows, slices(head)], bindings, {"splits": splits}, {"HEAD": head})
        seen = sum(min(window or places, depth + r + 1) for r in range(rows))  # keys, of all rows
        reach = min((window or places) + rows, places)
        size = 2 * 2 * reach * kv_heads * head + 2 * 4 * rows * heads * head
        how = f"{together} heads, {splits} splits" if together else "f16 cache"
        return self._figure(kernel, how, f"{what} {rows} rows", tape, size, 4 * seen * heads * head)

    def attention_tile(self) -> Iterator[Figure]:
        """A chunk of rows at the start and after a history, in every form: (eights of the output per thread, width of a
        slice, values at once), with the history in one piece and in several. The KV cache is f16."""
        large = self.device.limits.workgroup_memory >= 32 << 10
        for model, kind, *shape in MANY_HEADS:
            for depth in (0,) if self.quick else (0, DEPTHS[1]):
                what = f"{model} {kind} depth {depth}"
                for each, across, batch, splits in (
                    *((1, 32, 4, splits) for splits in (1, 2, 4)),
                    *((1, 64, 4, 1), (1, 32, 2, 1), (1, 32, 8, 1), (2, 32, 4, 1)),
                ):
                    if large or across == 32:
                        form = attention_shape(shape[2], f16=True, each=each, across=across, batch=batch)
                        how = f"{each} {across} {batch}, {splits}"
                        with Lab(self.device, 1) as lab:
                            yield self._look_tiled(lab, how, what, depth, shape, splits, form)

    def _look_tiled(
        self, lab: Lab, how: str, what: str, depth: int, shape: Sequence[int], splits: int, form: dict[str, Any]
    ) -> Figure:
        heads, kv_heads, head, window = shape
        rows, places = self.rows, depth + self.rows
        positions = np.arange(depth, places)
        bindings: dict[str, Binding] = {
            "rows": self._rows(lab, positions),
            "q": self._numbers(lab, rows * heads * head),
            "keys": self._numbers(lab, places * kv_heads * head, "<f2"),
            "values": self._numbers(lab, places * kv_heads * head, "<f2"),
            "partial": lab.out(rows * heads * splits * (head + 2)),
            "out": lab.out(rows * heads * head),
        }
        split = split_of(min(places, (window or places) + QUERIES), splits)
        params = {"heads": heads, "kv_heads": kv_heads, "rows": rows, "window": window}
        params |= {"table": rows, "table_step": 0, "first": 0, "count": places}
        params |= {"splits": splits, "split": split, "resumes": False, "final_segment": True}
        grid = [-(-rows * (heads // kv_heads) // QUERIES), kv_heads, splits]
        tape = Tape(self.device, "bench")
        tape.run("attention_tile", grid, bindings, params, form | ({"CARRIED": True} if splits > 1 else {}))
        if splits > 1:
            tape.run("attention_join", [heads, rows, slices(head)], bindings, {"splits": splits}, {"HEAD": head})
        seen = sum(min(window or places, depth + r + 1) for r in range(rows))  # keys, of all rows
        reach = min((window or places) + rows, places)
        size = 2 * 2 * reach * kv_heads * head + 2 * 4 * rows * heads * head
        return self._figure("attention_tile", how, f"{what} {rows} rows", tape, size, 4 * seen * heads * head)

    # -- adapters

    def low(self) -> Iterator[Figure]:
        """Gate and up of E2B, both adapted at rank 16."""
        columns, width = (256, 512) if self.quick else (1536, 24576)
        targets, rows = 2, self.rows
        shape = f"rank {RANK}×{targets} {columns}→{width}"
        with Lab(self.device, 1) as lab:
            a, b = self._numbers(lab, targets * RANK * columns), self._numbers(lab, RANK * width)
            scales, x = self._numbers(lab, targets * RANK), self._numbers(lab, rows * columns)
            y, z = self._numbers(lab, rows * width), self._numbers(lab, rows * targets * RANK)
            da, db = lab.out(targets * RANK * columns), lab.out(RANK * width)
            inner, outer = targets * RANK * columns, RANK * width  # weights
            edges = {"edge1": NEVER, "edge2": NEVER}
            tape = Tape(self.device, "bench")
            bound: dict[str, Binding] = {"a": a, "scales": scales, "z": z, "x": x}
            form = {"THREADS": THREADS, "AHEAD": AT_ONCE}
            params: dict[str, float] = {"blocks": columns // 32, "shares": 1, "scale_step": 0}
            tape.run("low_project", [targets * RANK, 1], bound, params, form)
            yield self._figure("low_project", "", f"{shape} 1 row", tape, 4 * (inner + columns), 2 * inner)
            tape = Tape(self.device, "bench")
            params = {"n": width, "rows": rows, "y_stride": width, "y_offset": 0, **edges, "alternate": True}
            params |= {"rank": RANK, "z_stride": targets * RANK, "b_stride": width, "low_first": 0}
            tape.run("low_add", [-(-width // 64), -(-rows // 4)], {"z": z, "b": b, "y": y}, params)
            moved = 4 * (outer + 2 * rows * width)
            yield self._figure("low_add", "", f"{shape} {rows} rows", tape, moved, 2 * rows * outer)
            tape = Tape(self.device, "bench")
            grid = [targets * -(-RANK // 16), -(-rows // 4)]
            params = {"rank": RANK, "targets": targets, "n": width, "stride": width, "offset": 0, "rows": rows}
            params |= {**edges, "interleaved": True}
            tape.run("low_back", grid, {"dy": y, "b": b, "scales": scales, "g": z}, params)
            moved = 4 * (outer + rows * width)
            yield self._figure("low_back", "", f"{shape} {rows} rows", tape, moved, 2 * rows * outer)
            tape = Tape(self.device, "bench")
            params = {"rank": RANK, "p_stride": targets * RANK, "n": width, "q_stride": width, "q_offset": 0}
            params |= {**edges, "interleaved": True, "rows": rows}
            tape.run("low_grad", [-(-width // 64), -(-RANK // 16)], {"p": z, "q": y, "d": db}, params)
            yield self._figure("low_grad", "of B", f"{shape} {rows} rows", tape, moved, 2 * rows * outer)
            tape = Tape(self.device, "bench")
            params = {"rank": targets * RANK, "p_stride": targets * RANK, "n": columns, "q_stride": columns}
            params |= {"q_offset": 0, **edges, "interleaved": False, "rows": rows}
            grid = [-(-columns // 64), -(-targets * RANK // 16)]
            tape.run("low_grad", grid, {"p": z, "q": x, "d": da}, params)
            moved = 4 * (inner + rows * columns)
            yield self._figure("low_grad", "of A", f"{shape} {rows} rows", tape, moved, 2 * rows * inner)

    # -- helpers

    def _matrices(self) -> Iterator[tuple[str, str, str, int, int]]:
        for model, what, kind, columns, count in MATRICES:
            if not self.quick:
                yield model, what, kind, columns, count
            elif (model, what) in (("E2B", "down"), ("26B", "down")):
                yield model, what, kind, 256, 128

    def _matrix(self, lab: Lab, kind: str, columns: int, count: int, unit: int = 64) -> Matrix:
        """As many of `count` rows as fit a binding, in whole units: a few random ones, repeated."""
        seed, _ = lab.weights(kind, SEED, columns)
        (part,) = seed.parts
        limit = min(self.device.limits.binding, self.device.limits.buffer // 2)
        count = min(count, limit // (part.codes.size // SEED) // unit * unit)
        times = -(-count // SEED)
        planes = [self._repeated(lab, part.buffer, part.codes, times)]
        if part.scales is not None:
            planes.append(self._repeated(lab, part.buffer, part.scales, times))
        codes, scales = planes[0], planes[1] if len(planes) > 1 else None
        return Matrix(kind, count, columns, (MatrixPart(0, count, codes.buffer, codes, scales),))

    def _repeated(self, lab: Lab, buffer: Buffer, span: Span, times: int) -> Span:
        data = run(self.device.read(buffer, span.offset, span.size))
        goal = self._buffer(lab, span.size * times)
        step = max(1, (16 << 20) // span.size)
        many = data * min(step, times)
        for first in range(0, times, step):
            self.device.write(goal, first * span.size, many[: (min(step, times - first)) * span.size])
        return Span(goal, 0, span.size * times)

    def _copies(self, lab: Lab, kind: str, columns: int, count: int) -> list[Matrix]:
        first = self._matrix(lab, kind, columns, count)
        more = 0 if self.quick or self.device.info.kind == "CPU" else min(COLD // nbytes(first), 24)
        return [first, *(self._matrix(lab, kind, columns, count) for _ in range(more))]

    def _rows(self, lab: Lab, positions: NDArray[np.int64]) -> Buffer:
        """Rows of one sequence, and its page table: every page at its own number."""
        one, pages = np.ones_like(positions), np.arange(-(-pages_of(int(positions[-1]) + 1) // 4) * 4)
        rows = np.stack([one, positions, 0 * one, positions], axis=1)
        return lab.put(np.concatenate([rows.ravel(), pages]), "<u4")

    def _numbers(self, lab: Lab, count: int, kind: str = "<f4") -> Buffer:
        """A few random numbers, repeated."""
        numbers = np.resize(lab.normal(4096).astype(kind), count)
        buffer = self._buffer(lab, numbers.nbytes)
        self.device.write(buffer, 0, numbers.tobytes())
        return buffer

    def _buffer(self, lab: Lab, size: int) -> Buffer:
        buffer = self.device.buffer(size, "bench")
        lab._buffers.append(buffer)
        return buffer

    def _figure(self, kernel: str, form: str, shape: str, tape: Tape, moved: int, done: int) -> Figure:
        """Times a tape of one kernel, perhaps with its helpers, or with several copies of its weights."""
        names = [command.kernel.name for command in tape.commands if isinstance(command, Dispatch)]
        copies = len(names) if len(set(names)) == 1 else 1
        seconds = max(self.watch.seconds(tape) / copies, 1e-9)
        return Figure(
            kernel=kernel,
            form=form,
            shape=shape,
            microseconds=seconds * 1e6,
            megabytes=moved / 1e6,
            gigaflop=done / 1e9,
            gb_per_s=moved / seconds / 1e9,
            tflop_per_s=done / seconds / 1e12,
            of_stream=moved / seconds / self.stream,
            of_arithmetic=done / seconds / self.watch.arithmetic,
        )


def keep(figure: Figure, adapter: str, folder: Path) -> None:
    """Records the best time of a kernel, form and shape on this adapter, with its date."""
    path = folder / f"kernels-{slug(adapter)}.json"
    best: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    name = f"{figure.kernel} {figure.form} {figure.shape}"
    if name not in best or figure.microseconds < best[name]["microseconds"]:
        shares = {"of_stream": round(figure.of_stream, 3), "of_arithmetic": round(figure.of_arithmetic, 3)}
        best[name] = {"microseconds": round(figure.microseconds, 2), **shares, "date": str(date.today())}
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(best[name])}" for name in sorted(best))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def nbytes(matrix: Matrix) -> int:
    return matrix.planes.nbytes(matrix.rows, matrix.columns)


if __name__ == "__main__":
    main()
