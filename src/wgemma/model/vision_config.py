"""The shape of a vision tower, read from a GGUF's keys and tensors, and the size images are resized to for it.

As in `config`, no weights are read and nothing is trusted. Two families share input and output: a transformer over
patches of 16 × 16 pixels, pooled 3 × 3 (E2B, E4B, 26B, 31B), and one linear layer over patches of 48 × 48 (12B). The
tensors tell which one a file has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgemma.checks import shown
from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.model.config import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Wanted
from wgemma.model.tower import PACKED, PROJECTOR, Keys, clamp_tensors, find, linear_tensors

BUDGETS = (70, 140, 280, 560, 1120)  # soft tokens an image may become
SIDE = 48  # a soft token covers SIDE × SIDE pixels
PATCH = 16
POOL = 3
CHANNELS = 3
MAX_HEAD = 128  # limit of kernels/vision_attention.wgsl
ROPE_BASE = 100.0
PROJECTORS = ("gemma4v", "gemma4uv")

PATCHES = "v.patch_embd.weight"
PLACES = "v.position_embd.weight"


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """`layers` is 0 without a transformer."""

    layers: int
    inner: int  # width of the tower, D
    heads: int
    ffn_width: int
    places: int  # rows of the position table, per axis
    width: int  # of a soft token, d

    @property
    def unified(self) -> bool:
        return self.layers == 0

    @property
    def head_dim(self) -> int:
        return self.inner // self.heads

    @property
    def patch(self) -> int:
        """The side of a patch in pixels."""
        return SIDE if self.unified else PATCH

    @property
    def columns(self) -> int:
        """Numbers in a patch."""
        return CHANNELS * self.patch * self.patch

    def fit(self, width: int, height: int, budget: int) -> tuple[int, int]:
        """The size in pixels an image is resized to; raises `ModelError` if the position table is too short for it."""
        if not isinstance(budget, int) or budget not in BUDGETS:
            raise ModelError(
                f"an image cannot become {shown(budget)} tokens; use one of {', '.join(map(str, BUDGETS))}."
            )
        across, down = fitted(width, height, budget)
        longest = max(across, down) // self.patch
        if longest > self.places:
            raise ModelError(
                f"an image of {width} × {height} becomes {longest} patches long, but this model has only {self.places} "
                "positions. Crop the image to a less extreme shape, or use a smaller budget."
            )
        return across, down


def fitted(width: int, height: int, budget: int) -> tuple[int, int]:
    """The largest size in whole tokens that keeps the aspect ratio and the budget, even if it enlarges the image."""
    if width < 1 or height < 1:
        raise ModelError(f"an image of {width} × {height} pixels is empty.")
    factor = math.sqrt(budget * SIDE * SIDE / (width * height))
    across, down = math.floor(factor * width / SIDE), math.floor(factor * height / SIDE)
    if down == 0:
        across, down = min(width // height, budget), 1
    elif across == 0:
        across, down = 1, min(height // width, budget)
    return across * SIDE, down * SIDE


def has_vision(gguf: Gguf) -> bool:
    """Whether the file has a vision tower of either family."""
    return PATCHES in gguf.tensors


def read_vision(gguf: Gguf) -> tuple[VisionConfig, dict[str, Tensor]]:
    """The tower's config and tensors, checked."""
    try:
        if not has_vision(gguf):
            raise ModelError(
                "there is no vision tower in this file, so it cannot see images. Use a model that has one, or load "
                "its projector (mmproj) beside it."
            )
        _check_projector(gguf.metadata)
        config = _read_unified(gguf.tensors) if "v.patch_norm.1.weight" in gguf.tensors else _read_tower(gguf)
        wanted = _unified_tensors(config) if config.unified else _tower_tensors(config)
        return config, find(gguf, wanted | linear_tensors(PROJECTOR, config.inner, config.width))
    except ModelError as error:
        raise ModelError(f"{gguf.source.name}: {error}") from None


def _check_projector(metadata: Mapping[str, Any]) -> None:
    for key in ("clip.vision.projector_type", "clip.projector_type"):
        if metadata.get(key, PROJECTORS[0]) not in PROJECTORS:
            raise ModelError(
                f"{key} is {metadata[key]!r:.80}: another model's projector. Gemma 4 has {' or '.join(PROJECTORS)}."
            )


def _read_unified(tensors: Mapping[str, Tensor]) -> VisionConfig:
    inner = _shape(tensors, PATCHES, 2)[1]
    return VisionConfig(0, _even(PATCHES, inner), 1, 0, _shape(tensors, PLACES, 3)[1], _token_width(tensors))


def _read_tower(gguf: Gguf) -> VisionConfig:
    keys = Keys(gguf.metadata, "vision")
    for key, only in (("patch_size", PATCH), ("projector.scale_factor", POOL)):
        if keys.whole(key, MAX_WIDTH, default=only) != only:
            raise ModelError(f"{key} of the vision tower is not {only}, the only value wgemma supports.")
    config = VisionConfig(
        layers=keys.whole("block_count", MAX_LAYERS),
        inner=_even("embedding_length", keys.whole("embedding_length", MAX_WIDTH)),
        heads=keys.whole("attention.head_count", MAX_HEADS),
        ffn_width=keys.whole("feed_forward_length", MAX_WIDTH),
        places=_shape(gguf.tensors, PLACES, 3)[1],
        width=_token_width(gguf.tensors),
    )
    if config.inner % config.heads or config.head_dim % 8 or config.head_dim > MAX_HEAD:
        raise ModelError(
            f"a vision tower {config.inner} wide with {config.heads} heads is not supported; heads must be 8, 16, 24 … "
            f"{MAX_HEAD} wide."
        )
    return config


def _shape(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    if name not in tensors:
        raise ModelError(f"the tensor {name} is missing.")
    shape = tensors[name].shape
    if len(shape) != dimensions or max(shape) > MAX_WIDTH:
        raise ModelError(f"{name} has shape {list(shape)}; it must have {dimensions} dimensions of reasonable size.")
    return shape


def _token_width(tensors: Mapping[str, Tensor]) -> int:
    return _shape(tensors, f"{PROJECTOR}.weight", 2)[1]


def _even(name: str, inner: int) -> int:
    if inner % 32:
        raise ModelError(f"the vision tower is {inner} wide ({name}); wgemma needs a multiple of 32.")
    return inner


def _tower_tensors(config: VisionConfig) -> dict[str, Wanted]:
    inner, ffn = config.inner, config.ffn_width
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (inner, inner))
    shapes |= {"ffn_gate": (inner, ffn), "ffn_up": (inner, ffn), "ffn_down": (ffn, inner)}
    assert tuple(shapes) == PACKED
    wanted = {
        PATCHES: Wanted((PATCH, PATCH, CHANNELS, inner)),
        PLACES: Wanted((inner, config.places, 2)),
        "v.std_bias": Wanted((inner,), optional=True),
        "v.std_scale": Wanted((inner,), optional=True),
        **clamp_tensors(config.layers),
    }
    for layer in range(config.layers):
        block = f"v.blk.{layer}."
        for name, (columns, rows) in shapes.items():
            wanted |= linear_tensors(block + name, columns, rows)
        for name in ("ln1", "attn_post_norm", "ln2", "ffn_post_norm"):
            wanted[f"{block}{name}.weight"] = Wanted((inner,))
        for name in ("attn_q_norm", "attn_k_norm"):
            wanted[f"{block}{name}.weight"] = Wanted((config.head_dim,))
        wanted[f"{block}out_scale.weight"] = Wanted((1,), optional=True)
    return wanted


def _unified_tensors(config: VisionConfig) -> dict[str, Wanted]:
    inner, columns = config.inner, config.columns
    wanted = {
        PATCHES: Wanted((columns, inner), matrix=True),
        "v.patch_embd.bias": Wanted((inner,)),
        PLACES: Wanted((inner, config.places, 2)),
    }
    for norm, size in ((1, columns), (2, inner), (3, inner)):
        wanted |= {f"v.patch_norm.{norm}.{part}": Wanted((size,)) for part in ("weight", "bias")}
    return wanted
