"""Records matrix products y = W x, with the steps fused before and after them.

A few rows use matvec.wgsl, which computes its input from the residual stream and finishes its output, or
experts_matvec.wgsl. Many rows use tile.wgsl, or tile_bytes.wgsl for 8-bit inputs, with the same steps as separate
kernels before and after. Callers need not know which.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from wgemma.gpu.device import Binding, Buffer, Device
from wgemma.gpu.shaders import Values
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Z_SHARE, Low
from wgemma.model.forms import (
    BUSY,
    FEW,
    LARGE,
    MOST_PAIRS,
    NARROW,
    SHARE,
    THREADS,
    large_from,
    matvec_form,
    matvec_groups,
    pairs,
    tile_form,
    tile_shape,
    tile_shares,
)
from wgemma.model.weights import Matrix, MatrixPart

MOST_JOINED = 4  # splits of a history that a mat-vec joins on the fly
AT_ONCE = Z_SHARE // (4 * THREADS)  # vectors of a row that a low_share.wgsl thread reads at once
CROWD = 4  # rows per expert, on average, from which they are grouped
TALL = 32  # the most rows of one expert in a tile of tile.wgsl


@dataclass(frozen=True, slots=True)
class Residual:
    """An input computed from the residual stream on the fly (kernels/residual.wgsl)."""

    h: Buffer
    pending: Buffer
    norms: Buffer
    h_out: Buffer
    x: Buffer  # many rows compute it here beforehand
    scale: float
    norm: bool

    @property
    def columns(self) -> int:
        return self.norms.size // 8

    @property
    def settles(self) -> bool:
        """Whether to compute a few rows once rather than in every workgroup, as is faster for long ones."""
        return pairs(self.columns) > MOST_PAIRS

    def constants(self, columns: int) -> dict[str, Any]:
        return {"MADE": "residual", "NORM": self.norm, "PAIRS": pairs(columns)}

    def bindings(self) -> dict[str, Binding]:
        return {"h": self.h, "o": self.pending, "norms": self.norms, "h_out": self.h_out}

    def params(self, rows: int, eps: float) -> dict[str, float]:
        return {"scale": self.scale, "eps": eps}


@dataclass(frozen=True, slots=True)
class Joined:
    """An input of a few rows, joined on the fly from the splits of a history (kernels/joined.wgsl)."""

    partial: Buffer
    x: Buffer  # adapters have it computed here beforehand
    heads: int
    head: int  # numbers per head
    splits: int

    def constants(self, columns: int) -> dict[str, Any]:
        return {"MADE": "joined", "JOIN": True, "HEAD": self.head, "PAIRS": pairs(columns)}

    def bindings(self) -> dict[str, Binding]:
        return {"partial": self.partial}

    def params(self, rows: int, eps: float) -> dict[str, float]:
        ends = rows * self.heads * self.splits * self.head // 4
        return {"heads": self.heads, "splits": self.splits, "ends": ends}


@dataclass(frozen=True, slots=True)
class Groups:
    """Many rows grouped by expert: (row, slot) pairs, in order and in tiles (kernels/group.wgsl)."""

    order: Buffer
    tiles: Buffer
    rounded: Buffer | None = None  # room for 8-bit inputs, if rounding is allowed
    tall: int = TALL

    @staticmethod
    def count(rows: int, slots: int, experts: int, tall: int = TALL) -> int:
        """The most tiles for any choice of experts."""
        return rows * slots // tall + experts


@dataclass(frozen=True, slots=True)
class Choices:
    """Each row's experts: `chosen` [rows, slots], top-k of `experts`; `groups` sorts rows by expert when it is worth
    it."""

    rows: int
    slots: int
    experts: int
    chosen: Buffer
    groups: Groups | None = None


Input: TypeAlias = Residual | Binding
# "exact": all f32. "fast", if the device can: 8-bit inputs for a few rows, or 16-bit for a `fine` result; for many
# rows 8-bit if there is room for them (`Result.rounded`).
Precision: TypeAlias = Literal["exact", "fast"]


@dataclass(frozen=True, slots=True)
class Result:
    """Where a product goes: rows `stride` apart (0: contiguous), from `offset` on. What is applied to it first:

    GEGLU    gelu(y₂ₙ) · y₂ₙ₊₁
    PLE      gelu(yₙ) · side[r, side_offset + n], with rows of `side` side_stride apart
    SOFTCAP  cap · tanh(yₙ / cap)
    SCALE    yₙ · side[r, n], only for many rows; a side_stride of 0 means one side for all

    Before that, adapters are added: the results are those of `low` from `low_first` on, and `z` comes from `project`,
    unless the product `meets`.
    A fast product of a few rows rounds its input to eight bits, or to sixteen for a `fine` result; for many rows to
    eight if `rounded` has room, 48 bytes for 32 numbers, and no SOFTCAP or SCALE follows. For many rows, workgroups may
    also split a sum, if `parts` has room for the partial sums.
    """

    y: Binding
    stride: int = 0
    offset: int = 0
    then: Literal["", "GEGLU", "PLE", "SOFTCAP", "SCALE"] = ""
    side: Binding | None = None
    side_stride: int = 0
    side_offset: int = 0
    cap: float = 0.0
    bare: Buffer | None = None  # for many rows: the input of GEGLU and PLE
    rounded: Buffer | None = None  # for many rows: their 8-bit input
    parts: Buffer | None = None  # for many rows: partial sums
    low: Low | None = None
    z: Binding | None = None
    low_first: int = 0
    fine: bool = False

    def bindings(self) -> dict[str, Binding]:
        return {"y": self.y} if self.side is None else {"y": self.y, "side": self.side}

    def params(self, first: int = 0) -> dict[str, float]:
        """Parameters of `then`, for the results from `first` on."""
        if self.then == "PLE":
            return {"side_stride": self.side_stride, "side_offset": self.side_offset + first}
        if self.then == "SCALE":
            return {"side_stride": self.side_stride}
        return {"cap": self.cap} if self.then == "SOFTCAP" else {}

    @property
    def meets(self) -> bool:
        """Whether the product computes z itself."""
        return self.low is not None and self.low.meeting is not None and self.z is self.low.meeting

    def low_bindings(self) -> dict[str, Binding]:
        assert self.low is not None and self.z is not None
        return {"z": self.z, "b": self.low.b}

    def low_params(self, first: int = 0, shares: int = 1) -> dict[str, int]:
        """Parameters of kernels/low.wgsl for the results from `first` on, with z in `shares` partial sums."""
        assert self.low is not None
        low = self.low
        edge1, edge2 = low.edges
        return {
            "rank": low.rank * shares,
            "z_stride": low.columns * shares,
            "b_stride": low.width,
            "low_first": self.low_first + first,
            "edge1": edge1,
            "edge2": edge2,
            "alternate": low.interleaved,
        }


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a product's rows go: `stride` apart (0, in towers: contiguous), from `offset` on."""

    y: Binding
    stride: int
    offset: int = 0


class Matmuls:
    """Records products on one device."""

    few = FEW
    narrow = NARROW
    busy = BUSY
    share = SHARE
    large = LARGE
    threads = THREADS  # per row in `settle`

    def __init__(self, device: Device, eps: float, precision: Precision = "exact") -> None:
        self.device = device
        self.eps = eps
        self.quick = precision == "fast"

    def linear(self, tape: Tape, matrix: Matrix, rows: int, source: Input, result: Result) -> None:
        """The product of every row."""
        if rows <= self.few:
            if isinstance(source, Residual) and source.settles:
                source = self.settle(tape, rows, source)
            for part in matrix.parts:
                self._matvec(tape, matrix, part, rows, source, result)
        else:
            self._tiles(tape, matrix, rows, source, result)

    def thin(
        self, tape: Tape, matrix: Matrix, rows: int, source: Binding, y: Buffer, parts: Buffer | None = None
    ) -> None:
        """The product with a matrix of few rows: each gets its own workgroup, if it is f32 like an adapter's."""
        if rows > self.few or matrix.kind != "F32" or len(matrix.parts) > 1:
            self.linear(tape, matrix, rows, source, Result(y, parts=parts))
            return
        bindings: dict[str, Binding] = {"a": matrix.parts[0].codes, "x": source, "z": y}
        constants = {"THREADS": THREADS, "AHEAD": AT_ONCE, "BARE": True}
        tape.run("low_project", [matrix.rows, rows], bindings, {"blocks": matrix.blocks, "shares": 1}, constants)

    def joins(self, matrix: Matrix, rows: int, heads: int, splits: int) -> bool:
        """Whether the product with this matrix can join its input itself."""
        fits = rows <= self.few and splits <= MOST_JOINED and heads * MOST_JOINED <= THREADS
        return fits and bool(matvec_form(self.device, matrix)["WHOLE"])

    def joined(self, tape: Tape, matrix: Matrix, rows: int, source: Joined, result: Result) -> None:
        """The product of a few rows that are still to be joined."""
        if result.low is not None and result.z is not None and not result.meets:
            x = self._project_few(tape, result.low, rows, source, result.z)
            self.linear(tape, matrix, rows, x, result)
            return
        for part in matrix.parts:
            self._matvec(tape, matrix, part, rows, source, result)

    def side_by_side(self, tape: Tape, matrices: tuple[Matrix, ...], rows: int, source: Input, result: Result) -> None:
        """Several matrices on one input, with their results side by side: queries, keys and values, or gate and up of
        two types."""
        settled = source
        if isinstance(source, Residual) and (rows > self.few or source.settles):
            settled = self.settle(tape, rows, source)
        offset = 0
        for matrix in matrices:
            self.linear(tape, matrix, rows, settled, replace(result, offset=offset, low_first=offset))
            offset += matrix.rows

    def project(self, tape: Tape, low: Low, rows: int, source: Input, z: Binding) -> Input:
        """Computes the adapters' z [rows, T·R] from an input (for a few rows in shares) and returns the input for their
        group. Does nothing if the group computes z itself."""
        if z is low.meeting:
            return source
        if rows <= self.few:
            return self._project_few(tape, low, rows, source, z)
        x = self.settle(tape, rows, source) if isinstance(source, Residual) else source
        self._tiles(tape, low.a, rows, x, Result(z, then="SCALE", side=low.scales, side_stride=low.scale_step))
        return x

    def _project_few(self, tape: Tape, low: Low, rows: int, source: Input | Joined, z: Binding) -> Binding:
        """The same for a few rows, which may still have to be joined."""
        bindings: dict[str, Binding] = {"a": low.a.parts[0].codes, "scales": low.scales, "z": z}
        grid, columns, shares = [low.columns, rows], low.a.columns, low.shares
        params: dict[str, float] = {"blocks": low.a.blocks, "shares": shares, "scale_step": low.scale_step}
        if isinstance(source, Residual | Joined):
            bindings |= {**source.bindings(), "x_out": source.x}
            params |= source.params(rows, self.eps)
            tape.run("low_project", grid, bindings, params, {"THREADS": THREADS, **source.constants(columns)})
            return source.x
        constants = {"THREADS": THREADS, "AHEAD": AT_ONCE}
        tape.run("low_project", [*grid, shares], {**bindings, "x": source}, params, constants)
        return source

    def group(self, tape: Tape, choices: Choices, groups: Groups) -> Choices:
        """Groups the rows by expert, for `experts`, unless there are too few."""
        pairs = choices.rows * choices.slots
        if choices.rows <= self.few or pairs < CROWD * choices.experts:
            return choices
        bindings: dict[str, Binding] = {"chosen": choices.chosen, "order": groups.order, "tiles": groups.tiles}
        tape.run("group", [choices.experts], bindings, {"pairs": pairs, "tall": groups.tall}, {"THREADS": THREADS})
        return replace(choices, groups=groups)

    def experts(
        self,
        tape: Tape,
        matrix: Matrix,
        choices: Choices,
        source: Binding,
        y: Binding,
        *,
        geglu: bool = False,
        weights: Buffer | None = None,
    ) -> None:
        """Each row's product with its chosen experts, weighted if there are `weights`. Grouped rows do not support
        GEGLU."""
        if choices.groups is not None:
            assert not geglu
            self._grouped(tape, matrix, choices, choices.groups, source, y, weights)
            return
        slots, per_expert = choices.slots, matrix.rows // choices.experts
        kernel = "experts_matvec"
        constants = matvec_form(self.device, matrix, kernel, quick=self.quick, rows=per_expert * slots)
        constants |= {"GEGLU": geglu, "WEIGHTED": weights is not None}
        for part in matrix.parts:
            bindings: dict[str, Binding] = {**part.bindings(), "x": source, "y": y, "chosen": choices.chosen}
            if weights is not None:
                bindings["weights"] = weights
            params = {"blocks": matrix.blocks, "n": per_expert, "slots": slots, **part.experts(per_expert)}
            across = matvec_groups(per_expert, constants)
            tape.run(kernel, [across, choices.rows, slots], bindings, params, constants)

    def _grouped(
        self,
        tape: Tape,
        matrix: Matrix,
        choices: Choices,
        groups: Groups,
        source: Binding,
        y: Binding,
        weights: Buffer | None,
    ) -> None:
        rows, slots, experts = choices.rows, choices.slots, choices.experts
        per_expert = matrix.rows // experts
        constants = tile_shape(groups.tall) | {"TYPE": matrix.planes.reader, "EXPERTS": True}
        constants["WEIGHTED"] = weights is not None
        share = slots if weights is None else 1
        across = [-(-per_expert // 64), Groups.count(rows, slots, experts, groups.tall)]
        rounded = self._rounded(tape, matrix, rows * slots // share, source, groups.rounded)
        for part in matrix.parts:
            bindings: dict[str, Binding] = {**part.bindings(), "y": y, "order": groups.order, "tiles": groups.tiles}
            if weights is not None:
                bindings["weights"] = weights
            params = {"blocks": matrix.blocks, "n": per_expert, "rows": rows * slots}
            params |= {"y_stride": per_expert, "y_offset": 0, "share": share, **part.experts(per_expert)}
            if rounded is None:
                tape.run("tile", across, {**bindings, "x": source}, params, constants)
            else:
                bindings["bytes"] = rounded
                tape.run("tile_bytes", across, bindings, params, constants | {"QUICK": True})

    def settle(self, tape: Tape, rows: int, source: Residual) -> Buffer:
        """Computes the input into its own buffer."""
        columns = source.columns
        constants = {"THREADS": self.threads, "NORM": source.norm, "PAIRS": pairs(columns, self.threads)}
        bindings: dict[str, Binding] = {**source.bindings(), "x": source.x}
        params = {"blocks": columns // 32, "scale": source.scale, "eps": self.eps}
        tape.run("norm", [rows], bindings, params, constants)
        return source.x

    def _matvec(
        self, tape: Tape, matrix: Matrix, part: MatrixPart, rows: int, source: Input | Joined, result: Result
    ) -> None:
        most = 32 if isinstance(source, Joined) else 64  # fewer workgroups, since each joins all of x
        makes = isinstance(source, Residual | Joined)
        large = large_from(makes, self.large)
        constants = matvec_form(self.device, matrix, quick=self.quick, fine=result.fine, large=large, most=most)
        bindings: dict[str, Binding] = {**part.bindings(), **result.bindings()}
        share = 2 if result.then == "GEGLU" else 1  # rows of W for one result
        params: dict[str, float] = {
            "blocks": matrix.blocks,
            "n": part.rows,
            "y_stride": result.stride or matrix.rows // share,
            "y_offset": result.offset + part.first // share,
        }
        if isinstance(source, Residual | Joined):
            constants |= source.constants(matrix.columns)
            bindings |= source.bindings()
            params |= source.params(rows, self.eps)
        else:
            bindings["x"] = source
        makers = 0
        if result.low is not None:
            constants |= {"LOW": True, "SHARES": result.low.shares}
            bindings |= result.low_bindings()
            params |= result.low_params(part.first, result.low.shares)
            if result.meets:
                constants |= {"MEETS": True, "AHEAD": AT_ONCE}
                bindings |= {"a": result.low.a.parts[0].codes, "low_scales": result.low.scales}
                if result.low_first + part.first == 0:  # the group's first dispatch computes z for all
                    makers = result.low.columns * (1 if makes else result.low.shares)
                params["makers"] = makers
        if result.then:
            constants[result.then] = True
            params |= result.params(part.first)
        tape.run("matvec", [makers + matvec_groups(part.rows, constants), rows], bindings, params, constants)

    def _tiles(self, tape: Tape, matrix: Matrix, rows: int, source: Input, result: Result) -> None:
        x = self.settle(tape, rows, source) if isinstance(source, Residual) else source
        place = Destination(result.y, result.stride or matrix.rows, result.offset)
        product = result.then in ("GEGLU", "PLE")  # needs another kernel
        if product:
            assert result.bare is not None
            place = Destination(result.bare, matrix.rows)
        capped, low = result.then == "SOFTCAP", result.low is not None
        if result.then == "SCALE" or (capped and not low):
            self._finished(tape, matrix, rows, x, result, place)
        else:
            self._bare(tape, matrix, rows, x, result, place)
        if low:
            grid = [-(-matrix.rows // 64), -(-rows // 4)]
            params: dict[str, float] = {"n": matrix.rows, "rows": rows, **result.low_params()}
            params |= {"y_stride": place.stride, "y_offset": place.offset}
            if capped:
                params |= result.params()
            tape.run("low_add", grid, {**result.low_bindings(), "y": place.y}, params, {"SOFTCAP": capped})
        if product:
            bindings: dict[str, Binding] = {**result.bindings(), "x": place.y}
            count = matrix.rows // 2 if result.then == "GEGLU" else matrix.rows
            mode = {"GEGLU": True} if result.then == "GEGLU" else {"SIDE": True}
            tape.run("activate", [-(-count // 256), rows], bindings, {"n": count, **result.params()}, mode)

    def _finished(self, tape: Tape, matrix: Matrix, rows: int, x: Binding, result: Result, place: Destination) -> None:
        """The product of many rows, with SOFTCAP or SCALE fused."""
        for part in matrix.parts:
            params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows, **result.params()}
            params |= {"y_stride": place.stride, "y_offset": place.offset + part.first}
            bindings: dict[str, Binding] = {**result.bindings(), **part.bindings(), "x": x, "y": place.y}
            self._many(tape, part.rows, rows, bindings, params, {"TYPE": matrix.planes.reader, result.then: True})

    def _bare(self, tape: Tape, matrix: Matrix, rows: int, x: Binding, result: Result, place: Destination) -> None:
        """The bare product of many rows, with 8-bit inputs or partial sums where they apply."""
        rounded = self._rounded(tape, matrix, rows, x, result.rounded)
        shares = self._shares(matrix, rows, result.parts)
        goal = Destination(result.parts, matrix.rows) if result.parts and shares > 1 else place
        for part in matrix.parts:
            params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
            params |= {"y_stride": goal.stride, "y_offset": goal.offset + part.first}
            bindings: dict[str, Binding] = {**part.bindings(), "y": goal.y}
            constants = {"TYPE": matrix.planes.reader}
            if rounded is None:
                self._many(tape, part.rows, rows, {**bindings, "x": x}, params, constants, shares)
            else:
                form = tile_form(rows, part.rows, self.narrow) | {"QUICK": True}
                grid = [-(-part.rows // 64), -(-rows // form["ROWS"]), shares]
                tape.run("tile_bytes", grid, {**bindings, "bytes": rounded}, params, constants | form)
        if goal is not place:
            params = {"n": matrix.rows, "rows": rows, "shares": shares}
            params |= {"y_stride": place.stride, "y_offset": place.offset}
            tape.run("add_up", [-(-matrix.rows // 256), rows], {"parts": goal.y, "y": place.y}, params)

    def _rounded(self, tape: Tape, matrix: Matrix, rows: int, x: Binding, rounded: Buffer | None) -> Buffer | None:
        """The 8-bit input of many rows, or None if the product does not round."""
        if rounded is None or not (self.quick and matrix.planes.quick and rounds_many(self.device)):
            return None
        blocks = rows * matrix.blocks
        groups = -(-blocks // 64)
        high = -(-groups // self.device.limits.workgroups)
        tape.run("to_bytes", [-(-groups // high), high], {"x": x, "bytes": rounded}, {"blocks": blocks})
        return rounded

    def _shares(self, matrix: Matrix, rows: int, parts: Buffer | None) -> int:
        """The number of partial sums for many rows."""
        if parts is None:
            return 1
        tall = tile_form(rows, matrix.rows, self.narrow)["ROWS"]
        tiles = -(-matrix.rows // 64) * -(-rows // tall)
        room = parts.size // (4 * rows * matrix.rows)
        return tile_shares(tiles, matrix.blocks, room, busy=self.busy, share=self.share)

    def _many(
        self,
        tape: Tape,
        n: int,
        rows: int,
        bindings: dict[str, Binding],
        params: Values,
        constants: dict[str, Any],
        shares: int = 1,
    ) -> None:
        """The product of many rows with `n` rows of a matrix, in `shares` partial sums."""
        form = tile_form(rows, n, self.narrow)
        tape.run("tile", [-(-n // 64), -(-rows // form["ROWS"]), shares], bindings, params, constants | form)


def rounds_many(device: Device) -> bool:
    """Whether fast products of many rows take 8-bit inputs on this device: if those of a few rows do, too."""
    return not device.compact and device.lanes("tile_bytes") > 1
