"""GGUF adapters are read and written in llama.cpp's format; what it would get wrong is refused."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from adapter_maker import adapter, difference, largest_error, numbers, pair
from gguf_writer import write_gguf
from wgemma import AdapterError, Gguf
from wgemma.files.adapters import AdapterFile, read_adapter, write_gguf_adapter

METADATA = {
    "general.architecture": "gemma4",
    "general.type": "adapter",
    "adapter.type": "lora",
    "adapter.lora.alpha": 8.0,
}
A, B = ("F32", (32, 4), numbers(1, 128).tobytes()), ("F32", (4, 6), numbers(2, 24).tobytes())
INFINITE = struct.pack("<f", float("inf")) * 128
TENSORS = {"blk.0.attn_q.weight.lora_a": A, "blk.0.attn_q.weight.lora_b": B}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.gguf"


def read(path: Path, tensors: dict[str, Any] = TENSORS, **metadata: Any) -> AdapterFile:
    """The adapter with some keys changed; "__" stands for "." and None leaves a key out."""
    changed = METADATA | {key.replace("__", "."): value for key, value in metadata.items()}
    path.write_bytes(write_gguf({key: value for key, value in changed.items() if value is not None}, tensors))
    return read_adapter(path)


def refused(path: Path, *arguments: Any, **metadata: Any) -> str:
    with pytest.raises(AdapterError) as caught:
        read(path, *arguments, **metadata)
    return str(caught.value).removeprefix(f"{path}: ")


def test_the_scale_is_alpha_by_rank(path: Path) -> None:
    found = read(path).pairs["blk.0.attn_q.weight"]
    assert (found.rank, found.columns, found.rows, found.experts, found.scale) == (4, 32, 6, 1, 2)
    assert (found.a, found.b) == (numbers(1, 128), numbers(2, 24))


@pytest.mark.parametrize("alpha", [0.0, None])
def test_without_alpha_nothing_is_scaled(path: Path, alpha: float | None) -> None:
    assert read(path, adapter__lora__alpha=alpha).pairs["blk.0.attn_q.weight"].scale == 1


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_smaller_types_are_read_too(path: Path, kind: str) -> None:
    there = gguf.GGMLQuantizationType[kind]
    values = np.frombuffer(numbers(1, 128), np.float32).reshape(4, 32)
    data = gguf.quants.quantize(values, there)
    found = read(path, TENSORS | {"blk.0.attn_q.weight.lora_a": (kind, (32, 4), data.tobytes())})
    assert found.pairs["blk.0.attn_q.weight"].a.tobytes() == gguf.quants.dequantize(data, there).tobytes()


def test_the_embedding_is_stored_the_other_way_round(path: Path) -> None:
    tokens, width = numbers(1, 10 * 4), numbers(2, 6 * 4)
    tensors = {
        "token_embd.weight.lora_a": ("F32", (4, 10), tokens.tobytes()),
        "token_embd.weight.lora_b": ("F32", (4, 6), width.tobytes()),
    }
    found = read(path, tensors).pairs["token_embd.weight"]
    assert (found.rank, found.columns, found.rows) == (4, 6, 10)
    expected = 2 * np.reshape(tokens, (10, 4)) @ np.reshape(width, (6, 4)).T
    np.testing.assert_allclose(difference(found), expected, atol=1e-8)
    write_gguf_adapter(read_adapter(path), path)
    with Gguf.open(path) as written:
        assert {name: written.read(name) for name in tensors} == {name: tensors[name][2] for name in tensors}
        assert [written.tensors[name].shape for name in tensors] == [(4, 10), (4, 6)]


def test_experts_have_a_dimension_of_their_own(path: Path) -> None:
    original = adapter(blk__0__ffn_up_exps=pair(8, 6, experts=3), blk__0__ffn_down_exps=pair(6, 8, experts=3))
    write_gguf_adapter(original, path)
    with Gguf.open(path) as written:
        assert written.tensors["blk.0.ffn_up_exps.weight.lora_a"].shape == (8, 2, 3)
        assert written.tensors["blk.0.ffn_up_exps.weight.lora_b"].shape == (2, 6, 3)
    assert read_adapter(path).pairs == original.pairs


def test_a_scale_of_its_own_goes_into_b(path: Path) -> None:
    original = adapter(
        blk__0__attn_q=pair(8, 6), blk__0__attn_k=pair(8, 6), blk__1__attn_q=pair(8, 6, rank=3, scale=0.7),
        blk__1__attn_k=pair(8, 6, rank=1, scale=4),
    )  # fmt: skip
    write_gguf_adapter(original, path, base="a model")
    again = read_adapter(path)
    assert (again.alpha, again.base) == (4, "a model")
    assert largest_error(again, original) < 1e-6
    assert again.pairs["blk.1.attn_k.weight"] == original.pairs["blk.1.attn_k.weight"]  # same alpha: nothing to fold


def test_an_adapter_that_is_off_stays_off(path: Path) -> None:
    write_gguf_adapter(adapter(blk__0__attn_q=pair(8, 6, scale=0)), path)
    assert not difference(read_adapter(path).pairs["blk.0.attn_q.weight"]).any()


def test_the_gguf_package_reads_what_is_written(path: Path) -> None:
    write_gguf_adapter(adapter(blk__0__attn_q=pair(8, 6)), path)
    opened = gguf.GGUFReader(path)
    assert {key: opened.fields[key].contents() for key in METADATA} == METADATA | {"adapter.lora.alpha": 4.0}
    assert {tensor.name: tensor.data.shape for tensor in opened.tensors} == {
        "blk.0.attn_q.weight.lora_a": (2, 8), "blk.0.attn_q.weight.lora_b": (6, 2)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general__type": "model"}, "general.type is 'model', so this is not an adapter."),
        ({"general__type": None}, "general.type is 'model', so this is not an adapter."),
        ({"adapter__type": "control_vector"}, "adapter.type is 'control_vector'; wgemma applies 'lora' only."),
        ({"general__architecture": "llama"}, "this adapter is for 'llama'; wgemma runs gemma4 only."),
        ({"adapter__alora__invocation_tokens": [1, 2]}, "this is an activated LoRA (aLoRA), which wgemma "
         "does not apply."),
        ({"adapter__lora__alpha": "8"}, "adapter.lora.alpha is '8'; it must be a number up to 1e+09."),
        ({"adapter__lora__alpha": float("nan")}, "adapter.lora.alpha is nan; it must be a number up to 1e+09."),
    ],
)  # fmt: skip
def test_another_kind_of_file_is_refused_by_name(path: Path, metadata: dict[str, Any], reason: str) -> None:
    assert refused(path, **metadata) == reason


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "this file adapts no matrix."),
        ({"blk.0.attn_q.weight.lora_a": A}, "blk.0.attn_q.weight.lora_b is missing."),
        ({"blk.0.attn_q.weight.lora_b": B}, "blk.0.attn_q.weight.lora_a is missing."),
        (TENSORS | {"output_norm.weight": A}, "output_norm.weight is not part of a LoRA adapter: its name"),
        (TENSORS | {"v.blk.0.attn_q.weight.lora_a": A}, "v.blk.0.attn_q.weight is part of the vision tower; wgemma"),
        (TENSORS | {"blk.0.wqkv.weight.lora_a": A}, "wgemma cannot adapt blk.0.wqkv.weight; it adapts"),
        (TENSORS | {"blk.0.attn_q.weight.lora_b": ("F32", (5, 6), None)}, "do not fit together: [32, 4] and [5, 6]."),
        (TENSORS | {"blk.0.attn_q.weight.lora_b": ("F32", (4, 6, 2), None)}, "[4, 6, 2]; the limit is 2 dimensions."),
        (TENSORS | {"blk.0.attn_q.weight.lora_a": ("Q4_0", (32, 4), None)}, "type Q4_0; wgemma reads adapters in F32"),
        (
            {
                "blk.0.ffn_up_exps.weight.lora_a": ("F32", (8, 2), None),
                "blk.0.ffn_up_exps.weight.lora_b": ("F32", (2, 6, 3), None),
            },
            "do not fit together: [8, 2] and [2, 6, 3].",
        ),
        (TENSORS | {"blk.0.attn_q.weight.lora_a": ("F32", (32, 4), INFINITE)}, "NaN or Inf"),
    ],
)  # fmt: skip
def test_tensors_that_are_no_adapter_are_refused_by_name(path: Path, tensors: dict[str, Any], reason: str) -> None:
    assert reason in refused(path, tensors)
