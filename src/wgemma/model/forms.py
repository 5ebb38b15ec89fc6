"""How matmul kernels divide their work, in tiles or among lanes, depending on the matrix, the rows and the device.
Pure functions; model/matmul.py records the kernels.
"""

import math
from typing import Any, NamedTuple

from wgemma.gpu.device import Device
from wgemma.model.weights import Matrix

FEW = 8  # up to this many rows take the mat-vec path
THREADS = 256
FULL_GRID = 528  # workgroups that fill a large GPU
MATVEC_GRID = 396  # for matvec.wgsl, where each workgroup computes x: three per multiprocessor of the largest GPU
LARGE = 5 << 18  # blocks from which a matrix is large, so that its kernel may be longer
REDUCING = 2 << 10  # bytes of workgroup memory for sums over a workgroup (reduce.wgsl)
MOST_PAIRS = 2  # pairs of a residual row that a mat-vec's thread computes on the fly
MOST_AHEAD = 64  # blocks of a long x that a mat-vec's workgroup prefetches into registers, for its next slice
NARROW = 512  # up to this many matrix rows, tall tiles would leave a large GPU idle
CROWDED = 1024  # from this many rows on, the tallest tiles fill it, too
DIRECT_ROWS = 32  # rows of x per thread of direct.wgsl
BUSY = 1000  # tiles that fill it without splitting K
SHARE = 12  # blocks of K worth a workgroup
MIDDLE = (4, 64)  # the fewest and the most rows that middle.wgsl takes with rounded inputs, if there is enough work
# Rows of x times blocks of W up to which matvec.wgsl is as fast, though it reads W once per row; more if it makes x on
# the fly, which saves a dispatch.
WORK, MADE_WORK = 1 << 22, 3 << 21
EXACT_MIDDLE = 16  # the most it takes with f32 inputs, which start where the mat-vec path ends
MIDDLE_GRID = 256  # tiles that fill a large GPU, two per multiprocessor: with fewer, smaller ones are tried
ROUNDING_GRID = 192  # tiles that are enough where a tile rounds its results, which saves a dispatch
MIDDLE_SHARE = 4  # batches of K worth a workgroup
MIDDLE_LONG = 96  # blocks of K from which sharing it beats smaller tiles
MIDDLE_ROOM = 24 << 10  # bytes of workgroup memory it takes at most: more would leave room for too few workgroups
GROUPED = (33, 64)  # rows whose experts are grouped into small tiles
SMALL = 8  # rows of one expert in such a tile


class Middle(NamedTuple):
    """A tile of middle.wgsl: rows × columns, `each` rows per thread, K shared by `crews` with `depth` blocks each."""

    rows: int
    each: int
    columns: int
    crews: int
    depth: int = 1


# By the most rows: the largest tile first, which decodes a block of W least often, then what fills a GPU with a narrow
# matrix.
QUICK_MIDDLES = {
    4: (Middle(4, 2, 32, 8), Middle(4, 4, 16, 16)),
    8: (Middle(8, 4, 32, 8), Middle(8, 4, 16, 8)),
    16: (Middle(16, 8, 64, 4), Middle(16, 8, 32, 4), Middle(8, 4, 16, 8)),
    32: (Middle(32, 8, 64, 2), Middle(32, 8, 32, 4), Middle(16, 8, 32, 4), Middle(8, 4, 16, 8)),
    64: (
        *(Middle(64, 8, 64, 1, 2), Middle(32, 8, 64, 2), Middle(32, 8, 32, 4)),
        *(Middle(16, 8, 32, 4), Middle(8, 4, 16, 8)),
    ),
}
# The tile of a narrow matrix whose K is shared.
QUICK_SHARED = {4: Middle(4, 2, 32, 8), 8: Middle(8, 4, 16, 8), 16: Middle(16, 4, 32, 4), 32: Middle(32, 8, 64, 2)}
QUICK_SHARED[64] = Middle(64, 8, 32, 2)
# Tiles whose results are whole blocks, so that they can be rounded: GEGLU makes 32 of 64 columns.
QUICK_ROUNDING = {
    4: (Middle(4, 4, 64, 4),),
    8: (Middle(8, 8, 64, 4),),
    16: (Middle(16, 8, 64, 4),),
    32: (Middle(32, 8, 64, 2), Middle(16, 8, 64, 4)),
    64: (Middle(64, 8, 64, 1, 2), Middle(32, 8, 64, 2)),
}
EXACT_MIDDLES = {
    8: (Middle(8, 4, 32, 2),),
    16: (Middle(16, 4, 64, 1), Middle(8, 4, 32, 2)),
    32: (Middle(32, 8, 64, 1), Middle(16, 4, 64, 1)),
    64: (Middle(64, 8, 32, 1), Middle(32, 8, 64, 1)),
}
EXACT_SHARED = {8: Middle(8, 4, 32, 2), 16: Middle(16, 4, 64, 1), 32: Middle(32, 8, 64, 1), 64: Middle(64, 8, 32, 1)}


def tile_form(rows: int, n: int, narrow: int = NARROW) -> dict[str, Any]:
    """How tile.wgsl divides `rows` rows with n results each: into tall tiles, if there are enough of them."""
    return tile_shape(32 if rows <= 32 or n <= narrow else 64)


def tower_tile_form(device: Device, rows: int, n: int) -> dict[str, Any]:
    """The same for a tower, which may have enough rows for the tallest tiles."""
    return tile_shape(128) if rows >= CROWDED and _has_room_for_tallest(device) else tile_form(rows, n)


def tile_back_form(device: Device, rows: int) -> dict[str, Any]:
    """The same for tile_back.wgsl, which is faster with taller tiles."""
    if rows <= 32:
        return tile_shape(32)
    return tile_shape(128 if rows > 64 and _has_room_for_tallest(device) else 64)


def _has_room_for_tallest(device: Device) -> bool:
    return device.limits.workgroup_memory >= 24 << 10


def tile_shape(tall: int) -> dict[str, Any]:
    """The constants of a tile of `tall` rows."""
    bands = 1 if tall == 32 else 2  # of four rows each, per thread
    return {"ROWS": tall, "THREADS": max(tall, 64), "EACH": 4 * bands, "BANDS": bands}


def passing_form(device: Device, kernel: str) -> dict[str, Any]:
    """How many threads of a software adapter's kernel pass around what they load (pass_around.wgsl); one if this went
    wrong in direct.wgsl, which the self-test tries."""
    lanes = min(device.lanes(kernel), device.lanes("direct"), 8)
    return {"LANES": lanes, "PASSED": lanes > 1, "THREADS": lanes if lanes > 1 else 16}


def direct_form(device: Device) -> dict[str, Any]:
    """How direct.wgsl divides its work."""
    form = passing_form(device, "direct")
    return form | {"EACH": DIRECT_ROWS, "TURNS": 8 // form["LANES"]}


def direct_grid(n: int, rows: int, form: dict[str, Any]) -> list[int]:
    """The grid of direct.wgsl for `rows` rows with n results each."""
    return [-(-n // (4 * form["THREADS"])), -(-rows // form["EACH"])]


def tile_shares(tiles: int, blocks: int, room: int, *, busy: int = BUSY, share: int = SHARE) -> int:
    """Workgroups that split K in each tile: four if a large GPU would idle otherwise, eight if even four would not fill
    it; but only if K is long enough, and no more than there is room for."""
    if tiles >= busy or blocks < 4 * share:
        return 1
    shares = 8 if 8 * tiles <= FULL_GRID and blocks >= 8 * share else 4
    while shares > max(room, 1):
        shares //= 2
    return shares


def middle_form(
    device: Device, rows: int, n: int, blocks: int, *, quick: bool, fine: bool = False, most: int = 1
) -> tuple[dict[str, Any], int]:
    """How middle.wgsl divides `rows` rows with n results each, and how many workgroups share a tile's K, `most` at
    most: several if the largest tile does not fill a large GPU, and K is long or no smaller tile does either."""
    table, shared = (QUICK_MIDDLES, QUICK_SHARED) if quick else (EXACT_MIDDLES, EXACT_SHARED)
    size = min(size for size in table if rows <= size)
    form = middle_shape(device, shared[size], quick=quick, fine=fine)
    filling = -(-FULL_GRID // middle_tiles(shared[size], rows, n))
    shares = min(most, filling, blocks // (MIDDLE_SHARE * form["CREWS"] * form["DEPTH"]))
    whole = table[size][:1] if shares > 1 and blocks >= MIDDLE_LONG else table[size]
    full = next((middle for middle in whole if middle_tiles(middle, rows, n) >= MIDDLE_GRID), None)
    if full is None and shares > 1:
        return form, shares
    return middle_shape(device, full or table[size][-1], quick=quick, fine=fine), 1


def rounding_form(device: Device, rows: int, n: int) -> dict[str, Any] | None:
    """How middle.wgsl divides its work if it rounds the results of GEGLU; None if that would leave a large GPU idle."""
    middles = QUICK_ROUNDING[min(size for size in QUICK_ROUNDING if rows <= size)]
    middle = next((middle for middle in middles if middle_tiles(middle, rows, n) >= MIDDLE_GRID), middles[-1])
    if n % 64 or middle_tiles(middle, rows, n) < ROUNDING_GRID:
        return None
    return rounding_shape(device, middle)


def rounding_shape(device: Device, middle: Middle) -> dict[str, Any]:
    """The constants of such a tile, with room for the results."""
    form = middle_shape(device, middle, quick=True)
    return form | {"ROUNDS": True, "ROOM": max(form["ROOM"], middle.rows * middle.columns // 4)}


def middle_tiles(middle: Middle, rows: int, n: int) -> int:
    """How many tiles it takes."""
    return -(-n // middle.columns) * -(-rows // middle.rows)


def middle_shape(device: Device, middle: Middle, *, quick: bool, fine: bool = False) -> dict[str, Any]:
    """The constants of a tile of middle.wgsl, with fewer crews where they would not fit into workgroup memory."""
    rows, each, columns, crews, depth = middle
    w_parts, x_parts = (3, 5 if fine else 3) if quick else (9, 8)  # vectors per block
    block = (columns + 1) * w_parts + rows * x_parts
    limit = min(MIDDLE_ROOM, device.limits.workgroup_memory) // 16
    while crews * depth > 1 and crews * depth * block > limit:
        crews, depth = (crews, depth // 2) if depth > 1 else (crews // 2, depth)
    batch, threads = crews * depth, rows // each * columns // 4 * crews
    return {
        "ROWS": rows,
        "EACH": each,
        "COLUMNS": columns,
        "CREWS": crews,
        "DEPTH": depth,
        "THREADS": threads,
        "W_PARTS": w_parts,
        "X_PARTS": x_parts,
        "W_EACH": -(-columns * batch // threads),
        "X_EACH": -(-rows * batch * x_parts // threads),
        "ROOM": max(batch * block, crews // 2 * rows * columns // 4),
        **({"QUICK": True, "FINE": fine} if quick else {}),
    }


def large_from(makes: bool, large: int = LARGE) -> int:
    """Blocks from which a matrix is large: more if its kernel `makes` x on the fly and so is long already."""
    return large * 7 // 5 if makes else large


def matvec_form(
    device: Device,
    matrix: Matrix,
    kernel: str = "matvec",
    *,
    quick: bool = False,
    fine: bool = False,
    rows: int = 0,
    large: int = LARGE,
    most: int = 64,
) -> dict[str, Any]:
    """How matvec.wgsl, or `kernel`, divides the rows of a matrix: among enough lanes that each has a few blocks of a
    row, with as few turns and as few blocks past the row's end as possible. A lane has one block in flight: more would
    make the kernel longer, and a token runs so many kernels that a GPU fetches each one's code anew. For a large
    matrix, where that hardly matters, it has two. `rows` is how many rows of the matrix are used, if not all; `most`
    limits the lanes."""
    blocks, planes = matrix.blocks, matrix.planes
    quick = quick and planes.quick and device.lanes(kernel) > 1
    shares = 8 * THREADS // min(8, device.lanes(kernel))  # bytes for a row's sums, at most
    room = min(device.limits.workgroup_memory, 32 << 10) - REDUCING - shares
    slices = room // ((76 if fine else 44) if quick else 144)  # blocks of x that fit into workgroup memory
    wanted = max(8, min(64, blocks / 3))

    def cost(lanes: int) -> float:
        turns = -(-blocks // lanes)
        return turns * lanes / blocks + 0.1 * turns + 0.1 * abs(math.log2(lanes / wanted))

    rows = rows or matrix.rows
    step = min((8, 16, 32, 64), key=cost)
    depth = 2 if step > 8 and rows * blocks >= large else 1
    rounding = {"QUICK": True, "FINE": fine} if quick else {}
    return matvec_shape(device, matrix, min(most, step // depth), depth, slices, kernel) | rounding


def matvec_shape(
    device: Device, matrix: Matrix, lanes: int, depth: int, slices: int, kernel: str = "matvec"
) -> dict[str, Any]:
    """The constants for `lanes` lanes with `depth` blocks of a row each, and room for `slices` blocks of x."""
    step = lanes * depth
    turns = -(-matrix.blocks // step)
    if matrix.blocks > slices:
        slices = max(step, min(slices, MOST_AHEAD))
    slice_turns = -(-turns // -(-turns // (slices // step)))  # slices of nearly equal size
    within = min(lanes, device.lanes(kernel))
    return {
        "TYPE": matrix.planes.reader,
        "BLOCKS": matrix.blocks,
        "LANES": lanes,
        "DEPTH": depth,
        "SLICE": slice_turns * step,
        "SPAN": -(-slice_turns * step // 64),
        "WHOLE": slice_turns == turns,
        "WITHIN": within,
        "WIDE": within == lanes,
        "THREADS": THREADS,
    }


def matvec_groups(rows: int, form: dict[str, Any]) -> int:
    """Workgroups for `rows` rows: at most as many as fill a large GPU, all with nearly the same number of rows."""
    sets: int = -(-rows * form["LANES"] // (2 * THREADS))
    return -(-sets // -(-sets // MATVEC_GRID))


def pairs(columns: int, threads: int = THREADS) -> int:
    """Pairs of vectors of a residual row per thread (kernels/residual.wgsl)."""
    return -(-columns // (8 * threads))
