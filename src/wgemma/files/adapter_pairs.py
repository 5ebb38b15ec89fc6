"""What a low-rank adapter is, whatever file it comes from: two thin matrices for each matrix it changes."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgemma.errors import AdapterError
from wgemma.files.adapter_names import EMBEDDING, OUTPUT, layer_of, order
from wgemma.files.floats import all_finite
from wgemma.files.gguf import Tensor

MAX_ALPHA = 1e9  # far above any real one, and no scale made of it leaves float32


@dataclass(frozen=True, slots=True)
class Pair:
    """W + scale · B · A stands for W [rows, columns]; where W is one matrix per expert, so are A and B.

    For the embedding, too, A reaches over the width and B over the tokens: token t gets scale · B[t] · A.
    """

    rank: int
    columns: int
    rows: int
    a: "array[float]"  # [experts, rank, columns]
    b: "array[float]"  # [experts, rows, rank]
    scale: float
    experts: int = 1

    def __post_init__(self) -> None:
        sizes = self.experts * self.rank * self.columns, self.experts * self.rows * self.rank
        if (len(self.a), len(self.b)) != sizes:
            raise ValueError(f"a pair of {len(self.a)} and {len(self.b)} numbers, its shape takes {sizes}")

    @property
    def alpha(self) -> float:
        """What divided by the rank is the scale; without the last digit, which the division may have cost."""
        return float(f"{self.scale * self.rank:.15g}")

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the matrix it fits, in ggml's order."""
        return (self.columns, self.rows) if self.experts == 1 else (self.columns, self.rows, self.experts)


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """All pairs of one adapter by the GGUF name of their matrix ("blk.3.attn_q.weight"), in the order of the layers.

    "token_embd.weight" changes the embedding of the input alone and "output.weight" the output matrix alone, also in
    models where one table is both.
    """

    name: str
    pairs: dict[str, Pair]
    alpha: float  # what the file says for all; a pair's own scale is what counts
    base: str | None = None  # the model it was trained on, as the file names it

    @property
    def rank(self) -> int:
        """The largest."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def parameters(self) -> int:
        return sum(len(pair.a) + len(pair.b) for pair in self.pairs.values())


def checked_alpha(key: str, value: Any) -> float:
    """An alpha out of a file."""
    if type(value) not in (int, float) or not abs(value) <= MAX_ALPHA:  # also where it is NaN
        raise AdapterError(f"{key} is {value!r:.40}; it must be a number up to {MAX_ALPHA:.0e}.")
    return float(value)


def gathered(name: str, pairs: Mapping[str, Pair], alpha: float, base: str | None) -> AdapterFile:
    """An adapter of pairs that were read, in order; one without any, or with numbers that are none, is refused."""
    if not pairs:
        raise AdapterError("there is no adapted matrix in this file.")
    for tensor, pair in pairs.items():
        if not (all_finite(pair.a) and all_finite(pair.b)):
            raise AdapterError(f"the adapter of {tensor} holds numbers that are not finite; it is damaged.")
    return AdapterFile(name, {tensor: pairs[tensor] for tensor in sorted(pairs, key=order)}, alpha, base)


def check_fits(adapter: AdapterFile, tensors: Mapping[str, Tensor]) -> None:
    """Refuses an adapter of which any matrix is not in the model, or not of that shape."""
    for name, pair in adapter.pairs.items():
        tensor = tensors.get(name)
        if tensor is None and name == OUTPUT:
            tensor = tensors.get(EMBEDDING)  # one table is both
        if tensor is None:
            raise AdapterError(f"{adapter.name} changes {name}, which this model does not have{_why(name, tensors)}.")
        if tensor.shape != pair.shape:
            raise AdapterError(
                f"{adapter.name} does not fit this model: it changes a {name} of shape {list(pair.shape)}, "
                f"but the model's is {list(tensor.shape)}."
            )


def _why(name: str, tensors: Mapping[str, Tensor]) -> str:
    layer, last = layer_of(name), max((layer_of(tensor) or 0 for tensor in tensors), default=0)
    if layer is not None and layer > last:
        return f": it has {last + 1} layers"
    if name.endswith((".attn_k.weight", ".attn_v.weight")):
        return ": the layer takes its keys or values from elsewhere"
    return ""
