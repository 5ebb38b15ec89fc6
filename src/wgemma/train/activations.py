"""What training keeps on the GPU besides weights: the activations of the forward pass, and the gradients.

The decoder gets activations by role (model/passes.py). In training every role has its own buffer, because the backward
pass needs them all. With `checkpointing`, all layers share one set of buffers and only each layer's input is kept;
otherwise every layer has its own.
"""

from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.model.adapters import Lows
from wgemma.model.experts import scratch_words
from wgemma.model.text import TextLayer, TextWeights

Sizes = dict[str, int]  # numbers of four bytes


def common_sizes(weights: TextWeights, rows: int) -> Sizes:
    """Buffers a pass has once."""
    d, config = weights.config.width, weights.config
    sizes = {"h": rows * d, "zeros": rows * d, "x": rows * d, "head x": rows * d, "final h": rows * d}
    if config.ple_dim:
        columns = rows * config.ple_dim * len(config.layers)
        sizes |= {"table": columns, "projected": columns, "ple": columns}
    return sizes


def layer_sizes(weights: TextWeights, layer: TextLayer, lows: Lows, rows: int) -> Sizes:
    """Buffers one layer keeps for the backward pass."""
    config, own = weights.config, layer.config
    d = config.width
    sizes = {
        "h0": rows * d,
        "h1": rows * d,
        "attention x": rows * d,
        "qkv": rows * layer.attention.width,
        "partial": rows * own.heads,
        "attended": rows * own.heads * own.head_dim,
        "attention o": rows * d,
        "ffn x": 3 * (rows + 1) * d if layer.experts else rows * d,
        "wide": rows * 2 * own.ffn_width,
        "act": rows * own.ffn_width,
        "ffn o": rows * d,
    }
    if layer.per_layer:
        sizes |= {
            "h2": rows * d,
            "gate": rows * config.ple_dim,
            "gated": rows * config.ple_dim,
            "per-layer o": rows * d,
        }
    if layer.experts:
        sizes |= scratch_words(config, rows)
    for group, low in lows.layers[own.index].items():
        sizes[f"z {group}"] = rows * low.columns
    return sizes


def gradient_sizes(weights: TextWeights, lows: Lows, rows: int) -> Sizes:
    """Gradients of the residual stream, of a block's output and input, and of everything between."""
    config, layers = weights.config, weights.layers
    d = config.width
    sizes = {
        "dv": rows * d,
        "do": rows * d,
        "dx": rows * d,
        "d wide": rows * max(2 * layer.config.ffn_width for layer in layers),
        "d act": rows * max(layer.config.ffn_width for layer in layers),
        "d qkv": rows * max(layer.attention.width for layer in layers),
        "d attended": rows * max(layer.config.heads * layer.config.head_dim for layer in layers),
        "dq": rows * max(layer.config.heads * layer.config.head_dim for layer in layers),
        "q": rows * max(layer.config.heads * (layer.config.head_dim + 4) for layer in layers),
        "g": rows * max(lows.columns, 1),
    }
    if config.ple_dim:
        sizes |= {"d gate": rows * config.ple_dim, "d gated": rows * config.ple_dim}
    if config.expert_count:
        each = rows * config.experts_used
        sizes |= {
            "d dense": rows * d,
            "d sum": rows * d,
            "d expert act": each * config.expert_width,
            "d expert wide": each * 2 * config.expert_width + 64,
            "d inner": each * d,
            "d scores": rows * config.expert_count,
            "d router": rows * d,
        }
    return sizes


def widest(sizes: list[Sizes]) -> Sizes:
    """The maximum of each size."""
    return {name: max(each.get(name, 0) for each in sizes) for name in {name: 0 for each in sizes for name in each}}


class KeptActivations:
    """Activations by role. `layer` is the current layer, if each has its own."""

    rounded = None  # training does not round
    parts = None  # the backward pass needs gate and up

    def __init__(self, ledger: Ledger, weights: TextWeights, lows: Lows, rows: int, *, checkpointing: bool) -> None:
        self.rows = self.step = rows
        self.layer = 0
        sizes = [layer_sizes(weights, layer, lows, rows) for layer in weights.layers]
        self._common = _made(ledger, common_sizes(weights, rows))
        self._own = [_made(ledger, own) for own in ([widest(sizes)] if checkpointing else sizes)]

    def __getitem__(self, name: str) -> Buffer:
        own = self._own[self.layer % len(self._own)]
        return own[name] if name in own else self._common[name]


def _made(ledger: Ledger, sizes: Sizes) -> dict[str, Buffer]:
    return {name: ledger.buffer(4 * size, name) for name, size in sizes.items()}
