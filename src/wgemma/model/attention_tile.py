"""Attention of many rows, recorded: queries that share a KV head go over its keys together.

Many rows have workgroups enough to keep a GPU busy. Where they have not, their history is cut into splits as that of
few rows is, as far as `partial` has room for them (kernels/attention_tile.wgsl).
"""

from typing import TYPE_CHECKING, Any

from wgemma.gpu.device import Binding, Device
from wgemma.model.cache import Segment
from wgemma.model.config import LayerConfig
from wgemma.model.forms import FULL_GRID
from wgemma.model.text import Layer, TextWeights

if TYPE_CHECKING:
    from wgemma.model.decoder import Pass, Scratch

QUERIES = 32  # of a workgroup
KEYS = 64  # at a time
WIDEST = 512  # head that a workgroup has threads for
MOST_SPLITS = 16  # that a row's history is cut into
LEAST_TURNS = 2  # of KEYS, that a split is worth


def fits(device: Device, head: int) -> bool:
    """Whether the kernel can do heads of this size here, and is better at it than attention.wgsl."""
    return not device.compact and head % 8 == 0 and head <= WIDEST


def tile_form(device: Device, head: int, *, f16: bool) -> dict[str, Any]:
    """How attention_tile.wgsl shares out heads of this size: wide slices where there is memory for them and threads
    enough to bring them."""
    large = head > 256 and device.limits.workgroup_memory >= 32 << 10
    return tile_shape(head, f16=f16, across=64 if large else 32)


def tile_shape(head: int, *, f16: bool, each: int = 1, across: int = 32, batch: int = 4) -> dict[str, Any]:
    """The constants where a thread has `each` eights of the output, slices of a head are `across` wide, and the values
    of `batch` keys are fetched at once."""
    threads = max(-(-head // (2 * each) // 64), 1) * 64
    per_word = 8 if f16 else 4
    loads = (QUERIES * across // 4, KEYS * across // per_word)  # of a slice: queries and keys
    return {
        "HEAD": head,
        "WORD": "vec4<u32>" if f16 else "vec4<f32>",
        "PER_WORD": per_word,
        "F16_CACHE": f16,
        "THREADS": threads,
        "PARTS": threads // 64,
        "EACH": each,
        "SLICE": across,
        "BATCH": batch,
        "QUERY_LOADS": -(-loads[0] // threads),
        "KEY_LOADS": -(-loads[1] // threads),
        "RAGGED": head % across > 0 or any(count % threads for count in loads),
    }


def tiles_of(config: LayerConfig, rows: int) -> int:
    """Workgroups that so many rows keep busy, of one KV head."""
    return -(-rows * (config.heads // config.kv_heads) // QUERIES)


def splits_of(config: LayerConfig, rows: int, reach: int, most: int = MOST_SPLITS) -> int:
    """The pieces that a history of `reach` keys is cut into, none of them for nothing."""
    turns = -(-reach // KEYS)
    wanted = min(FULL_GRID // (tiles_of(config, rows) * config.kv_heads), turns // LEAST_TURNS, most)
    return -(-turns // -(-turns // max(wanted, 1)))


def split_of(keys: int, splits: int) -> int:
    """Keys of each split, in whole turns; the last one takes what is left."""
    return -(-keys // (splits * KEYS)) * KEYS


def partial_room(device: Device, config: LayerConfig, rows: int) -> int:
    """Numbers that `partial` has for all the splits that passes of up to so many rows would like."""
    pieces = most = rows * config.heads
    if fits(device, config.head_dim):
        pieces = max(most, min(MOST_SPLITS * most, QUERIES * FULL_GRID))
    return pieces * (config.head_dim + 2)


def look(
    p: "Pass", weights: TextWeights, scratch: "Scratch", layer: Layer, segments: list[Segment], most: int = MOST_SPLITS
) -> int:
    """What the rows' queries find in the cache goes to `attended`. Gives back in how many pieces it is, at most `most`:
    if they are several they lie in `partial`, for attention_join.wgsl."""
    config, attended, partial = layer.config, scratch["attended"], scratch["partial"]
    _make_queries(p, weights, scratch, layer)
    reach = min(p.depth, config.window + QUERIES) if config.window else p.depth
    room = partial.size // (4 * p.rows * config.heads * (config.head_dim + 2))
    splits = 1 if p.cache.packed else splits_of(config, p.rows, reach, min(room, most, MOST_SPLITS))
    constants = {
        **tile_form(p.tape.device, config.head_dim, f16=p.cache.kv == "f16"),
        "PACKED" if p.cache.packed else "CARRIED": True,
    }
    for i, segment in enumerate(segments):
        keys = reach if config.sliding else min(segment.count, p.depth - segment.first)
        params = {
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "rows": p.rows,
            "window": config.window or 0,
            "ring": p.cache.ring if config.sliding else 1 << 31,
            "first": segment.first,
            "count": segment.count,
            "splits": splits,
            "split": split_of(keys, splits),
            "resumes": i > 0,
            "final_segment": i == len(segments) - 1,
        }
        bindings: dict[str, Binding] = {"rows": p.row_buffer, "q": attended, "partial": partial}
        bindings |= {"keys": segment.keys, "values": segment.values}
        grid = [tiles_of(config, p.rows), config.kv_heads, splits]
        p.tape.run("attention_tile", grid, bindings, params, constants)
    return splits


def _make_queries(p: "Pass", weights: TextWeights, scratch: "Scratch", layer: Layer) -> None:
    """The queries as the keys meet them, where their results will be."""
    config = layer.config
    bindings: dict[str, Binding] = {"rows": p.row_buffer, "q_raw": scratch["qkv"], "norm": layer.attention.q_norm}
    bindings |= {"turns": weights.turns[config.sliding], "q": scratch["attended"]}
    constants = {"HEAD": config.head_dim, "PAIRS": weights.pairs[config.sliding], "THREADS": 64}
    params = {"stride": layer.attention.width, "eps": weights.config.eps}
    p.tape.run("queries", [config.heads, p.rows], bindings, params, constants)
