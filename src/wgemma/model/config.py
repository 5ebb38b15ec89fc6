"""The shape of a Gemma 4 text model, read from a GGUF's metadata and its table of tensors.

No weights are read, and nothing is trusted: every number is checked for type and range, every tensor for presence,
shape and type, before it is used. Any problem raises a `ModelError` that names the key or tensor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from wgemma.errors import ModelError
from wgemma.files.adapter_pairs import not_a_model
from wgemma.files.gguf import Gguf, Tensor
from wgemma.model.planes import PLANES

T = TypeVar("T", int, float)

ARCHITECTURE = "gemma4"
OTHER_PARTS = {
    "gemma4-assistant": " This is a drafter: it runs beside a gemma4 model, not alone.",
    "clip": " This is a projector for images and audio: load it beside a gemma4 model.",
}

MATRIX_TYPES = tuple(PLANES)
VECTOR_TYPES = ("F32", "F16", "BF16")

# Far above any real model, and low enough that no product of two of them overflows anything.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 4096
MAX_HEAD_DIM = 1 << 14
MAX_CONTEXT = 1 << 22  # the angles of its positions are computed in a second
MAX_EXPERTS = 1 << 14

# The share of a full layer's pairs that rotate, if neither rope_freqs nor a key says so.
PARTIAL_ROTARY = 0.25


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer. Pairs (j, j + head_dim / 2) with j < rotary_pairs rotate; the others pass through."""

    index: int
    sliding: bool
    window: int | None  # a sliding layer sees key p from position t while t − p < window
    heads: int
    kv_heads: int  # the donor's, if there is one
    head_dim: int
    donor: int | None  # the earlier layer whose K and V this one attends to; None: it has its own
    has_v: bool  # False with a K of its own: V is computed from the raw K projection
    rope_base: float
    rotary_pairs: int
    rope_factors: bool  # the angles of pair j are divided by rope_freqs[j]
    ffn_width: int
    fused_experts: bool  # an expert's gate and up share one tensor


@dataclass(frozen=True, slots=True)
class Config:
    """The whole text model. A dimension of 0 means the model lacks that part."""

    width: int
    layers: tuple[LayerConfig, ...]
    vocab_size: int
    context_length: int
    eps: float
    softcap: float | None  # logits = softcap · tanh(logits / softcap)
    window: int | None  # None: no layer slides
    ple_dim: int  # per-layer embedding width, per layer
    expert_count: int
    experts_used: int
    expert_width: int
    tied: bool  # the embedding table is also the output matrix
    suppress_tokens: tuple[int, ...]  # ids that are never sampled
    image_attention: Literal["causal", "both"]  # both: an image's tokens see each other in sliding layers
    image_windowed: bool  # but only within the window

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> "Config":
        try:
            if gguf.metadata.get("general.type") == "adapter":
                raise ModelError(not_a_model(gguf.source.name))
            config = _read_config(gguf.metadata, gguf.tensors)
            find_tensors(config, gguf.tensors)
        except ModelError as error:
            raise ModelError(f"{gguf.source.name}: {error}") from None
        return config


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requirements for a tensor. A matrix may be quantised; a vector, scale or router is F32, F16 or BF16."""

    shape: tuple[int, ...]  # in ggml's order: the contiguous (input) dimension comes first
    matrix: bool = False
    optional: bool = False
    spellings: tuple[str, ...] = ()  # other names some files use, tried in this order


def text_tensors(config: Config) -> dict[str, Wanted]:
    """Every tensor the text model uses, by its usual name; excludes K and V of layers with a donor."""
    d, vocab, ple_rows = config.width, config.vocab_size, config.ple_dim * len(config.layers)
    wanted = {
        "token_embd.weight": Wanted((d, vocab), matrix=True),
        "output.weight": Wanted((d, vocab), matrix=True, optional=True),
        "output_norm.weight": Wanted((d,)),
    }
    if config.ple_dim:
        wanted["per_layer_token_embd.weight"] = Wanted((ple_rows, vocab), matrix=True)
        wanted["per_layer_model_proj.weight"] = Wanted((d, ple_rows), matrix=True)
        wanted["per_layer_proj_norm.weight"] = Wanted((config.ple_dim,))
    for layer in config.layers:
        if not layer.sliding:
            wanted["rope_freqs.weight"] = Wanted((layer.head_dim // 2,), optional=True)
        parts = _attention_tensors(d, layer) | _ffn_tensors(d, layer)
        if config.ple_dim:
            parts |= _ple_tensors(d, config.ple_dim)
        if config.expert_count:
            parts |= _expert_tensors(config, layer)
        wanted |= {_in_block(layer.index, name): _spelled_in_block(layer.index, want) for name, want in parts.items()}
    return wanted


def find_tensors(config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's tensors by their usual names, all checked; absent optional ones are omitted."""
    found: dict[str, Tensor] = {}
    for name, want in text_tensors(config).items():
        tensor = next((tensors[spelling] for spelling in (name, *want.spellings) if spelling in tensors), None)
        if tensor is not None:
            _check_tensor(tensor, want)
            found[name] = tensor
        elif not want.optional:
            raise ModelError(f"the tensor {name} of shape {list(want.shape)} is missing.")
    return found


def _check_tensor(tensor: Tensor, want: Wanted) -> None:
    if tensor.shape != want.shape:
        raise ModelError(f"{tensor.name} has shape {list(tensor.shape)}, but the metadata says {list(want.shape)}.")
    types = MATRIX_TYPES if want.matrix else VECTOR_TYPES
    if tensor.type not in types:
        raise ModelError(
            f"{tensor.name} has type {tensor.type}, which wgemma does not support here; it takes {', '.join(types)}."
        )


def _attention_tensors(d: int, layer: LayerConfig) -> dict[str, Wanted]:
    q_width, kv_width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    wanted = {
        "attn_norm.weight": Wanted((d,)),
        "attn_q.weight": Wanted((d, q_width), matrix=True),
        "attn_q_norm.weight": Wanted((layer.head_dim,)),
        "attn_output.weight": Wanted((q_width, d), matrix=True),
        "post_attention_norm.weight": Wanted((d,), spellings=("attn_post_norm.weight",)),
    }
    if layer.donor is None:
        wanted["attn_k.weight"] = Wanted((d, kv_width), matrix=True)
        wanted["attn_k_norm.weight"] = Wanted((layer.head_dim,))
    if layer.has_v:
        wanted["attn_v.weight"] = Wanted((d, kv_width), matrix=True)
    return wanted


def _ffn_tensors(d: int, layer: LayerConfig) -> dict[str, Wanted]:
    return {
        "ffn_norm.weight": Wanted((d,), spellings=("ffn_pre_norm.weight",)),
        "ffn_gate.weight": Wanted((d, layer.ffn_width), matrix=True),
        "ffn_up.weight": Wanted((d, layer.ffn_width), matrix=True),
        "ffn_down.weight": Wanted((layer.ffn_width, d), matrix=True),
        "post_ffw_norm.weight": Wanted((d,), spellings=("ffn_post_norm.weight",)),
        "layer_output_scale.weight": Wanted((1,), optional=True, spellings=("layer_scalar.weight", "layer_scalar")),
    }


def _ple_tensors(d: int, ple_dim: int) -> dict[str, Wanted]:
    return {
        "inp_gate.weight": Wanted((d, ple_dim), matrix=True),
        "proj.weight": Wanted((ple_dim, d), matrix=True),
        "post_norm.weight": Wanted((d,)),
    }


def _expert_tensors(config: Config, layer: LayerConfig) -> dict[str, Wanted]:
    d, width, count = config.width, config.expert_width, config.expert_count
    wanted = {
        "ffn_gate_inp.weight": Wanted((d, count)),
        "ffn_gate_inp.scale": Wanted((d,)),
        "pre_ffw_norm_2.weight": Wanted((d,)),
        "post_ffw_norm_1.weight": Wanted((d,)),
        "post_ffw_norm_2.weight": Wanted((d,)),
        "ffn_down_exps.weight": Wanted((width, d, count), matrix=True),
        "ffn_down_exps.scale": Wanted((count,), spellings=("ffn_gate_inp.per_expert_scale",)),
    }
    if layer.fused_experts:
        return wanted | {"ffn_gate_up_exps.weight": Wanted((d, 2 * width, count), matrix=True)}
    halves = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
    return wanted | {half: Wanted((d, width, count), matrix=True) for half in halves}


def _in_block(index: int, name: str) -> str:
    return f"blk.{index}.{name}"


def _spelled_in_block(index: int, want: Wanted) -> Wanted:
    spellings = tuple(_in_block(index, spelling) for spelling in want.spellings)
    return Wanted(want.shape, want.matrix, want.optional, spellings)


class _Keys:
    """The `gemma4.*` keys. Each is one value or one per layer, and is checked when read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.layer_count = _whole(_full("block_count"), self.value("block_count"), 1, MAX_LAYERS)

    def __contains__(self, key: str) -> bool:
        return _full(key) in self._metadata

    def value(self, key: str) -> Any:
        if key not in self:
            raise ModelError(f"the key {_full(key)} is missing.")
        return self._metadata[_full(key)]

    def wholes(self, key: str, most: int, least: int = 1) -> tuple[int, ...]:
        return self._per_layer(key, lambda name, value: _whole(name, value, least, most))

    def numbers(self, key: str, least: float, most: float) -> tuple[float, ...]:
        return self._per_layer(key, lambda name, value: _number(name, value, least, most))

    def whole(self, key: str, most: int, least: int = 1) -> int:
        return self._same(key, self.wholes(key, most, least))

    def number(self, key: str, least: float, most: float) -> float:
        return self._same(key, self.numbers(key, least, most))

    def _per_layer(self, key: str, check: Callable[[str, Any], T]) -> tuple[T, ...]:
        name, value = _full(key), self.value(key)
        if not _is_array(value):
            return (check(name, value),) * self.layer_count
        if len(value) != self.layer_count:
            raise ModelError(f"{name} has {len(value)} entries for {self.layer_count} layers.")
        return tuple(check(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    def _same(self, key: str, values: tuple[T, ...]) -> T:
        if any(value != values[0] for value in values):
            raise ModelError(f"{_full(key)} must be the same in all layers, but it is {_shown(values)}.")
        return values[0]


def _full(key: str) -> str:
    return f"{ARCHITECTURE}.{key}"


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{name} must be a whole number, but it is {_shown(value)}.")
    if not least <= value <= most:
        raise ModelError(f"{name} is {_shown(value)}; it must be {least} to {most}.")
    return value


def _number(name: str, value: Any, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"{name} must be a number, but it is {_shown(value)}.")
    if not least <= value <= most:  # also true for NaN
        raise ModelError(f"{name} is {_shown(value)}; it must be {least:g} to {most:g}.")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _read_config(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Config:
    _check_architecture(metadata)
    keys = _Keys(metadata)
    layers = _read_layers(keys, tensors)
    vocab_size = _read_vocab_size(metadata, tensors)
    suppress_tokens = _read_suppressed(metadata, vocab_size)
    ple_dim = keys.whole("embedding_length_per_layer_input", MAX_WIDTH, least=0)
    expert_count, experts_used, expert_width = _read_experts(keys)
    _check_parts(tensors, ple_dim, expert_count)
    softcap = keys.number("final_logit_softcapping", 0, 1e6) if "final_logit_softcapping" in keys else 0.0
    return Config(
        width=keys.whole("embedding_length", MAX_WIDTH),
        layers=layers,
        vocab_size=vocab_size,
        context_length=keys.whole("context_length", MAX_CONTEXT),
        eps=keys.number("attention.layer_norm_rms_epsilon", 1e-30, 1),
        softcap=softcap or None,
        window=next((layer.window for layer in layers if layer.sliding), None),
        ple_dim=ple_dim,
        expert_count=expert_count,
        experts_used=experts_used,
        expert_width=expert_width,
        tied="output.weight" not in tensors,
        suppress_tokens=suppress_tokens,
        # No key says how images attend. They do so causally in models with per-layer embeddings, otherwise both ways;
        # the 12B, the only one that suppresses tokens, ignores the window.
        image_attention="causal" if ple_dim else "both",
        image_windowed=not suppress_tokens,
    )


def _check_architecture(metadata: Mapping[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture is None:
        raise ModelError("the key general.architecture is missing, so this is not a model file.")
    if architecture != ARCHITECTURE:
        hint = OTHER_PARTS.get(architecture, "") if isinstance(architecture, str) else ""
        raise ModelError(f"the architecture is {_shown(architecture)}; wgemma runs {ARCHITECTURE} only.{hint}")


def _read_vocab_size(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    table = tensors.get("token_embd.weight")
    if table is None:
        raise ModelError("the tensor token_embd.weight is missing.")
    if len(table.shape) != 2:
        raise ModelError(f"{table.name} has shape {list(table.shape)}; it must have two dimensions.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and not _is_array(tokens):
        raise ModelError(f"tokenizer.ggml.tokens must be an array, but it is {_shown(tokens)}.")
    if tokens is not None and len(tokens) != table.shape[1]:
        raise ModelError(f"{table.name} holds {table.shape[1]} tokens, but tokenizer.ggml.tokens lists {len(tokens)}.")
    return table.shape[1]


def _read_experts(keys: _Keys) -> tuple[int, int, int]:
    """Experts per layer, experts per token, and the width of each."""
    count = keys.whole("expert_count", MAX_EXPERTS, least=0) if "expert_count" in keys else 0
    if count == 0:
        return 0, 0, 0
    return count, keys.whole("expert_used_count", count), keys.whole("expert_feed_forward_length", MAX_WIDTH)


def _check_parts(tensors: Mapping[str, Tensor], ple_dim: int, expert_count: int) -> None:
    """Refuses parts the metadata does not mention: ignoring them would make the output wrong."""
    if not ple_dim and "per_layer_token_embd.weight" in tensors:
        raise ModelError(
            f"per_layer_token_embd.weight exists, but {_full('embedding_length_per_layer_input')} says there is none."
        )
    if not expert_count and (router := _in_block(0, "ffn_gate_inp.weight")) in tensors:
        raise ModelError(f"{router} exists, but {_full('expert_count')} says there are no experts.")


def _read_suppressed(metadata: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    name = "tokenizer.ggml.suppress_tokens"
    ids = metadata.get(name, ())
    if not _is_array(ids):
        raise ModelError(f"{name} must be an array, but it is {_shown(ids)}.")
    return tuple(_whole(f"{name}[{index}]", entry, 0, vocab_size - 1) for index, entry in enumerate(ids))


def _read_layers(keys: _Keys, tensors: Mapping[str, Tensor]) -> tuple[LayerConfig, ...]:
    pattern = _read_pattern(keys)
    head_dims, bases = _read_head_dims(keys, pattern), _read_bases(keys, pattern)
    donors = _read_donors(keys, pattern)
    heads = keys.wholes("attention.head_count", MAX_HEADS)
    kv_heads = _read_kv_heads(keys, pattern, heads, donors)
    ffn_widths = keys.wholes("feed_forward_length", MAX_WIDTH)
    window = keys.whole("attention.sliding_window", MAX_CONTEXT) if any(pattern) else None
    full_v = _full_layers_have_v(pattern, tensors)
    factors = "rope_freqs.weight" in tensors
    partial = _read_partial_rotary(keys)
    layers = []
    for i, sliding in enumerate(pattern):
        half = head_dims[i] // 2
        layers.append(
            LayerConfig(
                index=i,
                sliding=sliding,
                window=window if sliding else None,
                heads=heads[i],
                kv_heads=kv_heads[i],
                head_dim=head_dims[i],
                donor=donors[i],
                has_v=donors[i] is None and (sliding or full_v),
                rope_base=bases[i],
                rotary_pairs=half if sliding or factors else math.floor(partial * half),
                rope_factors=factors and not sliding,
                ffn_width=ffn_widths[i],
                fused_experts=_in_block(i, "ffn_gate_exps.weight") not in tensors
                or _in_block(i, "ffn_gate_up_exps.weight") in tensors,
            )
        )
    return tuple(layers)


def _read_pattern(keys: _Keys) -> tuple[bool, ...]:
    """True for sliding layers. A single number is a period: the last layer of each period is full."""
    key, count = "attention.sliding_window_pattern", keys.layer_count
    value = keys.value(key)
    if not _is_array(value):
        period = _whole(_full(key), value, 1, MAX_LAYERS)
        return tuple(index % period != period - 1 for index in range(count))
    if len(value) != count:
        raise ModelError(f"{_full(key)} has {len(value)} entries for {count} layers.")
    if any(not isinstance(entry, int) or entry not in (0, 1) for entry in value):
        raise ModelError(f"{_full(key)} must contain only true and false, but it is {_shown(value)}.")
    return tuple(bool(entry) for entry in value)


def _read_head_dims(keys: _Keys, pattern: Sequence[bool]) -> tuple[int, ...]:
    """One size for the full layers, one for the sliding ones; K, V and the rotation all span a whole head."""
    whole = keys.wholes("attention.key_length", MAX_HEAD_DIM)
    dims = _by_kind(keys, pattern, "attention.key_length", whole)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := _by_kind(keys, pattern, key, dims)) != dims:
            raise ModelError(f"{_full(key)} is {_shown(other)} by layer, but the heads are {_shown(dims)} wide.")
    for sliding in (True, False):
        if len({dim for dim, slides in zip(dims, pattern, strict=True) if slides == sliding}) > 1:
            raise ModelError(f"layers of one kind have heads of different sizes: {_shown(dims)}.")
    if any(dim % 2 for dim in dims):
        raise ModelError(f"a head size is odd, so it cannot be rotated in pairs: {_shown(dims)}.")
    return dims


def _by_kind(keys: _Keys, pattern: Sequence[bool], key: str, absent: tuple[int, ...]) -> tuple[int, ...]:
    """The plain key is about full layers, its `_swa` twin about sliding ones."""
    full = keys.wholes(key, MAX_HEAD_DIM) if key in keys else absent
    sliding = keys.wholes(f"{key}_swa", MAX_HEAD_DIM) if f"{key}_swa" in keys else absent
    return tuple(sliding[i] if slides else full[i] for i, slides in enumerate(pattern))


def _read_bases(keys: _Keys, pattern: Sequence[bool]) -> tuple[float, ...]:
    full = keys.numbers("rope.freq_base", 1, 1e12) if not all(pattern) else ()
    local = "rope.local.freq_base"
    key = local if local in keys and "rope.freq_base_swa" not in keys else "rope.freq_base_swa"
    sliding = keys.numbers(key, 1, 1e12) if any(pattern) else ()
    return tuple(sliding[i] if slides else full[i] for i, slides in enumerate(pattern))


def _read_partial_rotary(keys: _Keys) -> float:
    key = "rope.partial_rotary_factor"
    return keys.number(key, 0, 1) if key in keys else PARTIAL_ROTARY


def _read_kv_heads(
    keys: _Keys, pattern: Sequence[bool], heads: Sequence[int], donors: Sequence[int | None]
) -> tuple[int, ...]:
    """Older files have one number for all layers and another for the full ones, instead of one per layer."""
    key, legacy = "attention.head_count_kv", "attention.global_head_count_kv"
    sliding = keys.wholes(key, MAX_HEADS)
    full = sliding if legacy not in keys or _is_array(keys.value(key)) else keys.wholes(legacy, MAX_HEADS)
    stated = [sliding[i] if slides else full[i] for i, slides in enumerate(pattern)]
    counts = tuple(stated[i if donor is None else donor] for i, donor in enumerate(donors))
    for i, count in enumerate(counts):
        if heads[i] % count:
            raise ModelError(f"layer {i} has {heads[i]} query heads, which {count} KV heads cannot share evenly.")
    return counts


def _read_donors(keys: _Keys, pattern: Sequence[bool]) -> tuple[int | None, ...]:
    """The last layers have no K and V; each uses those of the last layer of its kind that has."""
    key, count = "attention.shared_kv_layers", len(pattern)
    own = count - (keys.whole(key, count, least=0) if key in keys else 0)
    donors: list[int | None] = [None] * own
    for index in range(own, count):
        donor = max((i for i in range(own) if pattern[i] == pattern[index]), default=None)
        if donor is None:
            kind = "sliding" if pattern[index] else "full"
            raise ModelError(f"layer {index} shares K and V, but none of the first {own} layers is {kind}.")
        donors.append(donor)
    return tuple(donors)


def _full_layers_have_v(pattern: Sequence[bool], tensors: Mapping[str, Tensor]) -> bool:
    """True if any full layer has a V, even an unused one; then every V another layer lacks is a missing tensor."""
    return any(not slides and _in_block(i, "attn_v.weight") in tensors for i, slides in enumerate(pattern))
