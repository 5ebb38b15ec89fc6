"""A low-rank adapter, whatever file it comes from: two thin matrices for each matrix it changes."""

import shlex
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wgemma.errors import AdapterError, GgufError, SourceError
from wgemma.files.adapter_names import EMBEDDING, OUTPUT, layer_of, order
from wgemma.files.floats import all_finite
from wgemma.files.gguf import Tensor

MAX_ALPHA = 1e9  # far above any real one, and small enough that no scale overflows float32


@dataclass(frozen=True, slots=True)
class Pair:
    """W + scale · B · A replaces W [rows, columns]; if W has one matrix per expert, so do A and B.

    For the embedding, too, A spans the width and B the tokens: token t gets scale · B[t] · A.
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
            raise ValueError(f"a pair has {len(self.a)} and {len(self.b)} numbers, but its shape takes {sizes}")

    @property
    def alpha(self) -> float:
        """scale · rank, rounded to 15 digits because the division may have lost the last one."""
        return float(f"{self.scale * self.rank:.15g}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix it fits, in ggml's order."""
        return _shape(self.columns, self.rows, self.experts)


def _shape(columns: int, rows: int, experts: int) -> tuple[int, ...]:
    return (columns, rows) if experts == 1 else (columns, rows, experts)


@dataclass(frozen=True, slots=True)
class PairHead:
    """A pair whose numbers have not been read yet; `read` returns A and B."""

    rank: int
    columns: int
    rows: int
    scale: float
    experts: int
    read: "Callable[[], Awaitable[tuple[array[float], array[float]]]]"

    @property
    def shape(self) -> tuple[int, ...]:
        return _shape(self.columns, self.rows, self.experts)


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """All pairs of one adapter by the GGUF name of their matrix ("blk.3.attn_q.weight"), in layer order.

    "token_embd.weight" changes only the input embedding and "output.weight" only the output matrix, even in models
    where one table serves as both.
    """

    name: str
    pairs: dict[str, Pair]
    alpha: float  # the file's global value; what applies is each pair's scale
    base: str | None = None  # the base model, as the file names it

    @property
    def rank(self) -> int:
        """The largest rank of any pair."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def parameters(self) -> int:
        return sum(len(pair.a) + len(pair.b) for pair in self.pairs.values())


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter by its header. The numbers are read once it is known to fit."""

    name: str
    pairs: dict[str, PairHead]
    alpha: float
    base: str | None
    close: Callable[[], None]
    where: str = ""  # the file, for errors

    @property
    def rank(self) -> int:
        return max(pair.rank for pair in self.pairs.values())

    async def read(self) -> AdapterFile:
        """Reads all pairs and closes the file; refuses NaN and Inf."""
        pairs: dict[str, Pair] = {}
        try:
            with adapter_errors(self.where):
                for tensor, head in self.pairs.items():
                    a, b = await head.read()
                    if not (all_finite(a) and all_finite(b)):
                        raise AdapterError(f"the adapter of {tensor} contains NaN or Inf; it is damaged.")
                    pairs[tensor] = Pair(head.rank, head.columns, head.rows, a, b, head.scale, head.experts)
        finally:
            self.close()
        return AdapterFile(self.name, pairs, self.alpha, self.base)


@contextmanager
def adapter_errors(where: str) -> Iterator[None]:
    """Turns a file's errors into `AdapterError`s that begin with its name."""
    try:
        yield
    except (AdapterError, GgufError, SourceError, OSError) as error:
        message = f"{error.strerror or error}." if isinstance(error, OSError) else str(error)
        raise AdapterError(f"{where}: {message}" if where and not message.startswith(where) else message) from None


def checked_alpha(key: str, value: Any) -> float:
    """An alpha read from a file; raises `AdapterError` if it is not a reasonable number."""
    if type(value) not in (int, float) or not abs(value) <= MAX_ALPHA:  # also true for NaN
        raise AdapterError(f"{key} is {value!r:.40}; it must be a number up to {MAX_ALPHA:.0e}.")
    return float(value)


def gathered(
    name: str, pairs: Mapping[str, PairHead], alpha: float, base: str | None, close: Callable[[], None]
) -> OpenAdapter:
    """An adapter from the pairs of a file, in order; refuses one with no pairs."""
    if not pairs:
        raise AdapterError("this file adapts no matrix.")
    return OpenAdapter(name, {tensor: pairs[tensor] for tensor in sorted(pairs, key=order)}, alpha, base, close)


def check_fits(adapter: AdapterFile | OpenAdapter, tensors: Mapping[str, Tensor], model: str = "this model") -> None:
    """Raises `AdapterError` if the model lacks a matrix the adapter changes, or has it in another shape."""
    for name, pair in adapter.pairs.items():
        tensor = tensors.get(name)
        if tensor is None and name == OUTPUT:
            tensor = tensors.get(EMBEDDING)  # one table serves as both
        if tensor is None:
            raise AdapterError(f"{adapter.name} changes {name}, which {model} does not have{_why(name, tensors)}.")
        if tensor.shape != pair.shape:
            raise AdapterError(
                f"{adapter.name} does not fit {model}: it changes a {name} of shape {list(pair.shape)}, "
                f"but the model's is {list(tensor.shape)}."
            )
        most = pair.columns if name in (EMBEDDING, OUTPUT) else max(pair.columns, pair.rows)
        if pair.rank > most:
            raise AdapterError(f"{adapter.name} changes {name} with rank {pair.rank}; more than {most} adds nothing.")


def _why(name: str, tensors: Mapping[str, Tensor]) -> str:
    layer, last = layer_of(name), max((layer_of(tensor) or 0 for tensor in tensors), default=0)
    if layer is not None and layer > last:
        return f": it has {last + 1} layers"
    if name.endswith((".attn_k.weight", ".attn_v.weight")):
        return ": that layer shares its keys or values with another"
    return ""


def not_a_model(path: str) -> str:
    """What to tell someone who gives an adapter as a model."""
    return f"this is a LoRA adapter, not a model. Add it to one: `wgemma run MODEL --adapter {shlex.quote(path)}`."
