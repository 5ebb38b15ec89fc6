"""Activations for inference: roles that are never live at the same time share a buffer."""

from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.model import experts
from wgemma.model.attention import SPLITS
from wgemma.model.attention_tile import partial_words
from wgemma.model.forms import MIDDLE
from wgemma.model.text import TextWeights

SHARED = {
    "x": ("attention x", "ffn x", "head x"),
    "o": ("attention o", "ffn o", "per-layer o"),
    "act": ("gate",),
    "z": ("z qkv", "z o", "z gate_up", "z down", "z ple_gate", "z ple_projection", "z head", "z experts"),
}
_HOMES = {role: home for home, roles in SHARED.items() for role in (home, *roles)}


class SharedActivations:
    """For passes of up to `rows` rows, with the feed-forward block's gate and up for `step` rows at a time. `z` is the
    most columns adapters need; `rounds` adds a buffer for 8-bit inputs."""

    def __init__(self, ledger: Ledger, weights: TextWeights, rows: int, step: int, *, z: int, rounds: bool) -> None:
        self.rows = rows
        self.step = step
        self.z = z
        self.ledger = ledger
        sizes = _sizes(ledger, weights, rows, step, rounds=rounds) | ({"z": rows * z} if z else {})
        made = ledger.buffers((4 * size, role) for role, size in sizes.items())
        self._buffers = dict(zip(sizes, made, strict=True))

    def __getitem__(self, role: str) -> Buffer:
        return self._buffers[_HOMES.get(role, role)]

    @property
    def rounded(self) -> Buffer | None:
        return self._buffers.get("rounded")

    @property
    def parts(self) -> Buffer | None:
        """The buffer for gate and up, which is free while sums are split."""
        free = [self._buffers[role] for role in ("wide", "expert_wide") if role in self._buffers]
        return max(free, key=lambda buffer: buffer.size)

    async def widen(self, z: int) -> None:
        """Grows z to at least this many columns."""
        if z <= self.z:
            return
        wider = self.ledger.buffer(4 * self.rows * z, "z")
        try:
            await self.ledger.device.confirm()
        except BaseException:
            self.ledger.drop(wider)
            raise
        if self.z:
            self.ledger.drop(self._buffers["z"])
        self._buffers["z"], self.z = wider, z


def _sizes(ledger: Ledger, weights: TextWeights, rows: int, step: int, *, rounds: bool) -> dict[str, int]:
    """The size of every buffer in words."""
    config, layers, d = weights.config, weights.config.layers, weights.config.width
    heads = max(layer.heads * layer.head_dim for layer in layers)
    wide = max(2 * layer.ffn_width for layer in layers)
    states = max(layer.heads * (layer.head_dim + 2) for layer in layers)
    sizes = {
        "h": rows * d,
        "h2": rows * d,
        "o": rows * d,
        "zeros": rows * d,
        "x": 3 * (rows + 1) * d if config.expert_count else rows * d,
        "qkv": rows * max(layer.attention.width for layer in weights.layers),
        "attended": rows * heads,
        "partial": max(SPLITS * states, *(partial_words(ledger.device, layer, rows) for layer in layers)),
        "wide": min(rows, step) * wide,
        "act": rows * max(wide // 2, config.ple_dim),
    }
    if config.ple_dim:
        columns = config.ple_dim * len(layers)
        sizes |= {"table": rows * columns, "projected": rows * columns, "ple": rows * columns}
        sizes["gated"] = rows * config.ple_dim
    if config.expert_count:
        sizes |= experts.scratch_words(config, rows)
    if rounds:
        small = min(rows, MIDDLE[1]) * max(d, heads) * 20 // 32  # two bytes each
        sizes["rounded"] = max(rows * max(d, wide // 2, config.experts_used * config.expert_width) * 12 // 32, small)
    return sizes
