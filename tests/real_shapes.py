"""Header-only GGUF files of the real models' shapes: sparse on disk, every weight zero, every tensor in its place."""

import struct
from pathlib import Path
from typing import Any

from gguf_writer import string, tensor_nbytes, value
from wgemma.files.quants import BY_NAME

E2B: dict[str, Any] = {"layers": 35, "width": 1536, "period": 5, "heads": 8, "kv": 1, "ffn": 6144, "shared": 20}
VOCAB = 262_144


def more_bits(index: int, count: int) -> bool:
    """llama.cpp's rule for which layers of a Q4_K_M file get more bits."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def e2b_tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name → (type, shape) of a Q4_K_M E2B."""
    d, layers = E2B["width"], E2B["layers"]
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("Q6_K", (d, VOCAB)),
        "per_layer_token_embd.weight": ("Q6_K", (256 * layers, VOCAB)),
        "per_layer_model_proj.weight": ("BF16", (d, 256 * layers)),
        "per_layer_proj_norm.weight": ("F32", (256,)),
        "output_norm.weight": ("F32", (d,)),
    }
    for i in range(layers):
        full = (i + 1) % E2B["period"] == 0
        head = 512 if full else 256
        ffn = E2B["ffn"] * (2 if i >= layers - E2B["shared"] else 1)
        better = "Q6_K" if more_bits(i, layers) else "Q4_K"
        rows = {
            "attn_q": ("Q4_K", (d, 8 * head)),
            "attn_k": ("Q4_K", (d, head)),
            "attn_v": (better, (d, head)),
            "attn_output": ("Q4_K", (8 * head, d)),
            "ffn_gate": ("Q4_K", (d, ffn)),
            "ffn_up": ("Q4_K", (d, ffn)),
            "ffn_down": (better, (ffn, d)),
            "inp_gate": ("Q4_K", (d, 256)),
            "proj": ("Q4_K", (256, d)),
            "layer_output_scale": ("F32", (1,)),
            "attn_q_norm": ("F32", (head,)),
            "attn_k_norm": ("F32", (head,)),
        }
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        rows |= dict.fromkeys(norms, ("F32", (d,)))
        found |= {f"blk.{i}.{name}.weight": entry for name, entry in rows.items()}
    return found


def e2b_metadata() -> dict[str, Any]:
    layers = E2B["layers"]
    values = {
        "block_count": layers,
        "context_length": 131_072,
        "embedding_length": E2B["width"],
        "embedding_length_per_layer_input": 256,
        "feed_forward_length": [E2B["ffn"] * (2 if i >= layers - E2B["shared"] else 1) for i in range(layers)],
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [(i + 1) % E2B["period"] != 0 for i in range(layers)],
        "attention.shared_kv_layers": E2B["shared"],
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 512,
        "rope.dimension_count_swa": 256,
        "final_logit_softcapping": 30.0,
    }
    return {"general.architecture": "gemma4"} | {f"gemma4.{key}": entry for key, entry in values.items()}


def write_e2b(path: Path) -> None:
    """The file; it takes a few kilobytes of disk and claims 3.4 GB."""
    metadata, tensors = e2b_metadata(), e2b_tensors()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(entry) for key, entry in metadata.items())
    offset = 0
    for name, (kind, shape) in tensors.items():
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, BY_NAME[kind].id, offset)
        offset += -(-tensor_nbytes(kind, shape) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(-(-len(head) // 32) * 32 + offset)
