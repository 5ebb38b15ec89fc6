"""Files as others write them: other types, other spellings, split experts, an output matrix of its own, small bindings.

Each is rewritten from a fixture and compared with the NumPy reference on the very same file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from numpy.typing import NDArray

import wgemma
from gguf_writer import write_gguf
from random_weights import randomised
from wgemma.files.quants import BY_NAME
from wgemma.gpu.native import NativeDevice
from wgemma.reference.decoder import Reference
from wgemma.reference.dequantize import dequantize
from wgemma.reference.lab import random_blocks
from wgemma.reference.quantize import quantize

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
IDS = [2, *np.random.default_rng(5).integers(24, 1000, 39).tolist()]


def read(path: Path) -> tuple[dict[str, object], Tensors]:
    with wgemma.Gguf.open(path) as file:
        metadata = {k: v if isinstance(v, int | float | str) else list(v) for k, v in file.metadata.items()}
        return metadata, {t.name: (t.type, t.shape, file.read(t.name)) for t in file.tensors.values()}


def as_type(raw: bytes, shape: tuple[int, ...], kind: str) -> bytes:
    """F16 weights in another type; where nobody here can quantise, random blocks with sensible scales."""
    values = dequantize(raw, "F16", shape[::-1])
    if kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"):
        return quantize(values, kind).tobytes()
    if kind in ("Q5_0", "Q5_1"):
        return oracle.quants.quantize(values, oracle.GGMLQuantizationType[kind]).tobytes()
    return random_blocks(np.random.default_rng(1), kind, values.size // BY_NAME[kind].elements).tobytes()


def check(path: Path, device: NativeDevice, most: float = 5e-4, **options: Any) -> None:
    """One chunk, a few rows and single rows agree with the reference."""
    with wgemma.Gguf.open(path) as file:
        expected = Reference(file).logits(IDS)
    with wgemma.load(path, device=device, kv="f32", **options) as model:
        for chunks in ([40], [12], [1] * 12):
            got = model.logits(IDS[: sum(chunks)], chunks=chunks)
            part = expected[: len(got)]
            error = np.sqrt(((got - part) ** 2).mean(1) / (part**2).mean(1)).max()
            assert error <= most


def rewritten(shared: Path, tmp_path: Path, model: str, change: Callable[[Tensors], Tensors]) -> Path:
    metadata, tensors = read(shared / f"models/{model}-F16.gguf")
    path = tmp_path / "rewritten.gguf"
    path.write_bytes(write_gguf(metadata, change(tensors)))
    return path


RARE = ["Q4_1", "Q2_K", "Q3_K", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4"]
KINDS = ["F32", "BF16", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", *RARE]


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_type_computes_everywhere(shared: Path, gpu: NativeDevice, tmp_path: Path, kind: str) -> None:
    def change(tensors: Tensors) -> Tensors:
        elements = BY_NAME[kind].elements
        return {
            name: (kind, shape, as_type(raw, shape, kind))
            if was == "F16" and len(shape) == 2 and shape[0] % elements == 0
            else (was, shape, raw)
            for name, (was, shape, raw) in tensors.items()
        }

    check(rewritten(shared, tmp_path, "tiny-e2b", change), gpu)


@pytest.mark.parametrize("kind", RARE)
def test_rare_types_round_no_worse_than_the_others(shared: Path, gpu: NativeDevice, tmp_path: Path, kind: str) -> None:
    path = randomised(shared / "models/tiny-e2b-F16.gguf", tmp_path / "rare.gguf", kind)
    check(path, gpu, most=6e-2, precision="fast")  # 0.016 in Q4_K


@pytest.mark.parametrize("kind", ["IQ3_S", "IQ4_NL"])
def test_the_host_may_hold_a_table_of_a_rare_type(shared: Path, gpu: NativeDevice, tmp_path: Path, kind: str) -> None:
    check(randomised(shared / "models/tiny-e2b-F16.gguf", tmp_path / "rare.gguf", kind), gpu, ple="host")


EXPERTS = [("F16", "F16"), ("Q4_K", "Q4_K"), ("Q8_0", "F16"), ("Q5_0", "Q5_0")]
EXPERTS += [("IQ4_XS", "IQ4_XS"), ("IQ3_XXS", "Q2_K")]


@pytest.mark.parametrize("kinds", EXPERTS)
def test_split_experts_and_the_other_spelling_of_their_scale(
    shared: Path, gpu: NativeDevice, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    def change(tensors: Tensors) -> Tensors:
        out: Tensors = {}
        for name, (kind, shape, raw) in tensors.items():
            if name.endswith("ffn_gate_up_exps.weight"):
                width = shape[1] // 2
                halves = np.frombuffer(raw, np.float16).reshape(shape[2], 2, width, shape[0])
                for i, half in enumerate(("gate", "up")):
                    data = np.ascontiguousarray(halves[:, i]).tobytes()
                    goal = (shape[0], width, shape[2])
                    new = name.replace("gate_up", half)
                    out[new] = (kinds[i], goal, as_type(data, goal, kinds[i]))
            elif name.endswith("ffn_down_exps.scale"):
                out[name.replace("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale")] = (kind, shape, raw)
            else:
                out[name] = (kind, shape, raw)
        return out

    check(rewritten(shared, tmp_path, "tiny-26b-a4b", change), gpu)


def test_gate_and_up_of_different_types(shared: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        return {
            name: ("Q8_0", shape, as_type(raw, shape, "Q8_0")) if "ffn_up" in name else (kind, shape, raw)
            for name, (kind, shape, raw) in tensors.items()
        }

    check(rewritten(shared, tmp_path, "tiny-31b", change), gpu)


def test_an_output_matrix_of_its_own(shared: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        kind, shape, raw = tensors["token_embd.weight"]
        rows: NDArray[np.float16] = np.frombuffer(raw, np.float16).reshape(shape[::-1])
        return {**tensors, "output.weight": (kind, shape, np.ascontiguousarray(rows[::-1]).tobytes())}

    check(rewritten(shared, tmp_path, "tiny-31b", change), gpu)


@pytest.mark.parametrize("model", ["tiny-e2b-Q4_K_M", "tiny-26b-a4b-F16"])
def test_matrices_larger_than_a_binding_are_cut_into_parts(shared: Path, model: str) -> None:
    device, path = NativeDevice(compact=False), shared / f"models/{model}.gguf"
    wgemma.load(path, device=device, kv="f32").close()  # the self-test's cache needs limits that WebGPU guarantees
    device.limits = replace(device.limits, binding=200_000 if "e2b" in model else 1 << 20)
    check(path, device)
    device.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "blk.1.attn_q.weight"}, r"blk\.1\.attn_q\.weight.*missing"),
        (lambda t: {**t, "output_norm.weight": ("F32", (8,), bytes(32))}, r"output_norm\.weight has shape \[8\]"),
        (
            lambda t: {**t, "blk.0.ffn_up.weight": ("NVFP4", t["blk.0.ffn_up.weight"][1], None)},
            r"blk\.0\.ffn_up\.weight has type NVFP4",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_anything_is_uploaded(
    shared: Path, gpu: NativeDevice, tmp_path: Path, change: Callable[[Tensors], Tensors], message: str
) -> None:
    before = gpu.allocated
    with pytest.raises(wgemma.ModelError, match=message):
        wgemma.load(rewritten(shared, tmp_path, "tiny-31b", change), device=gpu)
    assert gpu.allocated == before
