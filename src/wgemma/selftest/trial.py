"""Runs the self-test's problems on a device, recorded on one tape with the decoder's own functions.

So it tests exactly what the model will run. Everything large in the model is small here: matrix rows, heads, history,
vocabulary, experts.
"""

import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from wgemma.engine.options import Options
from wgemma.engine.sampling import RESULT_BYTES, RESULTS_BYTES, RING, Sampler
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.sources import MemorySource
from wgemma.gpu.device import Binding, Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.attention import SPLITS, look, slices, store
from wgemma.model.cache import Arena, CacheSegment
from wgemma.model.config import PARTIAL_ROTARY, Config, LayerConfig
from wgemma.model.decoder import Decoder, matmuls_for
from wgemma.model.experts import norm_constants
from wgemma.model.forms import LARGE, NARROW, rounding_form
from wgemma.model.matmul import (
    MOST_JOINED,
    Choices,
    Groups,
    Joined,
    Residual,
    Result,
    Rounded,
    rounds_many,
)
from wgemma.model.passes import Pass
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import PAGE, ROW_BYTES, Row, RowBuffer, pack_rows
from wgemma.model.scratch import SharedActivations
from wgemma.model.text import Attention, FeedForward, TextLayer, TextWeights
from wgemma.model.weights import Matrix, RowOrder, Uploader
from wgemma.selftest import problems as given
from wgemma.selftest.problems import Problem

ARENA = 4 << 20  # bytes for the outputs of all problems

Maker: TypeAlias = Callable[[str, int], "array[float]"]


@dataclass(frozen=True, slots=True)
class Output:
    """An output's place in the arena, and how to read it."""

    problem: Problem
    offset: int
    size: int
    form: str = "f"  # of its numbers: f, e (f16), I or bytes (to_bytes.wgsl)
    columns: int = 0  # of rows that repeat a period; or of `rows` in the answer
    scale: float = 1.0  # its numbers divided by the answer's
    shares: int = 1  # partial sums it is in
    rows: int = 0  # in which the rows of the answer return over and over, if not 0

    def error(self, arena: bytes, answer: Sequence[float]) -> float:
        """The relative error; if rows return, the largest of any."""
        wanted = [self.scale * number for number in answer]
        errors = [math.dist(got, wanted) / math.hypot(*wanted) for got in self._folded(self._values(arena))]
        return next(filter(math.isnan, errors), max(errors))

    def _values(self, arena: bytes) -> Sequence[float]:
        if self.form == "bytes":
            return given.from_bytes(arena[self.offset : self.offset + self.size])
        count = self.size // struct.calcsize(self.form)
        values: Sequence[float] = struct.unpack_from(f"<{count}{self.form}", arena, self.offset)
        if self.shares == 1:
            return values
        return [sum(values[i :: count // self.shares]) for i in range(count // self.shares)]

    def _folded(self, values: Sequence[float]) -> Iterator[list[float]]:
        if not self.rows:
            yield given.fold(given.averaged(values, self.columns) if self.columns else values)
            return
        stride, width = len(values) // self.rows, self.columns
        for first in (*range(0, self.rows - given.FEW, given.FEW), self.rows - given.FEW):
            rows = sorted(range(first, first + given.FEW), key=lambda row: row % given.FEW)
            yield given.fold([number for row in rows for number in values[row * stride : row * stride + width]])


class Trial:
    """The problems' resources on the device: a small decoder, their inputs, one tape, one arena."""

    def __init__(self, device: Device, config: Config, options: Options) -> None:
        self.device = device
        self.kv = options.kv
        self.precision = options.precision
        self.config = _small(config)
        self.tape = Tape(device, "self-test")
        self.ledger = Ledger(device)
        self.uploader = Uploader(self.ledger, Gguf(MemorySource(b""), 3, {}, {}))
        self.outputs: list[Output] = []
        self._inputs: dict[tuple[Any, ...], Buffer] = {}
        self._matrices: dict[tuple[str, int], Matrix] = {}
        self._layers: dict[tuple[bool, bool, int], TextLayer] = {}  # by sliding, has_v, head_dim

    async def solve(self, wanted: Sequence[Problem], meanwhile: Callable[[], object] = lambda: None) -> bytes:
        """Runs all problems and returns the arena with `outputs`. Calls `meanwhile` while kernels compile."""
        self.arena = self._buffer(ARENA)
        for problem in wanted:
            if problem.kind and (problem.kind, problem.columns) not in self._matrices:
                self._matrices[problem.kind, problem.columns] = await self._matrix(problem.kind, problem.columns)
        self.decoder = self._make_decoder()
        self.matmuls = self.decoder.matmuls
        recorders: dict[str, Callable[[Problem], None]] = {
            "embed": self._embed, "matvec": self._matvec, "middle": self._middle, "tile": self._tile,
            "norm": self._norm, "activate": self._activate, "ple": self._ple, "kv": self._kv,
            "attention": self._attention, "experts_norm": self._experts_norm, "route": self._route,
            "experts_join": self._experts_join, "sample": self._sample,
        }  # fmt: skip
        for problem in wanted:
            recorders[problem.kernel](problem)
        program = self.tape.program()
        meanwhile()
        await self.device.confirm()
        program.replay()
        return await self.device.read(self.arena, 0, self._end)

    def free(self) -> None:
        self.tape.free()
        self.uploader.close()
        self.ledger.free()

    # -- setup

    async def _matrix(self, kind: str, columns: int) -> Matrix:
        raw = given.matrix_bytes(kind, columns)
        self.uploader.gguf = Gguf(MemorySource(raw), 3, {}, {})
        tensor = Tensor("self-test", (columns, given.ROWS), kind, 0, len(raw))
        return await self.uploader.matrix([(tensor, RowOrder())])

    def _make_decoder(self) -> Decoder:
        """A decoder with just the sizes and tables its functions look up; no other weights are used."""
        matrix, unused = next(iter(self._matrices.values())), self._buffer(4)
        for layer in self.config.layers:
            head, own = layer.head_dim, layer.has_v
            q, kv = given.HEADS * head, given.KV_HEADS * head
            q_norm, k_norm = self._put("q norm", head, given.query_norms), self._put("k norm", head, given.norms)
            width = q + (2 if own else 1) * kv
            attention = Attention((), q, q + kv if own else q, width, q_norm, k_norm, matrix)
            made = TextLayer(layer, 1.0, unused, unused, attention, FeedForward((), matrix), None, None)
            self._layers[layer.sliding, own, head] = made
        pairs = {layer.sliding: _pairs(layer) for layer in self.config.layers}
        turns = {sliding: self._upload(_turns(count)) for sliding, count in pairs.items()}
        layers = tuple(self._layers.values())
        weights = TextWeights(self.config, matrix, matrix, unused, layers, None, turns, pairs)
        rows, rounds = given.MANY[0], self.precision == "fast" and rounds_many(self.device)
        scratch = SharedActivations(self.ledger, weights, rows, rows, z=0, rounds=rounds)
        matmuls = matmuls_for(self.device, self.config.eps, self.precision)
        return Decoder(self.ledger, weights, matmuls, scratch)

    def _buffer(self, size: int) -> Buffer:
        return self.ledger.buffer(size, "self-test")

    def _upload(self, data: bytes) -> Buffer:
        return self.uploader.upload(data, "self-test")

    def _words(self, *words: int) -> Buffer:
        return self._upload(struct.pack(f"<{len(words)}I", *words))

    def _put(self, label: str, count: int, make: Maker = given.numbers) -> Buffer:
        key = (label, count)
        if key not in self._inputs:
            self._inputs[key] = self._upload(make(label, count).tobytes())
        return self._inputs[key]

    def _repeat(
        self,
        label: str,
        rows: int,
        columns: int,
        *scales: float,
        make: Maker = given.numbers,
    ) -> Buffer:
        """Uploads rows of repeated periods, row i multiplied by scales[i] (cyclically), if given."""
        key = (label, rows, columns, scales)
        if key not in self._inputs:
            values = make(label, rows * given.period_of(columns))
            self._inputs[key] = self._upload(given.repeated(values, columns, scales or (1.0,)).tobytes())
        return self._inputs[key]

    def _pass(self, rows: Sequence[tuple[int, int, int]], cache: Arena, *, several: bool = False) -> Pass:
        """A pass of rows of one sequence, or of several alike, with the pages of problems.py."""
        made = RowBuffer(self.ledger, len(rows), given.DEPTH, several=several, label="self-test")
        made.put_rows(Row(used, position, 0, sees) for used, position, sees in rows)
        for row in range(len(rows) if several else 1):
            for sliding in (False, True):
                made.put_pages(row, 0, given.pages(sliding=sliding), sliding=sliding)
        return Pass(self.tape, len(rows), made.buffer, made.tables, cache, given.DEPTH)

    @property
    def _end(self) -> int:
        """The next free offset in the arena."""
        return self.outputs[-1].offset + self.outputs[-1].size if self.outputs else 0

    def _keep(self, problem: Problem, buffer: Buffer, offset: int = 0, size: int = 0, **reading: Any) -> None:
        """Records a copy of the output at this point of the tape."""
        output = Output(problem, self._end, size or buffer.size, **reading)
        self.tape.copy(buffer, offset, self.arena, output.offset, output.size)
        self.outputs.append(output)

    def _residual(self, columns: int, share: float, *, norm: bool) -> Residual:
        """The residual stream, with x `share` times the answer's."""
        rows, full = given.FEW, given.fullness(columns)
        h, o = (self._repeat(label, rows, columns) for label in "ho")
        both = self._repeat("norms", 2, columns, full, full * share, make=given.norms)
        scale = given.SCALE if norm else given.SCALE * share
        h_out, x = (self._buffer(4 * rows * columns) for _ in range(2))
        return Residual(h, o, both, h_out, x, scale, norm)

    # -- the problems

    def _embed(self, problem: Problem) -> None:
        rows, matrix = len(given.TOKENS), self._matrices[problem.kind, problem.columns]
        y = self._buffer(4 * rows * problem.columns)
        tokens = self._upload(pack_rows(Row(1, 0, token, 0) for token in given.TOKENS))
        self.decoder.embed(self.tape, rows, tokens, matrix, y, given.SCALE)
        self._keep(problem, y, columns=problem.columns)

    def _matvec(self, problem: Problem) -> None:
        source, then = problem.source, problem.then
        self.matmuls.large = 0 if problem.deep else LARGE
        if source == "experts":
            self._experts(problem)
            return
        matrix, rows, columns = self._matrices[problem.kind, problem.columns], given.FEW, problem.columns
        share = 1 / given.periods_of(columns)
        if source == "joined" and self.matmuls.joins(matrix, rows, columns // problem.head, MOST_JOINED):
            self._joined(problem, share)
            return
        residual = None if source in ("x", "joined", "thin") else self._residual(columns, share, norm=source != "sum")
        x = residual or self._repeat("x", rows, columns, share)
        y = self._buffer(4 * given.ROWS * rows // (2 if then == "geglu" else 1))
        if source == "head":
            self.matmuls.linear(self.tape, matrix, rows, x, Result(y, then="SOFTCAP", cap=given.CAP))
        elif source == "thin":
            self.matmuls.thin(self.tape, matrix, rows, self._repeat("x", rows, columns, share), y)
        elif then == "ple":
            stride, offset = given.SIDE
            side, bare = self._put("side", rows * stride), self._buffer(4 * rows * given.ROWS)
            result = Result(y, then="PLE", side=side, side_stride=stride, side_offset=offset, bare=bare)
            self.matmuls.linear(self.tape, matrix, rows, x, result)
        else:
            bare = self._buffer(4 * rows * given.ROWS)
            result = Result(y, then="GEGLU" if then == "geglu" else "", bare=bare, fine=problem.fine)
            self.matmuls.linear(self.tape, matrix, rows, x, result)
        self._keep(problem, y)
        if residual:
            self._keep(problem, residual.h_out, columns=columns, scale=share if source == "sum" else 1.0)

    def _joined(self, problem: Problem, share: float) -> None:
        """Identical pieces, so that joining them gives the same again."""
        matrix, heads = self._matrices[problem.kind, problem.columns], problem.columns // problem.head
        y = self._buffer(4 * given.ROWS * given.FEW)
        room = self._pieces(problem, given.FEW, share)
        joined = Joined(room, room, heads, problem.head, MOST_JOINED)
        self.matmuls.joined(self.tape, matrix, given.FEW, joined, Result(y, fine=True))
        self._keep(problem, y)

    def _pieces(self, problem: Problem, rows: int, share: float) -> Buffer:
        values = given.numbers("x", given.FEW * given.period_of(problem.columns))
        x = given.repeated(values, problem.columns, (share,))
        few = array("f")
        for first in range(0, len(x), problem.head):
            few.extend(x[first : first + problem.head] * MOST_JOINED)
        pieces = (few * -(-rows // given.FEW))[: rows * problem.columns * MOST_JOINED]
        pieces.extend((0.0, 1.0) * (rows * problem.columns // problem.head * MOST_JOINED))
        return self._upload(pieces.tobytes())

    def _experts(self, problem: Problem) -> None:
        matrix, each = self._matrices[problem.kind, problem.columns], given.FEW * given.SLOTS
        geglu, weighted = problem.then == "geglu", problem.then == "weighted"
        share = 1 / given.periods_of(problem.columns)
        x = self._repeat("x", each if weighted else given.FEW, problem.columns, share)
        y = self._buffer(4 * each * given.ROWS // given.EXPERTS // (2 if geglu else 1))
        weights = self._put("weights", each) if weighted else None
        choices = Choices(given.FEW, given.SLOTS, given.EXPERTS, self._words(*given.CHOSEN))
        self.matmuls.experts(self.tape, matrix, choices, x, y, geglu=geglu, weights=weights)
        self._keep(problem, y)

    def _middle(self, problem: Problem) -> None:
        """As many rows as there are slots, in the form of the model's own matrix: these are its first rows."""
        matrix = replace(self._matrices[problem.kind, problem.columns], rows=problem.n)
        quick = self.precision == "fast" and matrix.planes.quick and rounds_many(self.device)
        rows = min(problem.rows, (self.matmuls.middle[1] if quick else self.matmuls.exact_middle))
        if rows <= (0 if quick else self.matmuls.few):
            return
        columns, geglu, share = problem.columns, problem.then == "geglu", 1 / given.periods_of(problem.columns)
        hands_on = quick and problem.in_bytes and rounding_form(self.device, rows, problem.n) is not None
        width = given.ROWS // 2 if geglu else given.ROWS
        stride = -(-width // 32) * 32 if hands_on else width
        y = self._buffer(rows * (stride // 32 * 48 if hands_on else 4 * stride))
        result = Result(y, stride, fine=problem.fine, bytes=self._buffer(rows * columns // 32 * 80), leaves=True)
        if problem.shared and not problem.then:
            result = replace(result, parts=self._buffer(2 * 4 * rows * problem.n))
        if geglu:
            result = replace(result, then="GEGLU", rounds=hands_on)
        elif problem.then == "ple":
            side_stride, offset = given.SIDE
            side = self._over_and_over(self._put("side", given.FEW * side_stride), rows)
            result = replace(result, then="PLE", side=side, side_stride=side_stride, side_offset=offset)
        elif problem.source == "head":
            result = replace(result, then="SOFTCAP", cap=given.CAP)
        x = self._x_of_fine(problem, rows, share) if quick and problem.fine else self._x_of(problem, rows, share)
        left = self.matmuls.linear(self.tape, matrix, rows, x, result)
        if left and result.parts is not None:
            some = self._buffer(left * rows * 4 * width)
            for row in range(left * rows):
                self.tape.copy(result.parts, 4 * row * problem.n, some, 4 * row * width, 4 * width)
            self._keep(problem, some, shares=left, rows=rows, columns=width)
        else:
            self._keep(problem, y, form="bytes" if hands_on else "f", rows=rows, columns=width)

    def _x_of(self, problem: Problem, rows: int, share: float) -> Buffer:
        if problem.source not in ("sum", "head"):
            return self._over_and_over(self._repeat("x", given.FEW, problem.columns, share), rows)
        residual = self._residual(problem.columns, share, norm=problem.source == "head")
        return self._over_and_over(self.matmuls.settle(self.tape, given.FEW, residual), rows)

    def _x_of_fine(self, problem: Problem, rows: int, share: float) -> Rounded:
        """In fine bytes, from the pieces of a history if the model has them from there."""
        if problem.source != "joined":
            few = self._upload(_fine_rows(problem.columns, share))
            return Rounded(None, self._over_and_over(few, rows), fine=True)
        room, heads = self._buffer(rows * problem.columns // 32 * 80), problem.columns // problem.head
        bindings: dict[str, Binding] = {"partial": self._pieces(problem, rows, share), "bytes": room}
        constants = {"HEAD": problem.head, "ROUNDS": True, "FINE": True}
        grid = [heads, rows, slices(problem.head)]
        self.tape.run("attention_join", grid, bindings, {"splits": MOST_JOINED}, constants)
        return Rounded(None, room, fine=True)

    def _over_and_over(self, few: Buffer, rows: int) -> Buffer:
        """More rows, in which the few there are return."""
        size = few.size // given.FEW * rows
        many = self._buffer(size)
        for offset in range(0, size, few.size):
            self.tape.copy(few, 0, many, offset, min(few.size, size - offset))
        return many

    def _tile(self, problem: Problem) -> None:
        if problem.source == "experts":
            self._crowd(problem)
            return
        matrix = self._matrices[problem.kind, problem.columns]
        self.matmuls.narrow = 0 if problem.tall else NARROW
        rounds = problem.in_bytes and self.precision == "fast" and rounds_many(self.device)
        for answered in given.MANY:
            # Rounded inputs of fewer rows are not for tiles: of more rows, the first ones have the same answers.
            rows = max(given.MANY) if rounds else answered
            x = self._repeat("x", rows, problem.columns, 1 / given.periods_of(problem.columns))
            y = self._buffer(4 * rows * given.ROWS)
            rounded = self._buffer(rows * problem.columns // 32 * 48) if problem.in_bytes else None
            parts = self._buffer(8 * y.size) if problem.shared else None
            self.matmuls.linear(self.tape, matrix, rows, x, Result(y, rounded=rounded, parts=parts))
            self._keep(problem, y, size=4 * answered * given.ROWS)

    def _crowd(self, problem: Problem) -> None:
        """Many rows that share few experts."""
        matrix, rows = self._matrices[problem.kind, problem.columns], given.MANY[1]
        grid, each, weighted = (rows, given.SLOTS, given.EXPERTS), rows * given.SLOTS, problem.then == "weighted"
        share = 1 / given.periods_of(problem.columns)
        x = self._repeat("x", each if weighted else rows, problem.columns, share)
        y = self._buffer(4 * each * given.ROWS // given.EXPERTS)
        weights = self._put("weights", each) if weighted else None
        choices = Choices(*grid, self._words(*given.crowded()))
        rounded = self._buffer((each if weighted else rows) * problem.columns // 32 * 48)
        groups = Groups(self._buffer(4 * each), self._buffer(16 * Groups.count(*grid)), rounded)
        together = self.matmuls.group(self.tape, choices, groups)
        self.matmuls.experts(self.tape, matrix, together, x, y, weights=weights)
        self._keep(problem, y)

    def _norm(self, problem: Problem) -> None:
        columns = problem.columns
        source = self._residual(columns, 1.0, norm=problem.source == "norm")
        x = self.matmuls.settle(self.tape, given.FEW, source)
        self._keep(problem, x, size=source.h.size, columns=columns)
        self._keep(problem, source.h_out, columns=columns)

    def _activate(self, problem: Problem) -> None:
        n, rows, stride = given.PRODUCTS, given.FEW, given.PRODUCTS + given.SIDE[1]
        y, beside = self._buffer(4 * rows * n), problem.activation == "SIDE"
        bindings: dict[str, Binding] = {"x": self._put("x", rows * n * (1 if beside else 2)), "y": y}
        bindings["side"] = self._put("side", rows * stride)
        params = {"n": n, **({"side_stride": stride, "side_offset": given.SIDE[1]} if beside else {})}
        self.tape.run("activate", [-(-n // 256), rows], bindings, params, {problem.activation: True})
        self._keep(problem, y)

    def _ple(self, problem: Problem) -> None:
        count = given.FEW * given.PLE_LAYERS * given.PLE_DIM
        y = self._buffer(4 * count)
        bindings: dict[str, Binding] = {"c": self._put("c", count), "table": self._put("table", count), "ple": y}
        bindings["norm"] = self._put("ple norm", given.PLE_DIM, given.norms)
        params = {"p": given.PLE_DIM, "eps": given.EPS, "scale": given.SCALE}
        self.tape.run("ple", [given.PLE_LAYERS, given.FEW], bindings, params, {"THREADS": 64})
        self._keep(problem, y)

    def _experts_norm(self, problem: Problem) -> None:
        rows, columns, padded = given.FEW, problem.columns, given.FEW + 1
        h_out, x = self._buffer(4 * rows * columns), self._buffer(4 * 3 * padded * columns)
        bindings: dict[str, Binding] = {label: self._repeat(label, rows, columns) for label in "ho"}
        bindings["norms"] = self._repeat("norms", 4, columns, given.fullness(columns), make=given.norms)
        bindings |= {"h_out": h_out, "x": x}
        params = {"blocks": columns // 32, "rows": padded, "eps": given.EPS}
        self.tape.run("experts_norm", [rows], bindings, params, norm_constants(columns))
        self._keep(problem, x, columns=columns)
        self._keep(problem, h_out, columns=columns)

    def _route(self, problem: Problem) -> None:
        count = given.FEW * given.ROUTES
        chosen, weights = self._buffer(4 * count), self._buffer(4 * count)
        bindings: dict[str, Binding] = {"scores": self._put("scores", given.FEW * given.ROUTED)}
        bindings["expert_scale"] = self._put("expert scale", given.ROUTED, given.norms)
        bindings |= {"chosen": chosen, "weights": weights}
        self.tape.run("route", [given.FEW], bindings, {"experts": given.ROUTED, "used": given.ROUTES})
        self._keep(problem, chosen, form="I")
        self._keep(problem, weights)

    def _experts_join(self, problem: Problem) -> None:
        rows, columns = given.FEW, problem.columns
        y = self._buffer(4 * rows * columns)
        bindings: dict[str, Binding] = {"dense": self._repeat("h", rows, columns), "y": y}
        bindings["routed"] = self._repeat("x", rows * given.SLOTS, columns)
        bindings["norms"] = self._repeat("norms", 2, columns, given.fullness(columns), make=given.norms)
        params = {"blocks": columns // 32, "slots": given.SLOTS, "eps": given.EPS}
        self.tape.run("experts_join", [rows], bindings, params, norm_constants(columns))
        self._keep(problem, y, columns=columns)

    def _with_cache(self, problem: Problem) -> tuple[TextLayer, Arena, CacheSegment]:
        """A layer with its own cache, and rows of hashes in `qkv`."""
        layer = self._layers[problem.sliding, not problem.without_v, problem.head]
        config = replace(self.config, layers=(layer.config,))
        cache = Arena(self.ledger, config, kv=self.kv, full=len(given.PAGES), sliding=len(given.RING))
        count = len(given.STORING) * layer.attention.width
        self.tape.copy(self._put("qkv", count), 0, self.decoder.scratch["qkv"], 0, 4 * count)
        (segment,) = cache.segments[layer.config.index]
        return layer, cache, segment

    def _kv(self, problem: Problem) -> None:
        layer, cache, segment = self._with_cache(problem)
        store(self._pass(given.STORING, cache), self.decoder.weights, self.decoder.scratch, layer, [segment])
        size = cache.token_bytes(layer.config)
        for position, count in given.SEEN:
            place = given.place_of(position, sliding=layer.config.sliding)
            for half in (segment.keys, segment.values):
                self._keep(problem, half, place * size, count * size, form="e" if self.kv == "f16" else "f")

    def _attention(self, problem: Problem) -> None:
        layer, cache, segment = self._with_cache(problem)
        token, sliding = cache.token_bytes(layer.config), layer.config.sliding
        for label in ("keys", "values"):
            data = given.cached(label, given.DEPTH * given.KV_HEADS * problem.head, self.kv)
            for position in range(0, segment.count, PAGE):
                page, place = data[position * token :][: PAGE * token], given.place_of(position, sliding=sliding)
                self.device.write(segment.keys if label == "keys" else segment.values, place * token, page)
        looking = given.LOOKING["sliding" if sliding else "full"]
        size = 4 * len(looking) * given.HEADS * problem.head
        # One piece of many turns; and pieces of one turn each, unless the next product joins them.
        for most in (1,) if sliding else (1, SPLITS):
            p = self._pass(looking, cache, several=True)
            look(p, self.decoder.weights, self.decoder.scratch, layer, [segment], most=most)
            self._keep(problem, self.decoder.scratch["attended"], size=size)
        # Enough rows for the tile kernel.
        p = self._pass(looking * 3, cache)
        look(p, self.decoder.weights, self.decoder.scratch, layer, [segment], most=most)
        self._keep(problem, self.decoder.scratch["attended"], size=size)

    def _sample(self, problem: Problem) -> None:
        """In the second of two slots, the first of which is empty."""
        rows = RowBuffer(self.ledger, 2, given.POSITION + 1, several=True, label="self-test")
        rows.put_rows([Row(0, 0), Row(1, given.POSITION - 1)])  # its page table says 0, as a new buffer does
        sampler = Sampler(self.ledger, self.config, rows, self._buffer(4 * PAGE), slots=2)
        self.device.write(sampler.logits, 4 * sampler.stride, given.logits().tobytes())
        recipe = sampler.begin(1, given.SAMPLINGS[problem.sampling], given.VOCAB)
        sampler.record(self.tape, recipe, given.DEPTH, rows=2)
        result = RESULTS_BYTES + given.POSITION % RING * RESULT_BYTES
        self._keep(problem, rows.buffer, ROW_BYTES, ROW_BYTES, form="I")
        self._keep(problem, sampler.results, result + 12, 8)  # total, highest


def _small(config: Config) -> Config:
    """A small config with the model's kinds of layers."""
    layers: dict[tuple[bool, bool, int], LayerConfig] = {}
    for layer in config.layers:
        if layer.donor is None:
            small = replace(layer, heads=given.HEADS, kv_heads=given.KV_HEADS, ffn_width=32)
            small = replace(small, window=given.WINDOW if layer.sliding else None)
            layers[layer.sliding, layer.has_v, layer.head_dim] = small
    return replace(
        config,
        layers=tuple(layers.values()),
        vocab_size=given.VOCAB,
        eps=given.EPS,
        window=given.WINDOW,
        ple_dim=0,
        expert_count=given.EXPERTS if config.expert_count else 0,
        experts_used=given.SLOTS,
        expert_width=32,
        suppress_tokens=(given.SUPPRESSED,) if config.suppress_tokens else (),
    )


def _fine_rows(columns: int, share: float) -> bytes:
    """The rows of x in fine bytes."""
    period = given.period_of(columns)
    x = [share * number for number in given.numbers("x", given.FEW * period)]
    rest = bytes(80 * ((columns - given.periods_of(columns) * period) // 32))
    rows = (given.fine_bytes(x[start : start + period]) for start in range(0, len(x), period))
    return b"".join(row * given.periods_of(columns) + rest for row in rows)


def _pairs(layer: LayerConfig) -> int:
    """The rotating pairs the kernels are compiled for: with factors in the file, the usual share of them."""
    count = int(layer.rotary_pairs * PARTIAL_ROTARY) if layer.rope_factors else layer.rotary_pairs
    return max(count, given.TURNING)


def _turns(pairs: int) -> bytes:
    """A rotary table in which only the first few pairs rotate."""
    size = 8 * given.TURNING
    table = rotary_tables(given.BASE, 2 * given.TURNING, given.TURNING, None, given.DEPTH)
    still = struct.pack("<2f", 1, 0) * (pairs - given.TURNING)
    return b"".join(table[i : i + size] + still for i in range(0, len(table), size))
