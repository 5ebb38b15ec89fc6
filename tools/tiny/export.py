"""Weights of a trained tiny model → one GGUF as Ollama writes them: `python tools/tiny/export.py WEIGHTS OUT.gguf`.

WEIGHTS is the folder train.py filled. Text matrices become a Q4_K_M mix by the project's own quantisers, the vision
tower F16, the audio tower BF16.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
from quantise import kind_of
from vocabulary import Vocabulary, metadata

from wgemma.files.writing import NewTensor, write_gguf
from wgemma.reference.quantize import quantize

LICENSE = "Apache-2.0"
TEXT = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
}  # fmt: skip
TOP = {
    "embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
VISION = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
}  # fmt: skip
AUDIO = {
    "feed_forward1.ffw_layer_1": "ffn_up", "feed_forward1.ffw_layer_2": "ffn_down",
    "feed_forward1.pre_layer_norm": "ffn_norm",
    "feed_forward1.post_layer_norm": "ffn_post_norm", "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1", "feed_forward2.pre_layer_norm": "ffn_norm_1",
    "feed_forward2.post_layer_norm": "ffn_post_norm_1", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.post": "attn_out", "self_attn.relative_k_proj": "linear_pos",
    "lconv1d.linear_start": "conv_pw1", "lconv1d.linear_end": "conv_pw2", "lconv1d.depthwise_conv1d": "conv_dw",
    "lconv1d.pre_layer_norm": "conv_norm", "lconv1d.conv_norm": "norm_conv", "norm_pre_attn": "ln1",
    "norm_post_attn": "ln2",
    "norm_out": "layer_pre_norm",
}  # fmt: skip
SINGLE = {
    "vision_tower.patch_embedder.input_proj": "v.patch_embd",
    "embed_vision.embedding_projection": "mm.input_projection",
    "audio_tower.subsample_conv_projection.layer0.conv": "a.conv1d.0",
    "audio_tower.subsample_conv_projection.layer1.conv": "a.conv1d.1",
    "audio_tower.subsample_conv_projection.layer0.norm": "a.conv1d.0.norm",
    "audio_tower.subsample_conv_projection.layer1.norm": "a.conv1d.1.norm",
    "audio_tower.subsample_conv_projection.input_proj_linear": "a.pre_encode.out", "audio_tower.output_proj": "mm.a.fc",
    "embed_audio.embedding_projection": "mm.a.input_projection",
}  # fmt: skip
_LAYER = re.compile(r"(.*?)layers\.(\d+)\.(.+)\.(weight|input_min|input_max|output_min|output_max)$")


def load(folder: Path) -> dict[str, np.ndarray]:
    """All weights by their name in transformers, without the `model.` in front."""
    weights: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("weights-*.npz")):
        with np.load(path) as file:
            weights |= {name.removeprefix("model."): file[name].astype(np.float32) for name in file.files}
    return weights


def new_tensor(kind: str, values: np.ndarray) -> NewTensor:
    return NewTensor(kind, values.shape[::-1], quantize(values, kind).tobytes())


def text_tensor(name: str, layer: int, layers: int, values: np.ndarray) -> NewTensor:
    """Matrices in the quantisation mix; Q8_0 for rows not a multiple of 256, F32 for small tensors."""
    if values.ndim == 1 or name == "ffn_gate_inp":
        return new_tensor("F32", values)
    if values.shape[-1] % 256:
        return new_tensor("Q8_0", values)
    return new_tensor(kind_of(name, layer, layers), values)


def convert(weights: dict[str, np.ndarray], layers: int) -> dict[str, NewTensor]:
    tensors: dict[str, NewTensor] = {}
    for full, values in weights.items():
        name = full.removeprefix("language_model.").replace(".linear.weight", ".weight")
        stem, suffix = name.rpartition(".")[0], name.rpartition(".")[2]
        match = _LAYER.match(name)
        if match and match[1] == "vision_tower.encoder.":
            kind = "F16" if values.ndim == 2 else "F32"
            tensors[f"v.blk.{match[2]}.{VISION[match[3]]}.{suffix}"] = new_tensor(kind, np.atleast_1d(values))
        elif match and match[1] == "audio_tower.":
            values = values[:, 0] if match[3].endswith("depthwise_conv1d") else values
            kind = "BF16" if values.ndim == 2 and values.shape[1] % 32 == 0 else "F32"
            tensors[f"a.blk.{match[2]}.{AUDIO[match[3]]}.{suffix}"] = new_tensor(kind, np.atleast_1d(values))
        elif name.endswith("self_attn.per_dim_scale"):  # the file stores it after the softplus
            layer = name.split(".")[2]
            tensors[f"a.blk.{layer}.per_dim_scale.weight"] = new_tensor("F32", np.log1p(np.exp(values)))
        elif name == "vision_tower.patch_embedder.position_embedding_table":
            tensors["v.position_embd.weight"] = new_tensor("F32", values)
        elif stem == "vision_tower.patch_embedder.input_proj":  # columns (row, column, colour) → colour planes
            planes = values.reshape(-1, 16, 16, 3).transpose(0, 3, 1, 2)
            tensors["v.patch_embd.weight"] = new_tensor("F16", planes)
        elif stem in SINGLE:
            kind = "F32" if values.ndim != 2 else "BF16" if stem.endswith("input_proj_linear") else "F16"
            tensors[f"{SINGLE[stem]}.{suffix}"] = new_tensor(kind, values)
        elif stem in TOP:
            tensors[f"{TOP[stem]}.weight"] = text_tensor(TOP[stem], layers // 2, layers, values)
        else:
            tensors |= _layer_tensor(name, layers, values)
    return tensors


def _layer_tensor(name: str, layers: int, values: np.ndarray) -> dict[str, NewTensor]:
    _, number, rest = name.split(".", 2)
    layer, stem = int(number), rest.removesuffix(".weight")
    if stem == "layer_scalar":
        return {f"blk.{layer}.layer_output_scale.weight": new_tensor("F32", values)}
    if stem == "router.scale":
        return {f"blk.{layer}.ffn_gate_inp.scale": new_tensor("F32", values)}
    if stem == "router.per_expert_scale":
        return {f"blk.{layer}.ffn_down_exps.scale": new_tensor("F32", values)}
    if stem == "experts.gate_up_proj":
        return {f"blk.{layer}.ffn_gate_up_exps.weight": text_tensor("ffn_gate_up_exps", layer, layers, values)}
    if stem == "experts.down_proj":
        return {f"blk.{layer}.ffn_down_exps.weight": text_tensor("ffn_down_exps", layer, layers, values)}
    return {f"blk.{layer}.{TEXT[stem]}.weight": text_tensor(TEXT[stem], layer, layers, values)}


def describe(config: Any, vision: Any, audio: Any, count: int) -> dict[str, Any]:
    """The metadata of the text model and its towers."""
    sliding = [kind == "sliding_attention" for kind in config.layer_types]
    layers = config.num_hidden_layers
    each = [config.per_layer_config[i] for i in range(layers)]
    near, full = each[sliding.index(True)], each[sliding.index(False)]
    kv_heads = [layer.num_key_value_heads for layer in each]
    shared = config.num_kv_shared_layers
    widths = [
        config.intermediate_size * (2 if config.use_double_wide_mlp and i >= layers - shared else 1)
        for i in range(layers)
    ]
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": widths if len(set(widths)) > 1 else widths[0],
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": kv_heads if len(set(kv_heads)) > 1 else kv_heads[0],
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": near.head_dim,
        "attention.value_length_swa": near.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": sliding,
        "attention.shared_kv_layers": shared,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": near.head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    if config.enable_moe_block:
        keys |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.top_k_experts,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if vision is not None:
        keys |= {
            "vision.block_count": vision.num_hidden_layers,
            "vision.embedding_length": vision.hidden_size,
            "vision.feed_forward_length": vision.intermediate_size,
            "vision.attention.head_count": vision.num_attention_heads,
            "vision.attention.layer_norm_epsilon": vision.rms_norm_eps,
            "vision.patch_size": vision.patch_size,
            "vision.num_channels": 3,
            "vision.projector.scale_factor": vision.pooling_kernel_size,
        }
    if audio is not None:
        keys |= {
            "audio.block_count": audio.num_hidden_layers,
            "audio.embedding_length": audio.hidden_size,
            "audio.feed_forward_length": 4 * audio.hidden_size,
            "audio.attention.head_count": audio.num_attention_heads,
            "audio.conv_kernel_size": audio.conv_kernel_size,
            "audio.attention.layer_norm_epsilon": audio.rms_norm_eps,
        }
    return {
        "general.architecture": "gemma4",
        "general.name": "wgemma tiny" if vision is not None else "wgemma tiny experts",
        "general.license": LICENSE,
        "general.file_type": 15,
        "general.quantization_version": 2,
        "general.parameter_count": count,
        **{f"gemma4.{key}": value for key, value in keys.items()},
    }


def export(folder: Path, vocabulary: Path, out: Path, *, experts: bool) -> None:
    from model import config, experts_config

    weights = load(folder)
    whole = config()
    text = experts_config() if experts else whole.text_config
    tensors = convert(weights, text.num_hidden_layers)
    half = text.per_layer_config[text.num_hidden_layers - 1].head_dim // 2
    tensors["rope_freqs.weight"] = new_tensor("F32", np.where(np.arange(half) < half // 4, 1, 1e30).astype(np.float32))
    count = sum(values.size for values in weights.values())
    facts = describe(text, None if experts else whole.vision_config, None if experts else whole.audio_config, count)
    write_gguf(out, facts | metadata(Vocabulary.load(vocabulary)), dict(sorted(tensors.items())))
    print(f"{out}: {out.stat().st_size:,} bytes, {count:,} parameters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--experts", action="store_true")
    chosen = parser.parse_args()
    export(chosen.weights, chosen.vocabulary, chosen.out, experts=chosen.experts)
