"""Records a mixture-of-experts block: its inputs, the routing, the experts, and the sum with the dense block's output.

A few rows use their experts one by one; many rows are grouped by expert (Matmuls.group).
"""

from dataclasses import replace
from typing import Any

from wgemma.gpu.device import Binding, Buffer, Span
from wgemma.model.adapters import Low
from wgemma.model.config import Config
from wgemma.model.forms import GROUPED, SMALL, THREADS
from wgemma.model.matmul import Choices, Groups, Matmuls
from wgemma.model.passes import Activations, Pass, Stream
from wgemma.model.text import Experts, TextLayer


def scratch_words(config: Config, rows: int) -> dict[str, int]:
    """Words of scratch for this many rows, by role."""
    slots, small = config.experts_used, min(rows, GROUPED[1])
    tiles = (Groups.count(rows, slots, config.expert_count), Groups.count(small, slots, config.expert_count, SMALL))
    return {
        "dense": rows * config.width,
        "scores": rows * config.expert_count,
        "chosen": rows * slots,
        "weights": rows * slots,
        "order": rows * slots,
        "tiles": 4 * max(tiles),
        "expert_wide": rows * slots * 2 * config.expert_width + 64,
        "expert_act": rows * slots * config.expert_width,
        "routed": rows * slots * config.width,
    }


def norm_constants(width: int) -> dict[str, int]:
    """For experts_norm.wgsl and experts_join.wgsl: QUADS is the vectors of a row per thread."""
    return {"THREADS": THREADS, "QUADS": -(-width // (4 * THREADS))}


def inputs(p: Pass, config: Config, scratch: Activations, experts: Experts, stream: Stream) -> tuple[Span, ...]:
    """The residual stream normed for the dense block, the experts and the router."""
    blocks, padded = config.width // 32, p.rows + p.rows % 2
    bindings: dict[str, Binding] = {"h": stream.h, "o": stream.pending, "norms": experts.norms}
    bindings |= {"h_out": stream.spare, "x": scratch["ffn x"]}
    params = {"blocks": blocks, "rows": padded, "eps": config.eps}
    constants: dict[str, Any] = {**norm_constants(config.width)}
    if stream.parts:
        params |= {"o_parts": stream.parts, "o_step": p.rows * config.width // 4}
        constants["PARTS"] = True
    p.tape.run("experts_norm", [p.rows], bindings, params, constants)
    stream.advance()
    section = 4 * padded * config.width
    return tuple(Span(scratch["ffn x"], i * section, section) for i in range(3))


def route(p: Pass, matmuls: Matmuls, config: Config, scratch: Activations, experts: Experts, source: Binding) -> None:
    """Each row's experts and their weights, written to `chosen` and `weights`."""
    matmuls.thin(p.tape, experts.router, p.rows, source, scratch["scores"], scratch.parts)
    bindings: dict[str, Binding] = {"scores": scratch["scores"], "expert_scale": experts.scale}
    bindings |= {"chosen": scratch["chosen"], "weights": scratch["weights"]}
    p.tape.run("route", [p.rows], bindings, {"experts": config.expert_count, "used": config.experts_used})


def ask(
    p: Pass,
    matmuls: Matmuls,
    config: Config,
    scratch: Activations,
    layer: TextLayer,
    experts: Experts,
    source: Binding,
    *,
    keeps: bool,
) -> None:
    """Runs each row's experts; the weighted outputs go to `routed`. `keeps` the inputs of their activations, too."""
    act, wide = scratch["expert_act"], scratch["expert_wide"]
    width, slots = config.expert_width, config.experts_used
    products = [-(-width // 256), p.rows * slots]
    choices = Choices(p.rows, slots, config.expert_count, scratch["chosen"])
    choices = matmuls.group(p.tape, choices, Groups(scratch["order"], scratch["tiles"], scratch.rounded))
    low = p.low(layer, "expert_gate_up")
    finishes = not keeps and low is None and (choices.groups is None or choices.groups.small)
    if len(experts.gate_up) == 1 and finishes:
        matmuls.experts(p.tape, experts.gate_up[0], choices, source, act, geglu=True)
    elif len(experts.gate_up) == 1:
        matmuls.experts(p.tape, experts.gate_up[0], choices, source, wide)
        _add(p, matmuls, scratch, low, choices, source, wide)
        p.tape.run("activate", products, {"x": wide, "y": act}, {"n": width}, {"GEGLU": True})
    else:  # two types: gate, up, then their product
        half = -(-4 * p.rows * slots * width // 256) * 256
        gate, up = (Span(wide, i * half, half) for i in (0, 1))
        for matrix, y, name in zip(experts.gate_up, (gate, up), ("gate", "up"), strict=True):
            matmuls.experts(p.tape, matrix, choices, source, y)
            _add(p, matmuls, scratch, p.low(layer, f"expert_{name}"), choices, source, y)
        params = {"n": width, "side_stride": width, "side_offset": 0}
        p.tape.run("activate", products, {"x": gate, "side": up, "y": act}, params, {"SIDE": True})
    weights, routed = scratch["weights"], scratch["routed"]
    matmuls.experts(p.tape, experts.down, choices, act, routed, weights=weights)
    _add(p, matmuls, scratch, p.low(layer, "expert_down"), choices, act, routed, weights)


def join(p: Pass, config: Config, scratch: Activations, experts: Experts) -> None:
    """Adds the experts' and the dense block's outputs, into `ffn o`."""
    bindings: dict[str, Binding] = {"dense": scratch["dense"], "routed": scratch["routed"]}
    bindings |= {"norms": experts.join, "y": scratch["ffn o"]}
    params = {"blocks": config.width // 32, "slots": config.experts_used, "eps": config.eps}
    p.tape.run("experts_join", [p.rows], bindings, params, norm_constants(config.width))


def _add(
    p: Pass,
    matmuls: Matmuls,
    scratch: Activations,
    low: Low | None,
    choices: Choices,
    source: Binding,
    y: Binding,
    weights: Buffer | None = None,
) -> None:
    """Adds the adapters' part of the chosen experts' results, if any."""
    if low is None:
        return
    z = scratch["z experts"]
    matmuls.experts(p.tape, low.a, replace(choices, groups=None), source, z, weights=weights)
    bindings: dict[str, Binding] = {"z": z, "b": low.b, "scales": low.scales, "chosen": choices.chosen, "y": y}
    params = {"n": low.width, "slots": choices.slots, "rank": low.rank, "z_stride": low.columns}
    params |= {"alternate": low.interleaved, "scale_step": low.scale_step}
    p.tape.run("low_experts", [-(-low.width // 64), p.rows, choices.slots], bindings, params)
