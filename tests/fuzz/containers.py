"""GGUF files, safetensors with their adapter configuration, and adapters as GGUF."""

import json
import struct
from collections.abc import Sequence
from io import BytesIO
from random import Random
from typing import Any

import adapter_maker
from fuzz.harness import Reader
from fuzz.mutation import json_bytes, mutate
from gguf_parts import cut
from gguf_writer import write_gguf
from wgemma import Gguf, GgufError, Tokenizer
from wgemma.api import fitting_adapter
from wgemma.files.gguf import Tensor
from wgemma.files.safetensors import write_safetensors
from wgemma.files.sources import MemorySource
from wgemma.sync import run

TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "a", "b", "ab", "▁", "▁a", "<0x41>"]
VOCABULARY: dict[str, Any] = {
    "general.architecture": "gemma4",
    "general.alignment": 32,
    "tokenizer.ggml.model": "gemma4",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 2, 3, 1, 1, 1, 1, 1, 6],
    "tokenizer.ggml.merges": ["a b", "▁ a"],
    "tokenizer.ggml.eos_token_id": 1,
    "gemma4.attention.sliding_window_pattern": [True, False],
    "gemma4.final_logit_softcapping": 30.0,
    "split.count": 1,
}
TENSORS = {
    "token_embd.weight": ("Q4_K", (256, 3), None),
    "blk.0.attn_norm.weight": ("F32", (5,), None),
    "blk.0.ffn_gate_exps.weight": ("Q8_0", (32, 2, 2), None),
    "blk.0.ffn_up.weight": ("IQ3_XXS", (256, 2), None),
    "blk.0.ffn_down.weight": ("MXFP4", (32, 2), None),
    "v.patch_embd.weight": ("F16", (2, 2, 3, 2), None),
}
GGUFS = [  # between them they hold every kind of field
    write_gguf(VOCABULARY, TENSORS),
    write_gguf(VOCABULARY),
    write_gguf(tensors=TENSORS, version=2),
    write_gguf(),
]
COLUMNS, ROWS = 6, 4
MODULE = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "google/gemma-4-E2B-it",
    "r": 2,
    "lora_alpha": 4,
    "rank_pattern": {"q_proj": 2, "^model\\.layers\\.[0-9]+\\.mlp": 3},
    "alpha_pattern": {"layers\\.(0|1)\\.self_attn\\.q_proj": 4.0},
    "target_modules": ["q_proj"],
    "target_parameters": None,
    "bias": "none",
    "use_rslora": False,
    "init_lora_weights": True,
}
PATTERN_PARTS = ("q_proj", ".", "\\.", "*", "+", "?", "{2,}", "{999999}", "(", ")", "|", "[a-z]", "[", "\\d", "^", "$")


def examine_gguf(data: bytes) -> str:
    gguf = Gguf.open(data)
    for tensor in gguf.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(data), f"{tensor} reaches past the end"
    try:
        for item in gguf.metadata.values():
            if isinstance(item, Sequence) and not isinstance(item, str):
                list(item)
        Tokenizer.from_gguf(gguf).encode("ab a<turn|> ABC", special=True)
    except GgufError:
        return "opened, vocabulary refused"
    return "opened"


PARTS = cut(Gguf.open(GGUFS[0]), 3)


def make_parts(dice: Random) -> list[bytes]:
    """Parts of one file: some changed, doubled, left out or in another order."""
    parts = [mutate(part, dice) if dice.random() < 0.3 else part for part in PARTS]
    return dice.choices(parts, k=dice.randrange(2, 5)) if dice.random() < 0.3 else dice.sample(parts, 3)


def examine_parts(parts: list[bytes]) -> str:
    gguf = Gguf.open(parts)
    for name in gguf.tensors:
        assert len(gguf.read(name)) == gguf.tensors[name].nbytes
    return "opened"


def _model() -> dict[str, Tensor]:
    gguf = Gguf.open(write_gguf(VOCABULARY, {"blk.0.attn_q.weight": ("F32", (COLUMNS, ROWS), None)}))
    return dict(gguf.tensors)


def _weights() -> bytes:
    file, pair = BytesIO(), adapter_maker.pair(COLUMNS, ROWS)
    tensors = {
        f"{MODULE}.lora_A.weight": ((pair.rank, COLUMNS), pair.a),
        f"{MODULE}.lora_B.weight": ((ROWS, pair.rank), pair.b),
    }
    write_safetensors(file, tensors, {"format": "pt"})
    return file.getvalue()


def _gguf_adapter() -> bytes:
    metadata = {
        "general.architecture": "gemma4",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 4.0,
    }
    halves = {
        "blk.0.attn_q.weight.lora_a": ("F32", (COLUMNS, 2), None),
        "blk.0.attn_q.weight.lora_b": ("F32", (2, ROWS), None),
    }
    return write_gguf(metadata, halves)


def readers() -> list[Reader]:
    model, weights, gguf_adapter = _model(), _weights(), _gguf_adapter()
    config = json.dumps(CONFIG).encode()
    (length,) = struct.unpack_from("<Q", weights)
    header, body = json.loads(weights[8 : 8 + length]), weights[8 + length :]

    def make_safetensors(dice: Random) -> tuple[bytes, bytes]:
        if dice.random() < 0.3:
            return config, mutate(weights, dice)
        changed = json_bytes(header, dice)
        return config, struct.pack("<Q", len(changed)) + changed + body

    def make_config(dice: Random) -> tuple[bytes, bytes]:
        if dice.random() < 0.3:
            pattern = "".join(dice.choices(PATTERN_PARTS, k=dice.randrange(1, 60)))
            return json.dumps(
                {**CONFIG, dice.choice(("rank_pattern", "alpha_pattern")): {pattern: 2}}
            ).encode(), weights
        return json_bytes(CONFIG, dice), weights

    def examine_adapter(files: tuple[bytes, ...]) -> str:
        sources = tuple(MemorySource(data) for data in files)
        run(fitting_adapter(model, sources if len(sources) > 1 else sources[0], None))
        return "read"

    return [
        Reader("parts", 30, make_parts, examine_parts),
        Reader("gguf", 110, lambda dice: mutate(dice.choice(GGUFS), dice), examine_gguf),
        Reader("safetensors", 70, make_safetensors, examine_adapter),
        Reader("adapter config", 70, make_config, examine_adapter),
        Reader("adapter gguf", 50, lambda dice: (mutate(gguf_adapter, dice),), examine_adapter),
    ]
