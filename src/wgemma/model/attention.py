"""Records attention: stores the rows' keys and values in the KV cache, then attends to it.

A few rows, or those of several sequences, split their history so that it fills a large GPU (attention_few.wgsl), and
join the pieces afterwards (attention_join.wgsl); many rows of one sequence are processed together (attention_tile.py).
"""

from typing import Any

from wgemma.gpu.device import Binding, Buffer, Device
from wgemma.model import attention_tile
from wgemma.model.cache import CacheSegment
from wgemma.model.config import LayerConfig
from wgemma.model.forms import FEW, THREADS
from wgemma.model.passes import Activations, Pass
from wgemma.model.rows import PAGE
from wgemma.model.text import TextLayer, TextWeights

SPLITS = 128  # the most pieces of all histories of a few rows together
SLIDING_SPLITS = 4  # the most pieces of a window; the next product joins them itself
DEEP = 4096  # from this depth on, heads that share keys read them together
CROWD = 8  # and from this many sequences on: their rows fill a large GPU
SHARE = 8  # the fewest lanes per key, if it has that many words: neighbours read one cache line
MOST = 32  # the most, if a subgroup has that many: fewer words per lane make a shorter kernel
EACH = 4  # the most words of a key per lane


def store(p: Pass, weights: TextWeights, scratch: Activations, layer: TextLayer, segments: list[CacheSegment]) -> None:
    """Stores the rows' keys and values in the cache."""
    attention, config, qkv = layer.attention, layer.config, scratch["qkv"]
    assert attention.k_norm is not None
    f16 = p.cache.kv == "f16"
    constants = {
        "HEAD": config.head_dim,
        "PAIRS": weights.pairs[config.sliding],
        "PAIR": "u32" if f16 else "vec2<f32>",
        "F16_CACHE": f16,
        "OWN_V": config.has_v,
        "THREADS": 64,
        **({"PACKED": True} if p.cache.packed else {}),
    }
    bindings: dict[str, Binding] = {"rows": p.row_buffer, "k_raw": qkv, "v_raw": qkv, "norm": attention.k_norm}
    bindings["turns"] = weights.turns[config.sliding]
    for segment in segments:
        params = {"kv_heads": config.kv_heads, "stride": attention.width, "eps": weights.config.eps}
        params |= {"k_offset": attention.k_offset, "v_offset": attention.v_offset}
        params |= {**p.places(sliding=config.sliding), "first": segment.first, "count": segment.count}
        bound = {**bindings, "keys": segment.keys, "values": segment.values}
        p.tape.run("kv", [config.kv_heads, p.rows], bound, params, constants)


def look(
    p: Pass,
    weights: TextWeights,
    scratch: Activations,
    layer: TextLayer,
    segments: list[CacheSegment],
    *,
    most: int = SPLITS,
    join: bool = True,
) -> int:
    """Attends to the cache; the result goes to `attended`. Without `join`, several pieces stay in `partial` and their
    number is returned, otherwise 0. `most` bounds the number of pieces."""
    config, device = layer.config, p.tape.device
    packed = p.cache.packed
    each = (p.rows <= FEW or p.several) and not packed  # row by row
    if not each and attention_tile.fits(device, config.head_dim, packed=packed):
        splits = attention_tile.look(p, weights, scratch, layer, segments, most)
        if splits > 1:
            put_together(p, scratch, config, splits)
        return 0
    f16 = p.cache.kv == "f16"
    few = each and not device.compact
    sequences = p.rows if p.several else 1
    form = few_form(device, config, p.depth, sequences, f16=f16) if few else many_form(device, f16=f16)
    constants = {
        "HEAD": config.head_dim,
        "PAIRS": weights.pairs[config.sliding],
        "WORD": "vec4<u32>" if f16 else "vec4<f32>",
        "PER_WORD": 8 if f16 else 4,
        "F16_CACHE": f16,
        **form,
        **({"PACKED": True} if packed else {}),
        **({"SEGMENTED": True} if len(segments) > 1 else {}),
    }
    room = scratch["partial"].size // (4 * p.rows * config.heads * (config.head_dim + 2))
    splits = min(most, room, splits_of(config, p.depth, keys_at_a_time(form), p.rows)) if each else 1
    bindings: dict[str, Binding] = {
        "rows": p.row_buffer,
        "q_raw": scratch["qkv"],
        "norm": layer.attention.q_norm,
        "turns": weights.turns[config.sliding],
        "partial": scratch["partial"],
        "out": scratch["attended"],
    }
    for i, segment in enumerate(segments):
        params = {
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "stride": layer.attention.width,
            "window": config.window or 0,
            **p.places(sliding=config.sliding),
            "first": segment.first,
            "count": segment.count,
            "splits": splits,
            "resumes": i > 0,
            "final_segment": i == len(segments) - 1,
            "eps": weights.config.eps,
        }
        bound = {**bindings, "keys": segment.keys, "values": segment.values}
        grid = [config.heads // form.get("HEADS", 1), p.rows, splits]
        p.tape.run("attention_few" if few else "attention", grid, bound, params, constants)
    if splits == 1:
        return 0
    if not join:
        return splits
    put_together(p, scratch, config, splits)
    return 0


def put_together(p: Pass, scratch: Activations, config: LayerConfig, splits: int, room: Buffer | None = None) -> None:
    """Joins the pieces in `partial` into `attended`, or in fine bytes into `room`."""
    grid = [config.heads, p.rows, slices(config.head_dim)]
    goal: dict[str, Binding] = {"out": scratch["attended"]} if room is None else {"bytes": room}
    constants = {"HEAD": config.head_dim, **({} if room is None else {"ROUNDS": True, "FINE": True})}
    p.tape.run("attention_join", grid, {"partial": scratch["partial"], **goal}, {"splits": splits}, constants)


def slices(head: int) -> int:
    """Workgroups of attention_join.wgsl per head."""
    return max(1, head // 64)


def splits_of(config: LayerConfig, depth: int, keys: int, rows: int = 1) -> int:
    """Pieces of each row's history of at most `depth`, each at least a turn of `keys`; for a window the number does not
    depend on the depth."""
    most = max(SPLITS // rows, 1)
    if config.sliding:
        return min(SLIDING_SPLITS, most, -(-(config.window or 0) // keys))
    return min(most, -(-depth // keys))


def in_pieces(config: LayerConfig) -> bool:
    """Whether a few rows attend to this layer's window in several pieces."""
    form = few_shape(config.head_dim, 1, 1, f16=True)
    return config.sliding and splits_of(config, 0, keys_at_a_time(form)) > 1


def keys_at_a_time(form: dict[str, Any]) -> int:
    """The smallest worthwhile split: for attention_few.wgsl, one turn."""
    return int(form["TURN"]) if "SHARE" in form else 2 * THREADS


def many_form(device: Device, *, f16: bool) -> dict[str, Any]:
    """The threads of attention.wgsl: each handles one key at a time; there are at least as many as words in a value."""
    threads = 64 if device.compact and f16 else 128
    return {"THREADS": threads, "TURN": threads}


def few_form(device: Device, config: LayerConfig, depth: int, sequences: int, *, f16: bool) -> dict[str, Any]:
    """How attention_few.wgsl divides its work for the rows of this many sequences."""
    dear = sequences >= CROWD or (not config.sliding and depth >= DEEP)
    together = heads_together(device, config.head_dim, config.heads // config.kv_heads) if dear else 1
    return few_shape(config.head_dim, together, device.lanes("attention_few"), f16=f16)


def heads_together(device: Device, head: int, shared: int) -> int:
    """How many of the heads that share keys fit into a workgroup's memory."""
    most = 4 if device.limits.workgroup_memory >= 32 << 10 else 2 if head >= 64 else 1
    return next(count for count in (4, 2, 1) if count <= most and shared % count == 0)


def few_shape(head: int, heads: int, lanes: int, *, f16: bool) -> dict[str, Any]:
    """The constants for heads of this size, `heads` at a time, in subgroups of at least `lanes`."""
    words = head // (8 if f16 else 4)
    share = min(max(SHARE, words // EACH, min(MOST, lanes)), words)
    each = words // share
    return {
        "THREADS": THREADS,
        "TURN": 4 * THREADS // share,
        "STRETCH": 4 * THREADS // share <= PAGE,
        "HEADS": heads,
        "SHARE": share,
        "EACH": each,
        "VALUES": 4 * each,
        "QUERIES": -(-heads * head // (4 * THREADS)),
        "WIDE": share <= lanes,
    }
