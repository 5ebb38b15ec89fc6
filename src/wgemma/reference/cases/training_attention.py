"""Cases of training's attention: kv and attention on packed rows, and the backward pass of both."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wgemma.gpu.device import Buffer
from wgemma.model.attention import many_form
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import Row
from wgemma.reference import attention_back_twins as back
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, Case, Lab, Outcome, case, framed, untouched
from wgemma.reference.twins import Array

BASE = 10_000.0
UNUSED = 0  # in a table of sequences: one unused row

Shape = dict[str, Any]


def cases() -> Iterator[Case]:
    small: Shape = {"head": 16, "heads": 4, "kv_heads": 2}
    middling: Shape = {"head": 64, "heads": 6, "kv_heads": 2}
    wide: Shape = {"head": 256, "heads": 8, "kv_heads": 1}
    widest: Shape = {"head": 512, "heads": 2, "kv_heads": 1, "pairs": 64}
    table: list[tuple[bool, Shape, tuple[int, ...], int]] = [
        (True, small, (3, 1, 9, UNUSED, 6, UNUSED, UNUSED), 5),
        (True, middling, (13, 20, UNUSED), 0),
        (True, wide, (21, 5), 8),
        (False, widest, (11, UNUSED, 2), 0),
        (False, {**small, "kv_heads": 4}, (40, 37, 1, 1), 1),
        (False, {**small, "heads": 2, "kv_heads": 1}, (150,), 70),
        (False, {"head": 24, "heads": 3, "kv_heads": 1, "pairs": 3}, (1, 30, UNUSED, 2), 16),
        (False, {"head": 128, "heads": 2, "kv_heads": 1}, (65, UNUSED), 0),
    ]
    for quick, shape, lengths, window in table:
        options = {**shape, "lengths": lengths}
        yield case(_kv, quick, "kv", **options)
        yield case(_attention, quick, "attention", **options, window=window)
        yield case(_attention_prepare, quick, **options)
        yield case(_attention_back, quick, **options, window=window)
        for add in (False, True):
            yield case(_attention_back_kv, quick, **options, window=window, add=add)
        for which in ("queries", "keys and values", "keys alone"):
            yield case(_kv_back, quick, **options, which=which)
    for extreme in ("zeros", "huge"):
        options = {**small, "lengths": (9, 4), "extreme": extreme}
        yield case(_attention, False, "attention", **options, window=5)
        yield case(_attention_prepare, False, **options)
        yield case(_attention_back, False, **options, window=5)
        yield case(_kv_back, False, **options, which="keys alone")


def _packed(lengths: Sequence[int]) -> list[Row]:
    """Sequences one after another, with unused rows between them."""
    rows = []
    for length in lengths:
        rows += [Row(1, t, 0, t) for t in range(length)] or [Row(0, 0)]
    return rows


def _turns(lab: Lab, rows: Sequence[Row], head: int, pairs: int) -> tuple[Buffer, Array]:
    """The rotary table on the device, and its angles."""
    positions = [row.position for row in rows]
    table = np.frombuffer(rotary_tables(BASE, head, pairs, None, max(positions) + 1), dtype="<f4")
    return lab.put(table), twins.angles(positions, BASE, head, pairs)


def _caches(lab: Lab, rows: Sequence[Row], kv_heads: int, head: int, extreme: str = "") -> tuple[Array, Array]:
    """Keys (in dot-product order, not yet in pairs) and values; NaN in slots no row wrote."""
    scale = 0.5 if head < 128 else 0.2
    keys, values = scale * lab.activations(2, len(rows), kv_heads, head, extreme=extreme)
    keys[_unused(rows)], values[_unused(rows)] = np.nan, np.nan
    return keys, values


def _unused(rows: Sequence[Row]) -> list[bool]:
    return [row.used == 0 for row in rows]


def _kv(lab: Lab, head: int, heads: int, kv_heads: int, lengths: Sequence[int], pairs: int = 0) -> Outcome:
    """PACKED: each row has its own slot; its position is used only for the angle."""
    rows, pairs = _packed(lengths), pairs or head // 2
    width = kv_heads * head
    stride, offset = 3 + 2 * width, 3
    raw, norm, (turns, angles) = lab.normal(len(rows), stride), lab.norms(head), _turns(lab, rows, head, pairs)
    k_raw, v_raw = (raw[:, at : at + width].reshape(-1, kv_heads, head) for at in (offset, offset + width))
    constants = {"HEAD": head, "PAIRS": pairs, "PAIR": "vec2<f32>", "F16_CACHE": False, "OWN_V": True, "THREADS": 64}
    given, keys, values = lab.put(raw), lab.out(len(rows) * width), lab.out(len(rows) * width)
    bindings = {"rows": lab.put_rows(rows), "k_raw": given, "v_raw": given, "norm": lab.put(norm), "turns": turns}
    params = {"kv_heads": kv_heads, "stride": stride, "k_offset": offset, "v_offset": offset + width, "eps": EPS}
    params |= {"table": 0, "table_step": 0, "first": 0, "count": len(rows)}
    bound = {**bindings, "keys": keys, "values": values}
    lab.run("kv", [kv_heads, len(rows)], bound, params, constants | {"PACKED": True})
    expected = [np.array(made) for made in twins.kv(k_raw, v_raw, norm, angles, EPS)]
    for made in expected:
        made[_unused(rows)] = untouched(1)
    return Outcome((lab.read(keys), lab.read(values)), (framed(expected[0]), framed(expected[1])), F32)


def _attention(
    lab: Lab,
    head: int,
    heads: int,
    kv_heads: int,
    lengths: Sequence[int],
    window: int,
    pairs: int = 0,
    extreme: str = "",
) -> Outcome:
    """PACKED: out, and in `partial` the logarithm of each row's sum."""
    rows, pairs = _packed(lengths), pairs or head // 2
    keys, values = _caches(lab, rows, kv_heads, head)
    stride = heads * head + 7
    raw = lab.activations(len(rows), stride, extreme=extreme)
    norm, (turns, angles) = 0.5 * lab.norms(head), _turns(lab, rows, head, pairs)
    out, lse = lab.out(len(rows) * heads * head), lab.out(len(rows) * heads)
    constants = {"HEAD": head, "PAIRS": pairs, "WORD": "vec4<f32>", "PER_WORD": 4, "F16_CACHE": False, "PACKED": True}
    bindings = {"rows": lab.put_rows(rows), "q_raw": lab.put(raw), "norm": lab.put(norm), "turns": turns}
    bindings |= {"keys": lab.put(twins.paired(keys)), "values": lab.put(values), "partial": lse, "out": out}
    params = {"heads": heads, "kv_heads": kv_heads, "stride": stride, "window": window, "eps": EPS}
    params |= {"table": 0, "table_step": 0, "first": 0, "count": len(rows)}
    params |= {"splits": 1, "resumes": False, "final_segment": True}
    lab.run("attention", [heads, len(rows)], bindings, params, constants | many_form(lab.device, f16=False))
    q = twins.turned(raw[:, : heads * head].reshape(-1, heads, head), norm, angles, EPS)
    expected = back.packed_attention(q, keys, values, rows, window)
    return Outcome((lab.read(out), lab.read(lse)), (framed(expected[0]), framed(expected[1])), F32)


def _attention_prepare(
    lab: Lab, head: int, heads: int, kv_heads: int, lengths: Sequence[int], pairs: int = 0, extreme: str = ""
) -> Outcome:
    """What is read in an unused row must not matter."""
    rows, pairs = _packed(lengths), pairs or head // 2
    stride = heads * head + 7
    raw = lab.activations(len(rows), stride, extreme=extreme)
    (out, d_out), lse = lab.normal(2, len(rows), heads, head), lab.normal(len(rows), heads)
    for each in (raw, out, d_out, lse):
        each[_unused(rows)] = np.nan
    norm, (turns, angles) = lab.norms(head), _turns(lab, rows, head, pairs)
    q = lab.out(len(rows) * heads * (head + 4))
    bindings = {"rows": lab.put_rows(rows), "q_raw": lab.put(raw), "norm": lab.put(norm), "turns": turns, "q": q}
    bindings |= {"out": lab.put(out), "d_out": lab.put(d_out), "lse": lab.put(lse)}
    constants = {"HEAD": head, "PAIRS": pairs, "THREADS": 64}
    params = {"heads": heads, "stride": stride, "eps": EPS}
    lab.run("attention_prepare", [heads, len(rows)], bindings, params, constants)
    queries = raw[:, : heads * head].reshape(-1, heads, head)
    expected = back.attention_prepare(queries, norm, angles, out, d_out, lse, rows, EPS)
    return Outcome((lab.read(q),), (framed(expected),), F32)


def _prepared(lab: Lab, q: Array, keys: Array, values: Array, d_out: Array, rows: Sequence[Row], window: int) -> Buffer:
    """`q` as attention_prepare leaves it: in pairs, followed by lse and delta; 0 in an unused row."""
    out, lse = back.packed_attention(q, keys, values, rows, window)
    tail = np.zeros((*lse.shape, 4))
    tail[..., 0], tail[..., 1] = lse, (twins.wide(d_out) * out).sum(axis=-1)
    made = np.concatenate([twins.paired(q), tail], axis=-1)
    made[_unused(rows)] = 0
    return lab.put(made)


def back_threads(head: int) -> int:
    """For attention_back and attention_back_kv: every thread has a vector of the sums, and every pair a thread."""
    return max(64, -(-head // 64) * 32)


def _looked(
    lab: Lab, head: int, heads: int, kv_heads: int, rows: Sequence[Row], window: int, extreme: str = ""
) -> tuple[dict[str, Buffer], tuple[Array, Array, Array]]:
    """The bindings of attention's two backward kernels, and their expected results."""
    q = lab.activations(len(rows), heads, head, extreme="" if extreme == "huge" else extreme)
    keys, values = _caches(lab, rows, kv_heads, head)
    d_out = lab.activations(len(rows), heads, head, extreme=extreme)
    expected = back.attention_back(q, keys, values, d_out, rows, window)
    d_out[_unused(rows)] = np.nan
    bindings = {"rows": lab.put_rows(rows), "q": _prepared(lab, q, keys, values, d_out, rows, window)}
    bindings |= {"keys": lab.put(twins.paired(keys)), "values": lab.put(values), "d_out": lab.put(d_out)}
    return bindings, expected


def _attention_back(
    lab: Lab,
    head: int,
    heads: int,
    kv_heads: int,
    lengths: Sequence[int],
    window: int,
    pairs: int = 0,
    extreme: str = "",
) -> Outcome:
    rows = _packed(lengths)
    bindings, (expected, _, _) = _looked(lab, head, heads, kv_heads, rows, window, extreme)
    dq = lab.out(expected.size)
    constants = {"HEAD": head, "THREADS": back_threads(head)}
    params = {"heads": heads, "kv_heads": kv_heads, "window": window, "rows": len(rows)}
    lab.run("attention_back", [heads, -(-len(rows) // 4)], {**bindings, "dq": dq}, params, constants)
    return Outcome((lab.read(dq),), (framed(twins.paired(expected)),), F32)


def _attention_back_kv(
    lab: Lab,
    head: int,
    heads: int,
    kv_heads: int,
    lengths: Sequence[int],
    window: int,
    add: bool,
    pairs: int = 0,
) -> Outcome:
    """Without `add`, previous values are overwritten, even NaN."""
    rows = _packed(lengths)
    bindings, (_, dk, dv) = _looked(lab, head, heads, kv_heads, rows, window)
    before = lab.normal(2, *dk.shape)
    goals = [lab.held(each) if add else lab.out(each.size) for each in before]
    expected = np.stack([twins.paired(dk), dv]) + add * before
    constants = {"HEAD": head, "THREADS": back_threads(head)}
    params = {"heads": heads, "kv_heads": kv_heads, "window": window, "rows": len(rows), "add": add}
    bound = {**bindings, "dk": goals[0], "dv": goals[1]}
    lab.run("attention_back_kv", [kv_heads, -(-len(rows) // 4)], bound, params, constants)
    return Outcome(tuple(lab.read(goal) for goal in goals), tuple(framed(each) for each in expected), F32)


def _kv_back(
    lab: Lab,
    head: int,
    heads: int,
    kv_heads: int,
    lengths: Sequence[int],
    which: str,
    pairs: int = 0,
    extreme: str = "",
) -> Outcome:
    """After three unrelated columns; with "keys alone" the values are computed from the keys, too."""
    rows, pairs = _packed(lengths), pairs or head // 2
    width = kv_heads * head
    stride, k_offset = 5 + 2 * width, 3
    v_offset = k_offset if which == "keys alone" else k_offset + width + 1
    raw = lab.activations(len(rows), stride, extreme=extreme)
    k_raw, v_raw = (raw[:, at : at + width].reshape(-1, kv_heads, head) for at in (k_offset, v_offset))
    dk, dv = lab.normal(2, len(rows), kv_heads, head)
    norm, (turns, angles) = lab.norms(head), _turns(lab, rows, head, pairs)
    from_k = back.turned_back(dk, k_raw, norm, angles, EPS)
    from_v = back.values_back(dv, v_raw, EPS)
    for each in (raw, dk, dv):
        each[_unused(rows)] = np.nan
    given, d_qkv = lab.put(raw), lab.out(raw.size)
    bindings = {"rows": lab.put_rows(rows), "k_raw": given, "v_raw": given, "norm": lab.put(norm), "turns": turns}
    bindings |= {"dk": lab.put(twins.paired(dk)), "dv": lab.put(dv), "d_qkv": d_qkv}
    constants = {"HEAD": head, "PAIRS": pairs, "THREADS": 64}
    constants |= {"QUERIES": which == "queries", "OWN_V": which == "keys and values"}
    params = {"kv_heads": kv_heads, "stride": stride, "k_offset": k_offset, "eps": EPS}
    params |= {} if which == "queries" else {"v_offset": v_offset}
    lab.run("kv_back", [kv_heads, len(rows)], bindings, params, constants)
    expected = untouched(len(rows), stride)
    expected[:, k_offset : k_offset + width] = from_k.reshape(len(rows), -1)
    if which == "keys and values":
        expected[:, v_offset : v_offset + width] = from_v.reshape(len(rows), -1)
    elif which == "keys alone":
        expected[:, k_offset : k_offset + width] += from_v.reshape(len(rows), -1)
    expected[_unused(rows)] = np.where(expected[_unused(rows)] == untouched(1), expected[_unused(rows)], 0)
    return Outcome((lab.read(d_qkv),), (framed(expected),), F32)
