"""Records matrix products y = W x, with the steps fused before and after them.

A few rows, and up to 64 with a small matrix, use matvec.wgsl, which computes its input from the residual stream and
finishes its output, or experts_matvec.wgsl. Up to 64 with a large one use middle.wgsl, which takes an input that is
there and finishes its output.
Many rows use tile.wgsl, or tile_bytes.wgsl for 8-bit inputs, with the same steps as separate kernels before and after.
Callers need not know which.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from wgemma.gpu.device import Binding, Buffer, Device
from wgemma.gpu.shaders import Values
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Z_SHARE, Low
from wgemma.model.forms import (
    BUSY,
    EXACT_MIDDLE,
    FEW,
    GROUPED,
    LARGE,
    MADE_WORK,
    MIDDLE,
    MOST_PAIRS,
    NARROW,
    SHARE,
    SMALL,
    THREADS,
    WORK,
    large_from,
    matvec_form,
    matvec_groups,
    middle_form,
    pairs,
    rounding_form,
    tile_form,
    tile_shape,
    tile_shares,
)
from wgemma.model.weights import Matrix, MatrixPart

MOST_JOINED = 4  # splits of a history that a mat-vec joins on the fly
AT_ONCE = Z_SHARE // (4 * THREADS)  # vectors of a row that a low_share.wgsl thread reads at once
CROWD = 4  # rows per expert, on average, from which they are grouped
PACKED = 16  # rows per expert, on average, from which tiles are tall however few rows there are
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
    parts: int = 0  # if more, `pending` is in so many partial sums

    @property
    def columns(self) -> int:
        return self.norms.size // 8

    @property
    def settles(self) -> bool:
        """Whether to compute a few rows once rather than in every workgroup, as is faster for long ones."""
        return pairs(self.columns) > MOST_PAIRS

    def constants(self, columns: int) -> dict[str, Any]:
        return {"MADE": "residual", **self.form(columns)}

    def form(self, columns: int, threads: int = THREADS) -> dict[str, Any]:
        """The constants of residual.wgsl."""
        parts = {"PARTS": True} if self.parts else {}
        return {"NORM": self.norm, "PAIRS": pairs(columns, threads), **parts}

    def bindings(self) -> dict[str, Binding]:
        return {"h": self.h, "o": self.pending, "norms": self.norms, "h_out": self.h_out}

    def params(self, rows: int, eps: float) -> dict[str, float]:
        parts = {"o_parts": self.parts, "o_step": rows * self.columns // 4} if self.parts else {}
        return {"scale": self.scale, "eps": eps, **parts}


@dataclass(frozen=True, slots=True)
class Rounded:
    """An input of 2 to 64 rows that is there in bytes (kernels/to_bytes.wgsl), two each if `fine`, and maybe in f32."""

    given: Binding | None
    bytes: Buffer
    fine: bool

    @property
    def x(self) -> Binding:
        assert self.given is not None
        return self.given


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

    @property
    def small(self) -> bool:
        """Whether tiles are small, so that a product can finish its output."""
        return self.tall < TALL

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


Input: TypeAlias = Residual | Rounded | Binding
# "exact": all f32. "fast", if the device can: 8-bit inputs for up to 64 rows, or 16-bit for a `fine` result; for many
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
    A fast product of up to 64 rows rounds its input to eight bits, or to sixteen for a `fine` result; more than a few
    need room in `bytes`, 48 bytes for 32 numbers, or 80. For many rows it rounds to eight if `rounded` has room and no
    SOFTCAP or SCALE follows. Unless for a few rows, workgroups may also split a sum, if `parts` has room for the
    partial sums; of up to 64 rows these may stay there, if it `leaves` them.
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
    bytes: Buffer | None = None  # for up to 64 rows: their rounded input
    rounded: Buffer | None = None  # for many rows: their 8-bit input
    parts: Buffer | None = None  # for more than a few rows: partial sums
    low: Low | None = None
    z: Binding | None = None
    low_first: int = 0
    fine: bool = False
    leaves: bool = False
    rounds: bool = False  # GEGLU's results go to y in bytes (Matmuls.hands_on)

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
    middle = MIDDLE
    exact_middle = EXACT_MIDDLE
    work = (WORK, MADE_WORK)
    grouped = GROUPED
    narrow = NARROW
    busy = BUSY
    share = SHARE
    large = LARGE
    threads = THREADS  # per row in `settle`

    def __init__(self, device: Device, eps: float, precision: Precision = "exact") -> None:
        self.device = device
        self.eps = eps
        self.quick = precision == "fast"

    def avoid_middle(self) -> None:
        """Leaves the work of middle.wgsl to the other kernels."""
        self.middle, self.exact_middle, self.grouped = (0, 0), 0, (0, 0)

    def linear(self, tape: Tape, matrix: Matrix, rows: int, source: Input, result: Result) -> int:
        """The product of every row. Returns how many partial sums it leaves in `result.parts`, 0 for a whole result."""
        if not self._is_small(matrix, rows, result, makes=isinstance(source, Residual) and not source.settles):
            return self._tiles(tape, matrix, rows, source, result)
        if isinstance(source, Residual) and source.settles:
            source = self.settle(tape, rows, source)
        for part in matrix.parts:
            self._matvec(tape, matrix, part, rows, source, result)
        return 0

    def hands_on(self, matrix: Matrix, then: Matrix, rows: int, source: Input, result: Result, last: Result) -> bool:
        """Whether the product with a matrix, and GEGLU, can give its result in the bytes that the product with another
        reads, without f32 numbers."""
        makes = isinstance(source, Residual) and not source.settles
        if result.fine or last.fine or not self.reads_bytes(then, rows, last):
            return False
        whole = all(part.first % 64 == 0 for part in matrix.parts)
        form = rounding_form(self.device, rows, matrix.rows) if whole else None
        return form is not None and self.reads_bytes(matrix, rows, result, makes=makes)

    def reads_bytes(self, matrix: Matrix, rows: int, result: Result, *, makes: bool = False) -> bool:
        """Whether the product needs its input in bytes only. `makes`: otherwise it would make the input on the fly."""
        if result.low is not None or rows > self.middle[1] or not self._rounds(matrix, result):
            return False
        return not self._is_small(matrix, rows, result, makes=makes)

    def thin(
        self, tape: Tape, matrix: Matrix, rows: int, source: Binding, y: Buffer, parts: Buffer | None = None
    ) -> None:
        """The product with a matrix of few rows: each gets its own workgroup, if it is f32 like an adapter's."""
        if rows > max(self.few, self.middle[1]) or matrix.kind != "F32" or len(matrix.parts) > 1:
            self.linear(tape, matrix, rows, source, Result(y, parts=parts))
            return
        bindings: dict[str, Binding] = {"a": matrix.parts[0].codes, "x": source, "z": y}
        constants = {"THREADS": THREADS, "AHEAD": AT_ONCE, "BARE": True}
        tape.run("low_project", [matrix.rows, rows], bindings, {"blocks": matrix.blocks, "shares": 1}, constants)

    def joins(self, matrix: Matrix, rows: int, heads: int, splits: int, result: Result | None = None) -> bool:
        """Whether the product with this matrix can join its input itself."""
        small = rows <= self.few if result is None else self._is_small(matrix, rows, result, makes=True)
        fits = small and splits <= MOST_JOINED and heads * MOST_JOINED <= THREADS
        return fits and bool(matvec_form(self.device, matrix)["WHOLE"])

    def joined(self, tape: Tape, matrix: Matrix, rows: int, source: Joined, result: Result) -> None:
        """The product of rows that are still to be joined."""
        if result.low is not None and result.z is not None and not result.meets:
            x = self._project_few(tape, result.low, rows, source, result.z)
            self.linear(tape, matrix, rows, x, result)
            return
        for part in matrix.parts:
            self._matvec(tape, matrix, part, rows, source, result)

    def side_by_side(self, tape: Tape, matrices: tuple[Matrix, ...], rows: int, source: Input, result: Result) -> None:
        """Several matrices on one input, with their results side by side: queries, keys and values, or gate and up of
        two types."""
        settled, makes = source, isinstance(source, Residual) and not source.settles
        small = [self._is_small(matrix, rows, result, makes=makes) for matrix in matrices]
        if not all(small) and any(self._in_the_middle(matrix, rows, result) for matrix in matrices):
            settled = self._prepared(tape, matrices, rows, source, result)
        elif isinstance(source, Residual) and not (makes and all(small)):
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
        x = self.settled(tape, rows, source)
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
        x = source.x if isinstance(source, Rounded) else source
        tape.run("low_project", [*grid, shares], {**bindings, "x": x}, params, constants)
        return x

    def group(self, tape: Tape, choices: Choices, groups: Groups) -> Choices:
        """Groups the rows by expert, for `experts`, unless there are too few."""
        pairs, (fewest, most) = choices.rows * choices.slots, self.grouped
        if fewest <= choices.rows <= most and pairs < PACKED * choices.experts:
            groups = replace(groups, tall=SMALL)
        elif choices.rows <= self.few or pairs < CROWD * choices.experts:
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
        """Each row's product with its chosen experts, weighted if there are `weights`. Of grouped rows, only those in
        small tiles support GEGLU."""
        if choices.groups is not None:
            assert choices.groups.small or not geglu
            self._grouped(tape, matrix, choices, choices.groups, source, y, weights, geglu=geglu)
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
        *,
        geglu: bool,
    ) -> None:
        rows, slots, experts = choices.rows, choices.slots, choices.experts
        per_expert = matrix.rows // experts
        share = slots if weights is None else 1
        rounded = self._rounded(tape, matrix, rows * slots // share, source, groups.rounded)
        if groups.small:
            form, _ = middle_form(self.device, SMALL, matrix.rows, matrix.blocks, quick=rounded is not None)
        else:
            form = tile_shape(groups.tall) | ({} if rounded is None else {"QUICK": True})
        constants = form | {"TYPE": matrix.planes.reader, "EXPERTS": True, "WEIGHTED": weights is not None}
        constants["GEGLU"] = geglu
        across = [-(-per_expert // form.get("COLUMNS", 64)), Groups.count(rows, slots, experts, groups.tall)]
        for part in matrix.parts:
            bindings: dict[str, Binding] = {**part.bindings(), "y": y, "order": groups.order, "tiles": groups.tiles}
            if weights is not None:
                bindings["weights"] = weights
            params = {"blocks": matrix.blocks, "n": per_expert, "rows": rows * slots}
            params |= {"y_stride": per_expert // (2 if geglu else 1), "y_offset": 0}
            params |= {"share": share, **part.experts(per_expert)}
            if groups.small:
                tape.run("middle", across, {**bindings, "x": rounded or source}, params, constants)
            elif rounded is None:
                tape.run("tile", across, {**bindings, "x": source}, params, constants)
            else:
                tape.run("tile_bytes", across, {**bindings, "bytes": rounded}, params, constants)

    def settle(
        self, tape: Tape, rows: int, source: Residual, room: Buffer | None = None, *, fine: bool = False
    ) -> Buffer:
        """Computes the input into its own buffer, and its bytes into `room`."""
        columns = source.columns
        constants = {"THREADS": self.threads, **source.form(columns, self.threads)}
        bindings: dict[str, Binding] = {**source.bindings(), "x": source.x}
        if room is not None:
            constants |= {"ROUNDS": True, "FINE": fine}
            bindings["bytes"] = room
        params = {"blocks": columns // 32, **source.params(rows, self.eps)}
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
            bindings["x"] = source.x if isinstance(source, Rounded) else source
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

    def _tiles(self, tape: Tape, matrix: Matrix, rows: int, source: Input, result: Result) -> int:
        low, capped = result.low is not None, result.then == "SOFTCAP"
        middle = self._in_the_middle(matrix, rows, result)
        if middle and not low:
            return self._middle(tape, matrix, rows, source, result)
        x = self.settled(tape, rows, source)
        place = Destination(result.y, result.stride or matrix.rows, result.offset)
        product = result.then in ("GEGLU", "PLE")  # needs another kernel
        if product:
            assert result.bare is not None
            place = Destination(result.bare, matrix.rows)
        if middle:
            bare = replace(
                result, y=place.y, stride=place.stride, offset=place.offset, then="", side=None, leaves=False
            )
            self._middle(tape, matrix, rows, x, bare)
        elif result.then == "SCALE" or (capped and not low):
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
        return 0

    def _is_small(self, matrix: Matrix, rows: int, result: Result, *, makes: bool) -> bool:
        """Whether matvec.wgsl computes this product: of a few rows, and with rounded inputs of more if that is little
        work. `makes`: the input is made on the fly."""
        fewest, most = self.middle
        if result.low is not None or not self._rounds(matrix, result) or not fewest <= rows <= most:
            return rows <= self.few
        return rows * matrix.rows * matrix.blocks <= self.work[makes]

    def _in_the_middle(self, matrix: Matrix, rows: int, result: Result) -> bool:
        """Whether middle.wgsl computes this product, if it is too large for matvec.wgsl."""
        if result.then == "SCALE":
            return False
        return rows <= (self.middle[1] if self._rounds(matrix, result) else self.exact_middle)

    def _rounds(self, matrix: Matrix, result: Result) -> bool:
        """Whether a product with up to 64 rows rounds its input, given room for it."""
        return result.bytes is not None and self.quick and matrix.planes.quick and rounds_many(self.device)

    def settled(self, tape: Tape, rows: int, source: Input) -> Binding:
        """The input as f32 numbers in memory."""
        if isinstance(source, Residual):
            return self.settle(tape, rows, source)
        return source.x if isinstance(source, Rounded) else source

    def _prepared(
        self, tape: Tape, matrices: tuple[Matrix, ...], rows: int, source: Input, result: Result
    ) -> Rounded | Binding:
        """The input of middle.wgsl, in bytes as well if a product with one of the matrices rounds it."""
        room, fine = result.bytes, result.fine
        if room is None or not any(self._rounds(matrix, result) for matrix in matrices):
            return self.settled(tape, rows, source)
        if isinstance(source, Rounded):
            return source
        if isinstance(source, Residual) and self.device.lanes("norm") > 1:
            return Rounded(self.settle(tape, rows, source, room=room, fine=fine), room, fine)
        x = self.settled(tape, rows, source)
        self._to_bytes(tape, rows * matrices[0].blocks, x, room, fine=fine)
        return Rounded(x, room, fine)

    def _middle(self, tape: Tape, matrix: Matrix, rows: int, source: Input, result: Result) -> int:
        """The product of 2 to 64 rows, with GEGLU, PLE or SOFTCAP fused, or in partial sums: how many it leaves."""
        quick = self._rounds(matrix, result)
        given = self._prepared(tape, (matrix,), rows, source, result)
        assert not isinstance(given, Rounded) or given.fine == result.fine
        x = (given.bytes if quick else given.x) if isinstance(given, Rounded) else given
        each = 2 if result.then == "GEGLU" else 1  # rows of W for one result
        most = result.parts.size // (4 * rows * matrix.rows) if result.parts and not result.then else 1
        form, shares = middle_form(
            self.device, rows, matrix.rows, matrix.blocks, quick=quick, fine=result.fine, most=most
        )
        if result.rounds:
            form = rounding_form(self.device, rows, matrix.rows) or form
        constants = form | {"TYPE": matrix.planes.reader} | ({result.then: True} if result.then else {})
        place = Destination(result.y, result.stride or matrix.rows // each, result.offset)
        goal = Destination(result.parts, matrix.rows) if result.parts and shares > 1 else place
        for part in matrix.parts:
            params: dict[str, float] = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
            params |= {"y_stride": goal.stride, "y_offset": goal.offset + part.first // each}
            params |= result.params(part.first)
            bindings: dict[str, Binding] = {**result.bindings(), **part.bindings(), "x": x, "y": goal.y}
            if result.rounds:
                bindings["bytes"] = bindings.pop("y")
            grid = [-(-part.rows // form["COLUMNS"]), -(-rows // form["ROWS"]), shares]
            tape.run("middle", grid, bindings, params, constants)
        if goal is place:
            return 0
        if result.leaves:
            return shares
        self._add_up(tape, matrix, rows, shares, goal.y, place)
        return 0

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
            self._add_up(tape, matrix, rows, shares, goal.y, place)

    def _add_up(self, tape: Tape, matrix: Matrix, rows: int, shares: int, parts: Binding, place: Destination) -> None:
        params = {"n": matrix.rows, "rows": rows, "shares": shares}
        params |= {"y_stride": place.stride, "y_offset": place.offset}
        tape.run("add_up", [-(-matrix.rows // 256), rows], {"parts": parts, "y": place.y}, params)

    def _rounded(self, tape: Tape, matrix: Matrix, rows: int, x: Binding, rounded: Buffer | None) -> Buffer | None:
        """The 8-bit input of many rows, or None if the product does not round."""
        if rounded is None or not (self.quick and matrix.planes.quick and rounds_many(self.device)):
            return None
        self._to_bytes(tape, rows * matrix.blocks, x, rounded)
        return rounded

    def _to_bytes(self, tape: Tape, blocks: int, x: Binding, room: Buffer, *, fine: bool = False) -> None:
        groups = -(-blocks // 64)
        high = -(-groups // self.device.limits.workgroups)
        grid = [-(-groups // high), high]
        tape.run("to_bytes", grid, {"x": x, "bytes": room}, {"blocks": blocks}, {"FINE": fine})

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
