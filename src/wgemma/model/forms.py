"""How the kernels of products share out their work: in tiles or among lanes, as suits the shape of a matrix, the rows
and a large GPU. Pure: what is recorded with it, model/matmul.py knows.
"""

import math
from typing import Any

from wgemma.gpu.device import Device
from wgemma.model.weights import Matrix

FEW = 8  # up to so many rows take the mat-vec path
THREADS = 256
FULL_GRID = 528  # workgroups that keep a large GPU busy
MATVEC_GRID = 396  # and of matvec.wgsl, each of which makes x: three for a multiprocessor of the largest
LARGE = 5 << 18  # blocks of a matrix that is large, so that its kernel may be longer
REDUCING = 2 << 10  # bytes of workgroup memory for sums over a workgroup (reduce.wgsl)
MOST_PAIRS = 2  # of a row of the residual stream that a thread of a mat-vec makes on the way
MOST_AHEAD = 64  # blocks of a long x that a workgroup of a mat-vec keeps in registers, for its next slice
NARROW = 512  # rows of a matrix up to which tall tiles would leave a large GPU idle
CROWDED = 1024  # rows from which on the tallest leave none idle, either
BUSY = 1000  # tiles that keep it busy without sharing their sums
SHARE = 12  # blocks of K that are worth a workgroup of their own


def tile_form(rows: int, n: int, narrow: int = NARROW) -> dict[str, Any]:
    """How tile.wgsl shares out so many rows with n results each: in tall tiles, if there are enough of them."""
    return tile_shape(32 if rows <= 32 or n <= narrow else 64)


def tower_tile_form(device: Device, rows: int, n: int) -> dict[str, Any]:
    """The same of a tower, which has so many rows that there are enough of the tallest."""
    return tile_shape(128) if rows >= CROWDED and _has_room_for_tallest(device) else tile_form(rows, n)


def tile_back_form(device: Device, rows: int) -> dict[str, Any]:
    """The same of tile_back.wgsl, which likes taller tiles."""
    if rows <= 32:
        return tile_shape(32)
    return tile_shape(128 if rows > 64 and _has_room_for_tallest(device) else 64)


def _has_room_for_tallest(device: Device) -> bool:
    return device.limits.workgroup_memory >= 24 << 10


def tile_shape(tall: int) -> dict[str, Any]:
    """The constants of a tile of so many rows."""
    bands = 1 if tall == 32 else 2  # of four rows each, per thread
    return {"ROWS": tall, "THREADS": max(tall, 64), "EACH": 4 * bands, "BANDS": bands}


def tile_shares(tiles: int, blocks: int, room: int, *, busy: int = BUSY, share: int = SHARE) -> int:
    """How many workgroups share K in each of so many tiles: four if a large GPU would idle otherwise, eight if it would
    even then; but only where K is long enough for all of them, and no more than there is room for."""
    if tiles >= busy or blocks < 4 * share:
        return 1
    shares = 8 if 8 * tiles <= FULL_GRID and blocks >= 8 * share else 4
    while shares > max(room, 1):
        shares //= 2
    return shares


def large_from(makes: bool, large: int = LARGE) -> int:
    """The blocks from which on a matrix is large: more if its kernel `makes` x on the way, and is long already."""
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
    """How matvec.wgsl, or `kernel`, shares out the rows of a matrix: among so many lanes that each has a few blocks of
    a row, with as few turns and as few blocks past the row's end as can be. A lane has one block in flight: with
    more the kernel would be longer, and a token goes through so many kernels that a GPU fetches each of them anew. Of a
    large matrix it has two, where that hardly counts any more. `rows` is how many of the matrix are used, if not all,
    and `most` how many lanes there may be."""
    blocks, planes = matrix.blocks, matrix.planes
    quick = quick and planes.quick and device.lanes(kernel) > 1
    shares = 8 * THREADS // min(8, device.lanes(kernel))  # bytes for a row's sums, where they lie furthest apart
    room = min(device.limits.workgroup_memory, 32 << 10) - REDUCING - shares
    slices = room // ((76 if fine else 44) if quick else 144)  # blocks of x that fit
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
    """The constants for so many lanes with so many blocks of a row each, and room for `slices` blocks of x."""
    step = lanes * depth
    turns = -(-matrix.blocks // step)
    if matrix.blocks > slices:
        slices = max(step, min(slices, MOST_AHEAD))
    slice_turns = -(-turns // -(-turns // (slices // step)))  # all slices alike, or nearly so
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
    """Workgroups for `rows` rows: no more than fill a large GPU, and all with the same number of rows, or nearly so."""
    sets: int = -(-rows * form["LANES"] // (2 * THREADS))
    return -(-sets // -(-sets // MATVEC_GRID))


def pairs(columns: int, threads: int = THREADS) -> int:
    """Pairs of vectors that a thread keeps of a row of the residual stream (kernels/residual.wgsl)."""
    return -(-columns // (8 * threads))
