"""Records attention for many rows of one sequence: queries that share a KV head go over its keys together.

Many rows usually have enough workgroups to fill a GPU. If not, their history is split like that of a few rows, as far
as `partial` has room (kernels/attention_tile.wgsl). A software adapter has a kernel of its own
(kernels/attention_direct.wgsl).
"""

from typing import Any

from wgemma.gpu.device import Binding, Device
from wgemma.model.cache import CacheSegment
from wgemma.model.config import LayerConfig
from wgemma.model.forms import FULL_GRID, passing_form
from wgemma.model.passes import Activations, Pass
from wgemma.model.text import TextLayer, TextWeights

QUERIES = 32  # per workgroup
KEYS = 64  # at a time
WIDEST = 512  # largest head a workgroup has threads for
MOST_SPLITS = 16  # per row
LEAST_TURNS = 2  # of KEYS, per split
DIRECT_EACH = 2  # queries per thread, on a software adapter
DIRECT_KEYS = 64  # at a time, on a software adapter


def fits(device: Device, head: int, *, packed: bool = False) -> bool:
    """Whether the kernels support heads of this size on this device and are faster than attention.wgsl."""
    if device.compact:
        lanes = passing_form(device, "attention_direct")["LANES"]
        return not packed and lanes > 1 and head % (8 * lanes) == 0
    return head % 8 == 0 and head <= WIDEST


def tile_form(device: Device, head: int, *, f16: bool) -> dict[str, Any]:
    """How attention_tile.wgsl divides heads of this size: into wide slices if there is memory for them and enough
    threads to load them."""
    large = head > 256 and device.limits.workgroup_memory >= 32 << 10
    return tile_shape(head, f16=f16, across=64 if large else 32)


def tile_shape(head: int, *, f16: bool, each: int = 1, across: int = 32, batch: int = 4) -> dict[str, Any]:
    """The constants for `each` eights of the output per thread, slices of a head `across` wide, and the values of
    `batch` keys fetched at once."""
    threads = max(-(-head // (2 * each) // 64), 1) * 64
    per_word = 8 if f16 else 4
    loads = (QUERIES * across // 4, KEYS * across // per_word)  # queries and keys of a slice
    return {
        "HEAD": head,
        "D": "D",
        "WORD": "vec4<u32>" if f16 else "vec4<f32>",
        "WORDS": "WORDS",
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


def direct_form(device: Device, *, f16: bool) -> dict[str, Any]:
    """How attention_direct.wgsl goes over heads of any size that fits."""
    return {
        "D": "(8u * params.eights)",
        "WORD": "vec4<u32>" if f16 else "vec4<f32>",
        "WORDS": "params.eights" if f16 else "(2u * params.eights)",
        "F16_CACHE": f16,
        "CARRIED": True,
        "DIRECT": True,
        "KEYS": DIRECT_KEYS,
        "EACH": DIRECT_EACH,
        **passing_form(device, "attention_direct"),
    }


def tiles_of(config: LayerConfig, rows: int) -> int:
    """Workgroups per KV head for this many rows."""
    return -(-rows * (config.heads // config.kv_heads) // QUERIES)


def splits_of(config: LayerConfig, rows: int, reach: int, most: int = MOST_SPLITS) -> int:
    """The pieces a history of `reach` keys is split into, none of them empty."""
    turns = -(-reach // KEYS)
    wanted = min(FULL_GRID // (tiles_of(config, rows) * config.kv_heads), turns // LEAST_TURNS, most)
    return -(-turns // -(-turns // max(wanted, 1)))


def split_of(keys: int, splits: int) -> int:
    """Keys per split, in whole turns; the last one takes the rest."""
    return -(-keys // (splits * KEYS)) * KEYS


def partial_words(device: Device, config: LayerConfig, rows: int) -> int:
    """Numbers in `partial`: enough for the preferred splits of passes of up to `rows` rows."""
    pieces = most = rows * config.heads
    if fits(device, config.head_dim) and not device.compact:
        pieces = max(most, min(MOST_SPLITS * most, QUERIES * FULL_GRID))
    return pieces * (config.head_dim + 2)


def look(
    p: Pass,
    weights: TextWeights,
    scratch: Activations,
    layer: TextLayer,
    segments: list[CacheSegment],
    most: int = MOST_SPLITS,
) -> int:
    """Attends to the cache; the result goes to `attended`. Returns the number of pieces, at most `most`; several pieces
    lie in `partial`, for attention_join.wgsl."""
    config, attended, partial, device = layer.config, scratch["attended"], scratch["partial"], p.tape.device
    f16 = p.cache.kv == "f16"
    _make_queries(p, weights, scratch, layer)
    reach = min(p.depth, config.window + QUERIES) if config.window else p.depth
    if device.compact:
        kernel, splits, constants = "attention_direct", 1, direct_form(device, f16=f16)
        tiles = -(-p.rows * (config.heads // config.kv_heads) // (constants["LANES"] * constants["EACH"]))
    else:
        kernel, room = "attention_tile", partial.size // (4 * p.rows * config.heads * (config.head_dim + 2))
        splits = 1 if p.cache.packed else splits_of(config, p.rows, reach, min(room, most, MOST_SPLITS))
        constants = tile_form(device, config.head_dim, f16=f16) | {"PACKED" if p.cache.packed else "CARRIED": True}
        tiles = tiles_of(config, p.rows)
    constants |= {"SEGMENTED": True} if len(segments) > 1 else {}
    for i, segment in enumerate(segments):
        params = {
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "rows": p.rows,
            "window": config.window or 0,
            **p.places(sliding=config.sliding),
            "first": segment.first,
            "count": segment.count,
            "splits": splits,
            "split": split_of(reach, splits),
            "resumes": i > 0,
            "final_segment": i == len(segments) - 1,
            **({"eights": config.head_dim // 8} if device.compact else {}),
        }
        bindings: dict[str, Binding] = {"rows": p.row_buffer, "q": attended, "partial": partial}
        bindings |= {"keys": segment.keys, "values": segment.values}
        p.tape.run(kernel, [tiles, config.kv_heads, splits], bindings, params, constants)
    return splits


def _make_queries(p: Pass, weights: TextWeights, scratch: Activations, layer: TextLayer) -> None:
    """Normed and rotated queries, written where their results will go."""
    config = layer.config
    bindings: dict[str, Binding] = {"rows": p.row_buffer, "q_raw": scratch["qkv"], "norm": layer.attention.q_norm}
    bindings |= {"turns": weights.turns[config.sliding], "q": scratch["attended"]}
    constants = {"HEAD": config.head_dim, "PAIRS": weights.pairs[config.sliding], "THREADS": 64}
    params = {"stride": layer.attention.width, "eps": weights.config.eps}
    p.tape.run("queries", [config.heads, p.rows], bindings, params, constants)
