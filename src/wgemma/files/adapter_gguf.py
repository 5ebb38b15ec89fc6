"""Adapters as GGUF files, in llama.cpp's format: `X.lora_a` and `X.lora_b` for each matrix X, one alpha for all.

scale = alpha / rank of the pair, or 1 if alpha is 0
X.lora_a  [rank, columns]    X.lora_b  [rows, rank]       the contiguous dimension last; experts first
token_embd.weight is the other way round: lora_a [tokens, rank], lora_b [width, rank]
"""

from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wgemma.errors import AdapterError
from wgemma.files.adapter_names import EMBEDDING, check_tensor, is_experts
from wgemma.files.adapter_pairs import AdapterFile, OpenAdapter, PairHead, checked_alpha, gathered
from wgemma.files.floats import float_bytes, floats, scaled, transposed
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.paths import user_path
from wgemma.files.writing import NewTensor, write_gguf

TYPES = ("F32", "F16", "BF16", "Q8_0")


@dataclass(frozen=True, slots=True)
class _Half:
    """One of the two tensors of a pair, shape [experts, outer, inner]."""

    tensor: Tensor
    experts: int
    outer: int
    inner: int


def open_gguf_adapter(gguf: Gguf, name: str) -> OpenAdapter:
    alpha = _alpha(gguf.metadata)
    pairs = {matrix: _pair(gguf, matrix, a, b, alpha) for matrix, (a, b) in _halves(gguf).items()}
    base = gguf.metadata.get("general.base_model.0.name")
    return gathered(name, pairs, alpha, base if isinstance(base, str) else None, gguf.close)


def _alpha(metadata: dict[str, Any]) -> float:
    """The adapter's alpha, after checking that the file is a LoRA adapter for Gemma 4."""
    kind = metadata.get("general.type", "model")
    if kind != "adapter":
        raise AdapterError(f"general.type is {kind!r:.40}, so this is not an adapter.")
    method = metadata.get("adapter.type")
    if method != "lora":
        raise AdapterError(f"adapter.type is {method!r:.40}; wgemma applies 'lora' only.")
    architecture = metadata.get("general.architecture")
    if architecture != "gemma4":
        raise AdapterError(f"this adapter is for {architecture!r:.40}; wgemma runs gemma4 only.")
    if any(key.startswith("adapter.alora") for key in metadata):
        raise AdapterError("this is an activated LoRA (aLoRA), which wgemma does not apply.")
    return checked_alpha("adapter.lora.alpha", metadata.get("adapter.lora.alpha", 0.0))


def _halves(gguf: Gguf) -> dict[str, tuple[_Half, _Half]]:
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in gguf.tensors.values():
        matrix, _, half = tensor.name.rpartition(".lora_")
        if half not in ("a", "b"):
            raise AdapterError(f"{tensor.name} is not part of a LoRA adapter: its name must end in .lora_a or .lora_b.")
        check_tensor(matrix)
        found.setdefault(matrix, {})[half] = tensor
    for matrix, halves in found.items():
        if len(halves) < 2:
            lacking = "b" if "a" in halves else "a"
            raise AdapterError(f"{matrix}.lora_{lacking} is missing.")
    return {matrix: (_half(matrix, halves["a"]), _half(matrix, halves["b"])) for matrix, halves in found.items()}


def _half(matrix: str, tensor: Tensor) -> _Half:
    if tensor.type not in TYPES:
        raise AdapterError(f"{tensor.name} has type {tensor.type}; wgemma reads adapters in {', '.join(TYPES)}.")
    dimensions = 3 if is_experts(matrix) else 2
    if len(tensor.shape) > dimensions:
        raise AdapterError(f"{tensor.name} has shape {list(tensor.shape)}; the limit is {dimensions} dimensions.")
    inner, outer, experts = (*tensor.shape, 1, 1)[:3]  # writers may omit dimensions of 1
    return _Half(tensor, experts, outer, inner)


def _pair(gguf: Gguf, matrix: str, a: _Half, b: _Half, alpha: float) -> PairHead:
    table = matrix == EMBEDDING
    ranks = (a.inner if table else a.outer), b.inner
    if ranks[0] != ranks[1] or a.experts != b.experts:
        raise AdapterError(
            f"{a.tensor.name} and {b.tensor.name} do not fit together: "
            f"{list(a.tensor.shape)} and {list(b.tensor.shape)}."
        )
    rank = b.inner
    scale = alpha / rank if alpha else 1.0

    async def read() -> "tuple[array[float], array[float]]":
        first, second = await _numbers(gguf, a.tensor), await _numbers(gguf, b.tensor)
        return (transposed(second, rank), first) if table else (first, second)

    if table:
        return PairHead(rank, b.outer, a.outer, scale, 1, read)
    return PairHead(rank, a.inner, b.outer, scale, a.experts, read)


async def _numbers(gguf: Gguf, tensor: Tensor) -> "array[float]":
    return floats(await gguf.source.read(tensor.offset, tensor.nbytes), tensor.type)


def write_gguf_adapter(adapter: AdapterFile, path: str | Path, *, base: str | None = None) -> None:
    """Writes a file that llama.cpp loads. It has one alpha, the most common; other alphas are folded into their B."""
    alphas = Counter(pair.alpha for pair in adapter.pairs.values() if pair.scale)
    alpha = alphas.most_common(1)[0][0] if alphas else 1.0
    metadata: dict[str, Any] = {
        "general.architecture": "gemma4",
        "general.type": "adapter",
        "general.name": adapter.name,
        "general.file_type": 0,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    if base := base or adapter.base:
        metadata |= {"general.base_model.count": 1, "general.base_model.0.name": base}
    tensors: dict[str, NewTensor] = {}
    for matrix, pair in adapter.pairs.items():
        outer = () if pair.experts == 1 else (pair.experts,)
        a, b = pair.a, scaled(pair.b, pair.alpha / alpha)
        shapes = (pair.columns, pair.rank, *outer), (pair.rank, pair.rows, *outer)
        if matrix == EMBEDDING:
            a, b = b, transposed(a, pair.columns)
            shapes = shapes[1], (pair.rank, pair.columns)
        tensors[f"{matrix}.lora_a"] = NewTensor("F32", shapes[0], float_bytes(a))
        tensors[f"{matrix}.lora_b"] = NewTensor("F32", shapes[1], float_bytes(b))
    try:
        write_gguf(user_path(path, AdapterError), metadata, tensors)
    except OSError as error:
        raise AdapterError(f"{path} cannot be written: {error.strerror or error}.") from None
