"""What the products of a step with several rows cost: `python bench/products.py [--model 26b] [--rows 8,32]`.

For every matrix of E2B or 26B-A4B in Q4_K_M and every number of rows, in fast precision: microseconds with the kernels
that take each row by itself (`alone`), as the engine chooses (`now`), and with several tiles of middle.wgsl, the best
three of them. A tile is written rows/each×columns/crews·depth, with the shares of K behind a colon. Everything between
the residual stream or an input that is there and the result counts: norms, rounding, grouping rows by expert, adding up
shares unless the next norm does it. Where gate and up hand their result on in bytes, they do here, too.

Below the table, the sums over a step. Each answer is checked against the twin first: `wrong` follows a time whose
answer is not right. Weights are random and cycled through, so that no cache holds them (kernels.py, stopwatch.py).
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np

from kernels import EPS, EXPERTS, SEED, Bench
from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model import matmul
from wgemma.model.forms import (
    FULL_GRID,
    GROUPED,
    MIDDLE_GRID,
    SMALL,
    THREADS,
    Middle,
    middle_form,
    middle_shape,
    rounding_form,
    rounding_shape,
)
from wgemma.model.matmul import Choices, Groups, Input, Matmuls, Residual, Result, Rounded
from wgemma.model.weights import Matrix
from wgemma.reference import twins
from wgemma.reference.lab import Lab, relative_error
from wgemma.reference.twins import Array
from wgemma.sync import run

COLUMN = "  {:34} {:>4} {:>9} {:>9}  {}"
SHARES = 32  # the most there is room for
WRONG = 0.03  # more than rounding to eight bits changes


class Product(NamedTuple):
    """A matrix, how often a step uses one like it, and how."""

    what: str
    kind: str
    columns: int
    n: int
    times: int
    then: Literal["", "GEGLU", "PLE", "SOFTCAP"] = ""
    fine: bool = False
    normed: bool = False  # its input is a norm of the residual stream
    handed: bool = False  # its input is handed on in bytes, unless each row is by itself
    leaves: bool = False  # the next norm adds up its shares


PRODUCTS = {
    "e2b": [
        Product("qkv, sliding", "Q4_K", 1536, 2560, 12, fine=True, normed=True),
        Product("qkv, full", "Q4_K", 1536, 5120, 3, fine=True, normed=True),
        Product("q, sliding", "Q4_K", 1536, 2048, 16, fine=True, normed=True),
        Product("q, full", "Q4_K", 1536, 4096, 4, fine=True, normed=True),
        Product("o, sliding", "Q4_K", 2048, 1536, 28, fine=True, leaves=True),
        Product("o, full", "Q4_K", 4096, 1536, 7, fine=True, leaves=True),
        Product("gate/up", "Q4_K", 1536, 12288, 15, "GEGLU", normed=True),
        Product("gate/up, wide", "Q4_K", 1536, 24576, 20, "GEGLU", normed=True),
        Product("down", "Q6_K", 6144, 1536, 15, handed=True, leaves=True),
        Product("down, wide", "Q4_K", 12288, 1536, 10, handed=True, leaves=True),
        Product("down, wide", "Q6_K", 12288, 1536, 10, handed=True, leaves=True),
        Product("per-layer gate", "Q4_K", 1536, 256, 35, "PLE", normed=True),
        Product("per-layer projection", "Q4_K", 256, 1536, 35),
        Product("head", "Q6_K", 1536, 262144, 1, "SOFTCAP", normed=True),
    ],
    "26b": [
        Product("qk, sliding", "Q4_K", 2816, 6144, 25, fine=True, normed=True),
        Product("v, sliding", "Q6_K", 2816, 2048, 25, fine=True, normed=True),
        Product("qk, full", "Q4_K", 2816, 9216, 5, fine=True, normed=True),
        Product("o, sliding", "Q4_K", 4096, 2816, 25, fine=True),
        Product("o, full", "Q4_K", 8192, 2816, 5, fine=True),
        Product("gate/up", "Q4_K", 2816, 4224, 30, "GEGLU"),
        Product("down", "Q8_0", 2112, 2816, 30),
        Product("head", "Q6_K", 2816, 262144, 1, "SOFTCAP", normed=True),
    ],
}
CROWDS = [("experts gate/up", "Q4_K", 30), ("experts down", "Q8_0", 30)]  # of 26B-A4B
TILES = {  # by the most rows
    2: [Middle(2, 2, 32, 8), Middle(2, 2, 16, 16), Middle(2, 2, 64, 4), Middle(2, 1, 32, 8)],
    4: [Middle(4, 4, 32, 8), Middle(4, 4, 16, 16), Middle(4, 2, 32, 8), Middle(4, 4, 64, 4)],
    8: [Middle(8, 8, 32, 8), Middle(8, 4, 32, 8), Middle(8, 4, 16, 8), Middle(8, 8, 64, 4), Middle(8, 8, 16, 16)],
    16: [
        *(Middle(16, 8, 64, 4), Middle(16, 8, 32, 4), Middle(16, 16, 64, 4), Middle(16, 4, 32, 4)),
        *(Middle(16, 8, 32, 8), Middle(8, 4, 16, 8)),
    ],
    32: [
        *(Middle(32, 8, 64, 2), Middle(32, 8, 32, 4), Middle(32, 16, 64, 2), Middle(32, 16, 64, 4)),
        *(Middle(16, 8, 64, 4), Middle(8, 4, 16, 8)),
    ],
    64: [
        *(Middle(64, 8, 64, 1, 2), Middle(64, 16, 64, 1, 2), Middle(64, 16, 64, 2), Middle(64, 16, 128, 1)),
        *(Middle(32, 8, 64, 2), Middle(64, 8, 32, 2), Middle(16, 8, 32, 4)),
    ],
}
SMALL_TILES = [Middle(8, 8, 32, 8), Middle(8, 4, 32, 8), Middle(8, 8, 64, 4), Middle(4, 4, 32, 8)]


class Alone(Matmuls):
    """Products of each row by itself."""

    few = 64
    middle = (0, 0)
    grouped = (0, 0)


class Tiled(Matmuls):
    """Products with middle.wgsl however small they are."""

    middle = (1, 64)
    work = (0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(PRODUCTS), default="e2b")
    parser.add_argument("--rows", default="1,2,4,8,16,32,64", help="numbers of rows, up to 64")
    parser.add_argument("--only", metavar="NAME", default="", help="matrices whose name begins so")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that everything runs")
    options = parser.parse_args()
    device = NativeDevice(compact=False)
    counts = [int(rows) for rows in options.rows.split(",")]
    bench = Products(Bench(device, quick=options.quick, rows=64, repeat=options.repeat), counts)
    print(f"{device.info.name}, {options.model}, microseconds")
    print(COLUMN.format("matrix", "rows", "alone", "now", "best tiles"))
    bench.all(options.model, options.only)
    print("milliseconds of a step")
    for rows, (old, now, best) in bench.steps.items():
        print(f"  {rows:3} rows  alone {old / 1e3:7.3f}  now {now / 1e3:7.3f}  best {best / 1e3:7.3f}")
    device.close()


class Products:
    """One device and the sums over a step, by number of rows: old, now, best."""

    def __init__(self, bench: Bench, counts: list[int]) -> None:
        self.bench, self.device, self.counts = bench, bench.device, counts
        bench.watch.heat = bench.watch.heat[::4]  # one timing follows the other closely, and there are hundreds
        self.steps = {rows: [0.0, 0.0, 0.0] for rows in counts}

    def all(self, model: str, only: str) -> None:
        for product in PRODUCTS[model]:
            if product.what.startswith(only):
                self._product(product._replace(columns=256, n=128) if self.bench.quick else product)
        for crowd in CROWDS if model == "26b" else []:
            if crowd[0].startswith(only):
                self._crowd(*crowd)

    def _product(self, product: Product) -> None:
        kind, columns, then = product.kind, product.columns, product.then
        with Lab(self.device, 1) as lab:
            copies = self.bench._copies(lab, kind, columns, product.n)
            w, n, most = self._last(copies), copies[0].rows, max(self.counts)
            x, side = lab.normal(most, columns), lab.normal(most, n if then == "PLE" else 1)
            result = Result(
                lab.out(most * n),
                then=then,
                cap=30.0,
                side=lab.put(side),
                side_stride=n,
                bare=lab.out(most * n) if then in ("GEGLU", "PLE") else None,
                bytes=(room := lab.out(most * columns * 20 // 32)),
                rounded=room if product.what.startswith(("gate", "down")) else None,
                parts=None if then else lab.out(SHARES * most * n),
                fine=product.fine,
                leaves=product.leaves,
            )
            source, x = self._residual(lab, x) if product.normed else (lab.put(x), x)
            for rows in self.counts:
                right = _finished(twins.linear(w, x[:rows]), then, side[:rows, :SEED])
                asked = _Asked(copies, rows, source, result, product.handed, right)
                old = self._time(asked, Alone(self.device, EPS, "fast"))
                now = self._time(asked, Matmuls(self.device, EPS, "fast"))
                found = {}
                for middle, shares in self._tiles(copies[0], rows, product):
                    with _fixed(middle, shares):
                        found[_name(middle, shares)] = self._time(asked, Tiled(self.device, EPS, "fast"))
                self._tell(f"{product.what} {kind} {columns}→{n}", rows, product.times, old, now, found)

    def _residual(self, lab: Lab, h: Array) -> tuple[Residual, Array]:
        """An input made from the residual stream h, and what it is."""
        o, norms = lab.normal(*h.shape), lab.norms(2, h.shape[1])
        given = [lab._filled(values.astype("<f4").tobytes()) for values in (h, o, norms, h, h)]
        return Residual(*given, scale=0.7, norm=True), twins.residual(h, o, norms, 0.7, EPS, norm=True)[1]

    def _last(self, copies: list[Matrix]) -> Array:
        """The rows that the last copy repeats, drawn once more."""
        with Lab(self.device, 1) as again:
            return [again.weights(copy.kind, SEED, copy.columns)[1] for copy in copies][-1]

    def _tiles(self, matrix: Matrix, rows: int, product: Product) -> Iterator[tuple[Middle, int]]:
        for middle in TILES[min(size for size in TILES if rows <= size)]:
            yield middle, 1
            tiles = -(-matrix.rows // middle.columns) * -(-rows // middle.rows)
            most = min(SHARES, -(-FULL_GRID // tiles), matrix.blocks // (2 * middle.crews * middle.depth))
            if not product.then and tiles < MIDDLE_GRID and most > 1:
                yield middle, most

    def _time(self, asked: "_Asked", matmuls: Matmuls) -> tuple[float, bool]:
        """Microseconds, and whether the answer is right."""
        rows, result, source, tape = asked.rows, asked.result, asked.source, Tape(self.device, "bench")
        first, left = asked.copies[0], 0
        if not matmuls._is_small(first, rows, result, makes=isinstance(source, Residual)):
            if asked.handed:
                source = self._in_bytes(matmuls, asked)
            rounds = result.then == "GEGLU" and matmul.rounding_form(self.device, rows, first.rows) is not None
            result = replace(result, rounds=rounds)
        for matrix in asked.copies:
            left = matmuls.linear(tape, matrix, rows, source, result)
        seconds = self.bench.watch.seconds(tape) / len(asked.copies)
        width = first.rows // (2 if result.then == "GEGLU" else 1)
        if result.rounds:
            words = self._read(result.y, rows * width * 12 // 32, "<u4").astype("<u4").reshape(-1, 12)
            scales = np.ascontiguousarray(words[:, 8:9]).view("<f4")
            got = (np.ascontiguousarray(words[:, :8]).view("i1") * scales).reshape(rows, width)
        elif left:
            got = self._read(result.parts, left * rows * width).reshape(left, rows, width).sum(0)
        else:
            got = self._read(result.y, rows * width).reshape(rows, width)
        return seconds * 1e6, relative_error(got[:, : asked.right.shape[1]], asked.right) < WRONG

    def _in_bytes(self, matmuls: Matmuls, asked: "_Asked") -> Rounded:
        """The input, rounded by another product before."""
        assert asked.result.bytes is not None and not isinstance(asked.source, Residual | Rounded)
        before = Tape(self.device, "rounding")
        matmuls._to_bytes(before, asked.rows * asked.copies[0].blocks, asked.source, asked.result.bytes)
        before.program().replay()
        before.free()
        return Rounded(None, asked.result.bytes, fine=False)

    def _read(self, buffer: Any, count: int, kind: str = "<f4") -> Array:
        return np.frombuffer(run(self.device.read(buffer, 0, 4 * count)), kind).astype(np.float64)

    def _crowd(self, what: str, kind: str, times: int) -> None:
        """Rows that choose experts at random; each by itself, or in tiles."""
        there, used, wide = (8, 2, 64) if self.bench.quick else EXPERTS
        width, geglu = 256 if self.bench.quick else 2816, what.endswith("up")
        columns, each = (width, 2 * wide) if geglu else (wide, width)
        with Lab(self.device, 1) as lab:
            matrix = self.bench._matrix(lab, kind, columns, there * each, unit=each)
            most, there = max(self.counts) * used, matrix.rows // each
            x, weights = self.bench._numbers(lab, most * columns), None if geglu else self.bench._numbers(lab, most)
            y, bare = lab.out(most * each), lab.out(most * each)
            order, tiles, room = lab.out(most), lab.out(4 * (most + there)), lab.out(most * columns * 12 // 32)
            for rows in self.counts:
                chosen = lab.put(np.stack([lab.rng.permutation(there)[:used] for _ in range(rows)]), "<u4")
                alone = Choices(rows, used, there, chosen)
                crowd = _Crowd(matrix, alone, Groups(order, tiles, room), x, y, bare, weights)
                first, right = self._ask(crowd, 0)
                found = {"alone": (first, True)}
                for tall in (matmul.TALL, SMALL):
                    found[f"tiles of {tall}"] = self._checked(crowd, tall, right)
                for middle in SMALL_TILES:
                    with _fixed(middle, 1):
                        found[_name(middle, 1)] = self._checked(crowd, middle.rows, right)
                now = found["alone" if rows < GROUPED[0] else f"tiles of {SMALL}"]
                self._tell(f"{what} {kind} {columns}→{each}", rows, times, found["alone"], now, found)

    def _checked(self, crowd: "_Crowd", tall: int, right: Array) -> tuple[float, bool]:
        time, answer = self._ask(crowd, tall)
        return time, relative_error(answer, right) < WRONG

    def _ask(self, crowd: "_Crowd", tall: int) -> tuple[float, Array]:
        """Microseconds and answers of experts asked by each row alone (0), or by rows in tiles this tall."""
        matmuls, tape, choices = Tiled(self.device, EPS, "fast"), Tape(self.device, "bench"), crowd.choices
        pairs, geglu = choices.rows * choices.slots, crowd.weights is None
        each = crowd.matrix.rows // choices.experts
        if tall:
            groups = replace(crowd.groups, tall=tall)
            bound: dict[str, Binding] = {"chosen": choices.chosen, "order": groups.order, "tiles": groups.tiles}
            # Both products of a layer use the same groups.
            grouping = tape if geglu else Tape(self.device, "groups")
            grouping.run("group", [choices.experts], bound, {"pairs": pairs, "tall": tall}, {"THREADS": THREADS})
            if grouping is not tape:
                grouping.program().replay()
                grouping.free()
            choices = replace(choices, groups=groups)
        if geglu and tall == matmul.TALL:
            matmuls.experts(tape, crowd.matrix, choices, crowd.x, crowd.bare)
            grid = [-(-each // 512), pairs]
            tape.run("activate", grid, {"x": crowd.bare, "y": crowd.y}, {"n": each // 2}, {"GEGLU": True})
        else:
            matmuls.experts(tape, crowd.matrix, choices, crowd.x, crowd.y, geglu=geglu, weights=crowd.weights)
        seconds = self.bench.watch.seconds(tape)
        return seconds * 1e6, self._read(crowd.y, pairs * (each // 2 if geglu else each))

    def _tell(
        self,
        name: str,
        rows: int,
        times: int,
        old: tuple[float, bool],
        now: tuple[float, bool],
        found: dict[str, tuple[float, bool]],
    ) -> None:
        best = sorted(found, key=lambda tile: found[tile][0])
        told = "   ".join(f"{tile} {_told(found[tile])}" for tile in best[:3])
        print(COLUMN.format(name, rows, _told(old), _told(now), told), flush=True)
        for i, time in enumerate((old[0], now[0], min(old[0], now[0], found[best[0]][0]))):
            self.steps[rows][i] += times * time


class _Asked(NamedTuple):
    copies: list[Matrix]
    rows: int
    source: Input
    result: Result
    handed: bool
    right: Array  # the first results


class _Crowd(NamedTuple):
    matrix: Matrix
    choices: Choices
    groups: Groups
    x: Buffer
    y: Buffer
    bare: Buffer
    weights: Buffer | None  # of the second product; the first has GEGLU instead


@contextmanager
def _fixed(middle: Middle, shares: int) -> Iterator[None]:
    """Has Matmuls use one tile whatever the product."""

    def form(
        device: NativeDevice, *sizes: int, quick: bool, fine: bool = False, most: int = 1
    ) -> tuple[dict[str, Any], int]:
        return middle_shape(device, middle, quick=quick, fine=fine), min(shares, most)

    def rounding(device: NativeDevice, rows: int, n: int) -> dict[str, Any] | None:
        return None if middle.columns % 64 or n % 64 else rounding_shape(device, middle)

    with patch.object(matmul, middle_form.__name__, form), patch.object(matmul, rounding_form.__name__, rounding):
        yield


def _finished(y: Array, then: str, side: Array) -> Array:
    if then == "GEGLU":
        return twins.geglu(y)
    if then == "PLE":
        return twins.gated(y, side)
    return twins.capped(y, 30.0) if then == "SOFTCAP" else y


def _name(middle: Middle, shares: int) -> str:
    depth = f"·{middle.depth}" if middle.depth > 1 else ""
    return f"{middle.rows}/{middle.each}×{middle.columns}/{middle.crews}{depth}" + (f":{shares}" if shares > 1 else "")


def _told(time: tuple[float, bool]) -> str:
    return f"{time[0]:.1f}" + ("" if time[1] else " wrong")


if __name__ == "__main__":
    main()
