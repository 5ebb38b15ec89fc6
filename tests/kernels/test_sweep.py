"""Every kernel does what its twin says, on three devices; and a kernel that does not is found out."""

from collections.abc import Callable, Iterator
from importlib.resources import files

import numpy as np
import pytest

from wgemma.gpu import shaders
from wgemma.gpu.native import NativeDevice, open_floor_device
from wgemma.model.planes import PLANES, TRAINABLE
from wgemma.reference.lab import UNTOUCHED, framed, relative_error
from wgemma.reference.sweep import cases, sweep

KERNELS = sorted({case.kernel for case in cases()})

DEVICES: dict[str, Callable[[], NativeDevice]] = {
    "floor": open_floor_device,
    "everything": lambda: NativeDevice(compact=False),
    "checked": lambda: NativeDevice(trusted=False, compact=False),
}


# Compiling is what takes the time. The floor meets all cases; the others meet the quick ones (on what has everything,
# `wgemma doctor` does: tests/cli/test_doctor.py), and all of them in `make test-all`.
SWEEPS = [
    pytest.param("floor", False, id="floor"),
    pytest.param("checked", True, id="checked-quick"),
    pytest.param("checked", False, id="checked", marks=pytest.mark.slow),
    pytest.param("everything", False, id="everything", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    """WebGPU's default limits and no features; all the adapter has; and with the run-time checks naga can add."""
    device = DEVICES[request.param]()
    yield device
    device.close()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("device", "quick"), SWEEPS, indirect=["device"])
def test_a_kernel_computes_what_its_twin_says(device: NativeDevice, quick: bool, kernel: str) -> None:
    wrong = [verdict for verdict in sweep(device, kernel, quick=quick) if not verdict.ok]
    assert not wrong
    assert device.allocated == 0


def test_every_kernel_with_an_entry_point_is_swept() -> None:
    found = {
        file.name.removesuffix(".wgsl")
        for file in files("wgemma.kernels").iterdir()
        if file.name.endswith(".wgsl") and "@compute" in file.read_text("utf-8")
    }
    assert found == set(KERNELS)


def test_the_quick_sweep_meets_every_kernel_and_every_weight_type() -> None:
    quick = [case for case in cases() if case.quick]
    assert {case.kernel for case in quick} == set(KERNELS)
    for kernel in ("repack", "embed", "matvec", "experts_matvec", "tile", "tile_bytes", "tile_back"):
        names = " ".join(case.name + " " for case in quick if case.kernel == kernel)
        kinds = {"tile_back": TRAINABLE, "tile_bytes": [kind for kind in PLANES if PLANES[kind].quick]}
        assert [kind for kind in kinds.get(kernel, PLANES) if f"kind={kind} " not in names] == []


def test_no_two_cases_share_a_name() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))


# One wrong line per place a kernel can go wrong: (kernel that is swept, file, what it says, what it says instead).
BROKEN = [
    ("clear", "clear", "i < params.count", "i <= params.count"),
    ("splice", "splice", "at >= params.to && ", ""),
    ("splice", "splice", "byte % 4u * 8u", "i * 8u"),
    ("repack", "repack", "inner / params.half;", "0u;"),
    ("repack", "put_half", "bits << ((goal & 1u) * 16u)", "bits"),
    ("repack", "k_scales", "(low & 15u)", "(low & 7u)"),
    ("repack", "repack", "5.9604644775390625e-8", "0.0"),
    (
        "embed",
        "sixteens",
        "numbers(codes_of(raw), OFFSET);\n  let d = scales_of(raw);\n  return Block",
        "numbers(codes_of(raw), OFFSET - 1.0);\n  let d = scales_of(raw);\n  return Block",
    ),
    ("embed", "five_bits", "24u, 28u", "24u, 24u"),
    ("embed", "two_bits", "4u, 6u", "4u, 4u"),
    ("embed", "block_q3_k", "upper(raw.high >> 4u)", "upper(raw.high)"),
    ("embed", "block_iq3_xxs", "0x01010101u", "0x02020202u"),
    ("embed", "byte_scale", "(at & 3u) * 8u", "(at & 1u) * 8u"),
    ("embed", "bit_planes", "2u, 0x33333333u", "2u, 0x55555555u"),
    ("embed", "iq4_levels", "(w & near)", "w"),
    ("embed", "block_mxfp4", "x | (z & ~w)", "x | z"),
    ("repack", "put_planes", "(element >> 2u));", "(element >> 3u));"),
    ("repack", "grid", "select(8u + level, 7u - level", "select(8u + level, 8u - level"),
    ("repack", "repack_iq3_s", " << 8u);", " << 7u);"),
    ("repack", "repack_iq3_xxs", "countOneBits(seven)", "0u"),
    ("repack", "repack_q3_k", "2u * (i >> 2u)", "2u * (i >> 3u)"),
    ("repack", "repack_iq4_xs", "(2u * s)) & 3u", "(2u * s)) & 1u"),
    ("repack", "repack_mxfp4", "select((e - 1u) << 7u, 0x20u << e, e < 2u)", "(e - 1u) << 7u"),
    ("repack", "repack_mxfp4", "(e - 1u) << 7u", "((e - 1u) & 127u) << 7u"),
    ("repack", "put_steps", "1u + (s >> 2u)", "1u"),
    ("matvec", "block_q2_k", "dm.w * (sum - near)", "dm.w * sum"),
    (
        "tile_bytes",
        "block_q2_k",
        "vec4<f32>(scale * vec2<f32>(both), sums)",
        "vec4<f32>(scale * vec2<f32>(both), sums.yx)",
    ),
    ("tile_bytes", "signed", "both.x + both.y", "both.x"),
    ("tile_bytes", "centred", "- OFFSET * (sums.x + sums.y)", "- OFFSET * sums.x"),
    ("embed", "embed", "row >= params.count", "row > params.count"),
    ("embed", "embed", "params.pads != 0u && number >= SOFT", "false"),
    ("stream", "stream", "i < 8u", "i < 7u"),
    ("norm", "residual", "post_near{{j}} * o_near{{j}}", "o_near{{j}}"),
    ("norm", "pending", "if (part + {{j}}u < params.o_parts) { sum", "{ sum"),
    ("norm", "reduce", "sum += reduce_scratch[i]", "sum = reduce_scratch[i]"),
    ("norm", "reduce", "[reduce_area + me.index / size] = share", "[reduce_area] = share"),
    ("matvec", "matvec_slices", "if (n + 1u < params.n) { write", "if (n < params.n) { write"),
    ("matvec", "matvec_ends", "step < {{WITHIN}}u; step *= 2u", "step < {{WITHIN}}u / 2u; step *= 2u"),
    ("matvec", "matvec_ends", "j < (thread + 1u) * (LANES", "j + 1u < (thread + 1u) * (LANES"),
    ("matvec", "matvec", "first += stride", "first += 2u * stride"),
    ("matvec", "codes", "8388608.0 + offset", "8388608.0"),
    ("experts_matvec", "experts_matvec", "= expert * params.n;", "= 0u;"),
    ("matvec", "affine", "dm.y * sum", "0.0"),
    ("matvec", "matvec_blocks", "select(start + STEP, 0u, done)", "start + STEP"),
    ("matvec", "matvec_blocks", "held(ahead + {{d}}u * LANES + lane)", "held(ahead + lane)"),
    ("matvec", "matvec_slices", "select(LARGEST / most", "select(120.0 / most"),
    ("matvec", "matvec_slices", "low = (low + 128) >>", "low = low >>"),
    ("matvec", "matvec_slices", "tails[SLICE * (1u + j / 2u) + block]", "tails[SLICE + block]"),
    ("matvec", "joined", "exp(end{{s}}.x - highest) * end{{s}}.y", "end{{s}}.y"),
    ("matvec", "joined", "select(two.xy, two.zw, which % 2u == 1u)", "two.xy"),
    ("matvec", "sixteens", "- OFFSET * sums", ""),
    ("to_bytes", "rounded_block", "select(LARGEST / most", "select(120.0 / most"),
    ("to_bytes", "rounded_block", "sum_of(n4, n5, n6, n7))", "sum_of(n0, n1, n2, n3))"),
    ("tile_bytes", "tile_bytes", "own_x += 3u;", ""),
    ("tile_bytes", "affine", "tails.y * (sums.x + sums.y)", "0.0"),
    ("tile_bytes", "tile_bytes", "fetch(own_w, block + 1u)", "fetch(own_w, block)"),
    ("tile_bytes", "tile_bytes", "r >= params.rows || n >= params.n", "n >= params.n"),
    ("tile_bytes", "tile_bytes", "params.blocks + begin) * 3u", "params.blocks) * 3u"),
    ("tile_bytes", "tile_bytes", "(part * params.rows + r)", "r"),
    ("tile", "tile", "(group.z + 1u) * params.blocks / groups.z", "params.blocks"),
    ("tile", "tile", "get_x(from{{j}}, begin * 8u + column)", "get_x(from{{j}}, column)"),
    ("add_up", "add_up", "s < params.shares", "s + 1u < params.shares"),
    ("add_up", "add_up", "if (id.x >= params.n) { return; }", ""),
    ("add_up", "add_up", "params.y_offset + id.x", "id.x"),
    ("experts_matvec", "gelu", "0.044715", "0.0447"),
    ("matvec", "gelu", "0.044715", "0.045"),  # its inputs are smaller
    ("tile", "tile", "if (r >= params.rows) { return; }", ""),
    ("tile", "softcap", "clamp(y / cap", "clamp(y"),
    ("tile", "softcap", "> 0x7f800000u", "> 0x7fffffffu"),
    ("matvec", "low", "(which * params.rank)", "0u"),
    ("matvec", "low", "params.alternate != 0u", "false"),
    ("matvec", "matvec", "j < params.rank; j += LANES", "j < 4u; j += LANES"),
    ("matvec", "matvec", "j / {{SHARES}}u", "j"),
    ("low_project", "low_share", "min((share + 1u) * each, quads)", "quads"),
    ("low_project", "low_project", "select(0.0, total, me.index == 0u)", "total"),
    ("low_project", "low_project", "x_out[first_x + i{{j}}] = near{{j}};", ""),
    ("low_project", "low_project", "workgroup_sum(scale * sum, me)", "workgroup_sum(sum, me)"),
    ("low_project", "low_share", "x[r * quads + i{{j}}]", "x[i{{j}}]"),
    (
        "low_project",
        "low_share",
        "dot(a{{j}}, x{{j}}), i + {{j}}u * {{THREADS}}u < end",
        "dot(a{{j}}, x{{j}}), true",
    ),
    ("low_project", "low_share", "i < end; i += {{AHEAD}}u", "i < {{THREADS}}u; i += {{AHEAD}}u"),
    ("matvec", "meeting", "low_scales[n] * sum, me);\n  let at", "sum, me);\n  let at"),
    ("matvec", "meeting", "group.x % {{SHARES}}u", "0u"),
    ("matvec", "meeting", "[group.y * params.z_stride + group.x]", "[group.x]"),
    ("matvec", "meeting", "dot(a[n * quads + i{{j}} + 1u], far{{j}})", "0.0"),
    ("matvec", "matvec", "places -= params.makers;", ""),
    ("low_project", "joined", "((r * params.heads + i / HEAD_QUADS)", "(i / HEAD_QUADS"),
    ("low_project", "joined", "exp(own - highest) /", "1.0 /"),
    ("low_project", "low_project", "group.y * params.scale_step + group.x", "group.x"),
    ("tile", "tile", "result *= side[r * params.side_stride + n];", ""),
    ("tile", "tile", "r * params.side_stride", "0u"),
    ("direct", "direct", "result *= side[r * params.side_stride + n];", ""),
    ("direct", "direct", "finished(first + i, ", "finished(i, "),
    ("direct", "direct", "x_quad(first + i, block", "x_quad(i, block"),
    ("low_add", "low_add", "(first + i <= last)", "true"),
    ("low_add", "low_add", "min(first + 3u, last)", "first"),
    ("low_add", "low", "u32(at >= params.edge2)", "0u"),
    ("low_experts", "low_experts", "(n % 2u) * params.rank", "0u"),
    ("low_experts", "low_experts", "chosen[each] * params.rank", "0u"),
    ("low_embed", "low_embed", "|| token >= SOFT", "|| token > SOFT"),
    ("low_experts", "low_experts", "id.y * params.scale_step", "0u"),
    ("low_embed", "low_embed", "scales[(id.y * params.scale_step) + j] * table", "table"),
    ("low_embed", "low_embed", "id.y * params.scale_step", "0u"),
    ("activate", "activate", "if (id.x >= params.n) { return; }", ""),
    ("ple", "ple", "0.70710678", "0.707"),
    ("kv", "kv", "row.used == 0u || ", ""),
    ("kv", "kv", "norm[j + HALF]", "norm[j]"),
    ("kv", "kv", " - params.first; }", "; }"),
    ("kv", "tables", "r * params.table_step", "0u"),
    ("kv", "tables", "[page % 4u]", "[page / 2u % 4u]"),
    ("kv", "tables", "table + page / 4u", "table"),
    ("attention", "rotary", "far.x * near.x - far.y * near.y", "near.x"),
    ("attention", "looking", "max(row.position + 1u, params.window)", "max(row.position, params.window)"),
    ("attention", "looking", "end = row.sees + 1u", "end = row.position + 1u"),
    ("attention", "looking", "min(begin, max(row.used, 1u) - 1u)", "0u"),
    ("attention", "looking", "begin, row.used == 0u", "max(begin, end), row.used == 0u"),
    ("attention", "attention", "i + j * GROUPS < count", "true"),
    ("attention", "attention", "place_of(position, table_of(r))", "place_of(position, params.table)"),
    ("attention", "attention", "counts = first != ELSEWHERE;", ""),
    (
        "attention",
        "attention",
        "if (first == ELSEWHERE) { return {{WORD}}(); }",
        "if (first == ELSEWHERE) { return values[i]; }",
    ),
    ("attention", "attention", "head * params.kv_heads / params.heads", "head % params.kv_heads"),
    ("attention", "attention", "sum += carry * partial", "sum += partial"),
    ("attention", "attention", "low *= shrink;", ""),
    ("attention_few", "looking", "min(first + share, end)", "first + share"),
    ("attention_few", "looking", "(turns + params.splits - 1u)", "turns"),
    ("attention_few", "rotary", "pair >= {{PAIRS}}u", "true"),
    ("attention_few", "attention_few", "head * params.kv_heads / params.heads", "head % params.kv_heads"),
    ("attention_few", "attention_few", "factor{{h}} * s{{h}}", "s{{h}}"),
    ("attention_few", "attention_few", "step < SHARE; step *= 2u", "step < SHARE / 2u; step *= 2u"),
    ("attention_few", "stretch", "position >= stretch.edge", "false"),
    ("attention_few", "stretch", "let second = min(edge, last);", "let second = first;"),
    ("attention_few", "attention_few", "stretch_at(at + KEYS, final_key, table)", "stretch_at(at, final_key, table)"),
    ("attention_few", "attention_few", "let table = table_of(group.y);", "let table = params.table;"),
    ("attention_few", "attention_few", "factor{{h}} * s{{h}}, here)", "factor{{h}} * s{{h}}, vec4<bool>(true))"),
    (
        "attention_few",
        "attention_few",
        "if (first == ELSEWHERE) { return {{WORD}}(); }\n//#endif\n  return values",
        "if (first == ELSEWHERE) { return values[i]; }\n//#endif\n  return values",
    ),
    ("attention_few", "attention_few", "at += KEYS;", ""),
    ("attention_few", "attention_few", "key <= last", "true"),
    ("attention_few", "attention_few", "low{{h}} *= shrink;", ""),
    ("attention_few", "attention_few", "total{{h}} *= shrink;", ""),
    ("attention_few", "attention_few", "exp(states[i].x - peak) * room", "room"),
    ("attention_few", "attention_few", "carry * before.y", "before.y"),
    ("attention_few", "attention_few", "sum += carry * partial", "sum += partial"),
    ("attention_join", "attention_join", "slot{{i}} % 2u == 1u", "false"),
    ("attention_join", "attention_join", "s + {{i}}u * LANES < params.splits", "true"),
    ("attention_join", "attention_join", "total *= shrink;", ""),
    ("attention_join", "attention_join", "first_column / 32u + thread", "first_column / 32u"),
    ("attention_join", "attention_join", "let share = exp(states[i].x - highest)", "let share = 1.0"),
    ("queries", "queries", "norm[j + HALF]", "norm[j]"),
    ("attention_tile", "attention_many", "begin - min(begin, row.used - 1u)", "begin"),
    ("attention_tile", "attention_many", "row.sees + 1u", "row.position + 1u"),
    ("attention_tile", "attention_many", "max(row.position + 1u, params.window)", "max(row.position, params.window)"),
    ("attention_tile", "attention_many", "row.used == 0u || r", "r"),
    ("attention_tile", "attention_many", "+ query % together()", ""),
    ("attention_direct", "attention_direct", " && places[i] != ELSEWHERE", ""),
    ("attention_direct", "attention_direct", "turn_at(start, last)", "turn_at(begin, last)"),
    ("attention_direct", "attention_many", "row.sees + 1u", "row.position + 1u"),
    ("attention_direct", "attention_direct", "start + i < own{{e}}.y", "start + i < end"),
    ("attention_direct", "attention_direct", "    total{{e}} *= shrink{{e}};", ""),
    ("attention_direct", "attention_direct", "slice + {{l}}u), shrink{{e}})", "slice + {{l}}u), 1.0)"),
    ("attention_direct", "attention_direct", "highest{{e}} = state.x;", ""),
    ("attention_tile", "attention_tile", "(i ^ row ^ 4u)", "(i ^ row)"),
    ("attention_tile", "attention_tile", "s{{j}}.near += tile[near_at{{j}}];", ""),
    ("attention_tile", "attention_tile", "    total *= shrink;", ""),
    ("attention_tile", "attention_tile", "scaled(far{{w}}_{{j}}, far_shrink[{{j}}])", "far{{w}}_{{j}}"),
    ("attention_tile", "attention_tile", "select(0.0, state{{j}}.y, strand == 0u)", "state{{j}}.y"),
    ("attention_tile", "attention_tile", "begin += z * params.split;", ""),
    ("attention_tile", "attention_tile", "here = ahead;", ""),
    ("attention_tile", "attention_tile", "s{{j}} = Pair(vec4<f32>(HIDDEN), vec4<f32>(HIDDEN));", ""),
    (
        "attention_tile",
        "attention_many",
        "if (at == ELSEWHERE) { return Pair(); }",
        "if (at == ELSEWHERE) { return Pair(values[i], values[i]); }",
    ),
    ("attention_tile", "stretch", "min(stretch.edge - PAGE + stretch.near, stretch", "(stretch"),
    ("attention_tile", "stretch", " - second - params.first", " - first - params.first"),
    ("attention_tile", "attention_tile", "|| word >= WORDS", ""),
    ("attention_tile", "attention_many", "select(there, last, row_at(there).used == 0u)", "there"),
    ("attention_tile", "attention_many", "var begin = r - row.position;", "var begin = 0u;"),
    ("attention_tile", "attention_many", "highest + log(total)", "highest"),
    ("experts_norm", "experts_norm", "u * params.rows * quads", "u * quads"),
    ("experts_join", "experts_join", "slot + {{s}}u < params.slots", "slot + {{s}}u + 1u < params.slots"),
    ("route", "route", "four(q) < vec4<u32>(e)", "four(q) > vec4<u32>(e)"),
    ("route", "route", "& (made <= vec4<u32>(INFINITE))", ""),
    ("resample", "resample", "mix(table[at], table[at + 1u], place - f32(at))", "table[at]"),
    ("resample", "resample", "mean += x[j * params.channels + c]", "mean = x[j * params.channels + c]"),
    ("frames", "frames", "at - params.pad < params.samples", "true"),
    ("mel", "mel", "(high - f32(k)) / (high - peak)", "1.0"),
    ("subsample", "subsample", "row < 1u || row > params.rows", "row < 1u"),
    ("subsample", "subsample", "(factor * (sums[first + n] - middle))", "(factor * sums[first + n])"),
    ("rms", "rms", "return h[at] + o[at];", "return h[at];"),
    ("silu", "sigmoid", "min(-x, 80.0)", "min(-x, 0.0)"),
    ("local_attention", "local_attention", "min({{KEYS}}u, t + 1u)", "min({{KEYS}}u - 1u, t + 1u)"),
    ("local_attention", "local_attention", "relative[r + d]", "relative[first + d]"),
    ("light_conv", "light_conv", "(n + 1u) * params.taps - 1u - back", "n * params.taps + back"),
    ("repack", "repack_words", "if (first + i < params.row_words) { word", "{ word"),
    ("resize", "resize", "255u * (255u - alpha)", "0u"),
    ("resize", "resize", "1 << (params.bits - 1u)", "0"),
    ("resize", "resize", "row += groups.y", "row += 2u * groups.y"),
    ("patches", "patches", "8u * channel", "0u"),
    ("places", "places", "params.places + id.y / params.across", "id.y / params.across"),
    ("layer_norm", "layer_norm", "let part = x[first + i] - mean;", "let part = x[first + i];"),
    ("pool", "pool", "i / 3u * params.across", "i / 3u"),
    ("vision_heads", "vision_heads", "half == 1u", "half == 0u"),
    ("vision_heads", "vision_heads", "if (which < 2u)", "if (which < 1u)"),
    ("vision_attention", "vision_attention", "sum = sum * shrink", "sum = sum"),
    ("vision_attention", "vision_attention", "o1 = scaled(o1, shrink);", ""),
    ("vision_attention", "vision_attention", "select(vec4<f32>(NOTHING), s[3], there)", "s[3]"),
    ("tile", "tile", "(i ^ column)", "i"),
    ("tile", "tile", "min(group.x * 64u + thread, params.n - 1u)", "group.x * 64u"),
    ("tile", "tile", "s{{j}} = more(s{{j}}, near, far", "s{{j}} = more(s{{j}}, near, near"),
    ("tile", "tile", "x_tile[x_at + {{j}}u", "x_tile[x_at + ({{j}}u & 6u)"),
    ("tile", "tile_sums", " + w[3] * part.w", ""),
    ("tile", "tile", "x[r * params.x_quads + quad]", "x[r * params.blocks * 8u + quad]"),
    ("tile", "tile", "first_w = expert * params.n;", ""),
    ("tile", "tile", "pair{{j}} / params.share", "pair{{j}}"),
    ("tile", "tile", "order[tile.y + ", "order["),
    ("tile", "tile", "|| expert >= params.experts", ""),
    ("tile", "tile", "tile.z <= 4u * STEP", "tile.z <= 8u * STEP"),
    ("middle", "middle", "item % BATCH * W_BLOCK", "0u"),
    ("middle", "middle", "block += {{CREWS}}u", "block += 2u * {{CREWS}}u"),
    ("middle", "middle", "half /= 2u", "half /= 4u"),
    ("middle", "middle", "if (start + part / {{X_PARTS}}u >= end) { return vec4<u32>(); }", ""),
    ("middle", "middle", "if (r >= params.rows) { return; }", ""),
    ("middle", "middle", "gelu(sums.z) * sums.w", "gelu(sums.x) * sums.y"),
    ("middle", "middle", "first_w = expert * params.n;", ""),
    ("middle", "middle", "] / params.share", "]"),
    ("middle", "middle", "row / STEP * CREW", "0u"),
    ("middle", "middle", "r >= params.rows || n >= params.n) { return; }", "n >= params.n) { return; }"),
    ("middle", "middle", "result *= weights[r];", ""),
    ("middle", "middle", "if ({{j}}u * STEP < tile.z)", "if ({{j}}u * STEP + STEP < tile.z)"),
    ("to_bytes", "rounded_block", "(n{{i}} + 128) >>", "n{{i}} >>"),
    ("norm", "norm", "first + 9u + j / 2u", "first + 9u"),
    ("tile_bytes", "tile_bytes", "] / params.share", "]"),
    ("tile_bytes", "tile_bytes", "let first_w = expert * params.n;", "let first_w = 0u;"),
    ("tile_bytes", "tile_bytes", "= order[tile.y + row + {{j}}u * STEP]", "= tile.y + row + {{j}}u * STEP"),
    ("tile_bytes", "tile_bytes", "result *= weights[r];", ""),
    ("tile", "tile", "result *= weights[r];", ""),
    ("group", "group", "workgroup_before(lower, thread).y", "workgroup_before(lower, thread).x"),
    ("group", "group", "var at = start + sums.x;", "var at = start;"),
    ("group", "group", "if (pair >= params.pairs) { return 0xffffffffu; }", ""),
    ("group", "group", "tile <= next", "tile < next"),
    ("group", "group", "min(count - done, params.tall)", "params.tall"),
    ("group", "group", "first < end; first += 8u", "first < end; first += 16u"),
    ("tile", "tile", "bias[params.first + n]", "0.0"),
    ("tile", "tile", "max(part, vec4<f32>(params.x_min))", "part"),
    ("direct", "direct", "min({{EACH}}u, params.rows - first)", "{{EACH}}u"),
    ("direct", "direct", "bias[params.first + n]", "0.0"),
    ("direct", "direct", "let first = expert * params.n;", "let first = 0u;"),
    ("direct", "direct", "weights[each] * product", "product"),
    ("direct", "direct", "if (n[j] < params.n)", "if (true)"),
    ("vision_direct", "vision_direct", "o{{t}}_{{l}} * shrink", "o{{t}}_{{l}}"),
    (
        "vision_direct",
        "vision_direct",
        "q[first + min(i, QUADS - 1u)], i < QUADS)",
        "q[first + min(i, QUADS - 1u)], true)",
    ),
    ("peaks", "keys", "~bits, negative", "bits, negative"),
    ("peaks", "keys", "size > vec4<u32>(0x7f800000u)", "bits > vec4<u32>(0xffffff00u)"),
    ("peaks", "peaks", "(places + vec4<u32>(4u * {{i}}u)) < left", "(places + vec4<u32>(4u * {{i}}u)) <= left"),
    ("peaks", "peaks", "select(vec4<f32>(), exp(", "select(vec4<f32>(1.0), exp("),
    ("peaks", "peaks", " || rows[slot].used == 0u", ""),
    ("peaks", "peaks", "if (settings[slot].reports == 0u) { return; }", ""),
    ("peaks", "peaks", "if (adjusts) { l{{i}} = adjusted", "if (true) { l{{i}} = adjusted"),
    ("peaks", "peaks", "min(first_quad(slot) + 16u", "min(16u"),
    ("count", "count", "row.used == 0u || ", ""),
    ("count", "count", "min(settings[slot].last_n, length)", "length"),
    ("count", "count", "table_of(slot))];", "table_of(0u))];"),
    ("count", "count", "4u * first_quad(slot) + token", "token"),
    ("adjust", "adjust", " || rows[slot].used == 0u", ""),
    ("adjust", "adjust", " || settings[slot].adjusts == 0u", ""),
    ("adjust", "adjust", "counts[at] = 0u;", ""),
    ("adjust", "adjust", "l / own.repeat, l * own.repeat, l <= 0.0", "l / own.repeat, l / own.repeat, l <= 0.0"),
    ("adjust", "adjust", "f32(count) * own.frequency - own.presence", "f32(count) * own.frequency"),
    ("sample", "scan", "i <= thread", "i < thread"),
    ("sample", "candidates", "four(4u * quad) < vec4<u32>(source.count)", "vec4<bool>(true)"),
    ("sample", "candidates", "prefix = (prefix << 8u) | (255u - digit.bin);", "prefix = (prefix << 8u) | digit.bin;"),
    ("sample", "candidates", "goal -= digit.before;", ""),
    ("sample", "candidates", "if (looked_into > BLOCKS) { return all_logits(); }", ""),
    ("sample", "candidates", "if (listed > CANDIDATES) { return all_logits(); }", ""),
    ("sample", "candidates", "tally_four(keys_in(l{{i}}", "tally_four(keys_in(l0"),
    ("sample", "candidates", "count += sums.y;", "count = sums.y;"),
    ("sample", "sample", "atomicMin(&winning_block, best)", "atomicMax(&winning_block, best)"),
    ("sample", "sample", "goal -= place.before;", ""),
    ("sample", "sample", "let l{{i}} = logits_at(quad + {{i}}u * THREADS);", "let l{{i}} = logits_at(quad);"),
    ("sample", "sample", "least = max(least, enough);\n    total", "total"),
    ("sample", "sample", "history[place_of(position, table_of(slot))] = token;", ""),
    ("sample", "sample", "table_of(slot))] = token;", "table_of(0u))] = token;"),
    ("sample", "sample", "if (position < params.context) {", "if (position <= params.context) {"),
    ("sample", "sample", "if (row.used == 0u) { return; }", ""),
    ("sample", "sample", "results[slot * RING + position % RING]", "results[position % RING]"),
    ("sample", "tables", "rows[table + page / 4u][page % 4u] * PAGE", "page * PAGE"),
    ("sample", "candidates", "if (adjusts) { return adjusted[at]; }", "return adjusted[at];"),
    ("sample", "candidates", "own_slot = slot;", ""),
    ("sample", "candidates", "own_quad = first_quad(slot);", ""),
    ("logprobs", "logprobs", "token > limit.token", "token >= limit.token"),
    ("logprobs", "logprobs", "row.used == 0u || ", ""),
    ("logprobs", "logprobs", "= settings[slot].reports;", "= max(settings[slot].reports, 1u);"),
    ("logprobs", "logprobs", "(slot * RING + row.position % RING)", "(row.position % RING)"),
    ("logprobs", "logprobs", "sums[4u * (own_peak + quad)", "sums[4u * quad"),
    ("logprobs", "logprobs", "token < best.token", "token > best.token"),
    ("logprobs", "logprobs", "] * exp(max(", "] + 0.0 * exp(max("),
    ("tile_back", "tile_back", "if (n >= params.n) { return vec4<f32>(); }", ""),
    ("tile_back", "tile_back", "if (r >= params.rows) { return; }", ""),
    ("tile_back", "tile_back", "rows_of_dy(n, row + {{band}}u * STEP)", "rows_of_dy(n, row)"),
    ("tile_back", "tile_back", "48u + (column ^ 7u)", "48u + (column ^ 6u)"),
    ("tile_back", "tile_back", "if (quad >= quads) { return; }", ""),
    ("tile_back", "tile_back", "dx[at] += sum;", "dx[at] = sum;"),
    ("direct_back", "direct_back", "if (r >= params.rows) { return; }", ""),
    ("direct_back", "direct_back", "grown(before, 1.0, sum)", "sum"),
    ("norm_back", "norm_back", "- along * x[at]", ""),
    ("norm_back", "norm_back", "dv[start + i] = above;", ""),
    ("norm_back", "norm_back", "params.first + i", "i"),
    ("activate_back", "activate_back", "0.134145", "0.044715"),
    ("activate_back", "activate_back", "select(e, 1.0, x > 0.0)", "1.0"),
    ("low_back", "low_back", "n += 256u * step", "n += 512u * step"),
    ("low_back", "low_back", "quarter < 4u; quarter++", "quarter < 3u; quarter++"),
    ("low_back", "low_back", "min(end, edges[t + 1u])", "end"),
    ("low_grad", "low_grad", "select(0u, 1u, n >= params.edge2)", "0u"),
    ("low_grad", "low_grad", "turn < 4u; turn++", "turn < 3u; turn++"),
    ("loss", "loss", "before.y * exp(before.x - highest)", "before.y"),
    ("loss", "loss", "i == own", "i == goal"),
    ("loss", "loss", "((params.cap + l) / params.cap)", "1.0"),
    ("nll", "nll", "total[0] += all", "total[0] = all"),
    ("sum_squares", "sum_squares", "if (params.fresh == 0u) { all", "{ all"),
    ("sum_squares", "sum_squares", "i += groups.x * {{THREADS}}u", "i += params.count"),
    ("adamw", "adamw", "values[i] * (1.0 - params.rate * params.decay)", "values[i]"),
    ("adamw", "adamw", "factor *= min(1.0, params.clip", "factor *= min(2.0, params.clip"),
    ("adamw", "adamw", "params.share * sqrt(norm[0])", "sqrt(norm[0])"),
    ("adamw", "adamw", "gradients[i] = 0.0;", ""),
    ("dropout", "dropout", "hash(seed[0] ^ ", "hash("),
    ("dropout", "dropout", "params.salt + 0x9e3779b9u", "0x9e3779b9u"),
    ("kv", "kv", "let place = group.y;", "let place = row.position;"),
    ("attention", "attention", "highest + log(total)", "highest"),
    ("attention", "attention", "var begin = group.y - row.position;", "var begin = 0u;"),
    ("attention_prepare", "attention_prepare", "(lse[which], delta)", "(lse[which], 0.0)"),
    ("attention_prepare", "attention_prepare", "row.used == 0u", "false"),
    ("attention_back", "attention_pairs", "key + row.position >= query", "true"),
    ("attention_back", "attention_pairs", "] - settled.y)", "])"),
    ("attention_back", "attention_back", "params.window - 1u)", "params.window / 2u)"),
    ("attention_back", "attention_back", "any(slope != vec2<f32>())", "true"),
    ("attention_back_kv", "attention_back_kv", "query > last + rows[query].position", "query > last"),
    ("attention_back_kv", "attention_back_kv", "min(end, last + params.window)", "min(end, last + 1u)"),
    ("attention_back_kv", "attention_back_kv", "dk[at], params.add != 0u", "dk[at], false"),
    ("kv_back", "kv_back", "rotate(turned.y, turned.x, j, row.position).yx", "turned"),
    ("kv_back", "kv_back", "k_part + v_part", "k_part"),
    ("experts_join_back", "experts_join_back", "share.y * routed4(group.x, i)", "vec4<f32>()"),
    ("experts_norm_back", "experts_norm_back", "norms[2u * quads + i] * sum", "sum"),
    ("experts_back", "experts_back", "lane < LANES; lane++", "lane + 1u < LANES; lane++"),
    ("experts_back", "experts_back", "let given = which * params.n;", "let given = group.y * params.n;"),
    ("route_back", "route_back", "(slopes[slot] - mean)", "slopes[slot]"),
]


# What only a device without subgroups runs.
BROKEN_WITHOUT_SUBGROUPS = [
    ("attention_few", "attention_few", "i < SHARE; i++", "i < SHARE / 2u; i++"),
]


@pytest.mark.parametrize(
    ("device", "kernel", "file", "says", "instead"),
    [("checked", *each) for each in BROKEN] + [("floor", *each) for each in BROKEN_WITHOUT_SUBGROUPS],
    indirect=["device"],
)
def test_the_quick_sweep_catches_a_broken_kernel(
    monkeypatch: pytest.MonkeyPatch, device: NativeDevice, kernel: str, file: str, says: str, instead: str
) -> None:
    sound = shaders._source

    def source(name: str) -> tuple[str, ...]:
        text = "\n".join(sound(name))
        assert name != file or says in text
        return tuple((text.replace(says, instead) if name == file else text).splitlines())

    monkeypatch.setattr(shaders, "_source", source)
    monkeypatch.setattr(device, "_kernels", {})  # it knows the sound ones
    assert any(not verdict.ok for verdict in sweep(device, kernel, quick=True))


def test_every_swept_kernel_was_broken_once() -> None:
    assert {kernel for kernel, *_ in BROKEN} == set(KERNELS)


def test_what_is_missing_and_what_went_astray_is_an_error() -> None:
    expected = framed(np.array([1.0, UNTOUCHED, 2.0]))
    assert relative_error(expected.copy(), expected) == 0
    for place, value in ((0, UNTOUCHED), (1, 0.0), (3, 0.0), (2, np.nan), (2, np.inf)):
        got = expected.copy()
        got[place] = value
        assert not relative_error(got, expected) < 1e30


def test_a_nan_is_right_only_where_the_twin_has_one() -> None:
    expected = np.array([1.0, np.nan, 2.0])
    assert relative_error(expected.copy(), expected) == 0
    assert relative_error(np.array([1.0, 5.0, 2.0]), expected) == np.inf
