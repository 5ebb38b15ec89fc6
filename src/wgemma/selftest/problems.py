"""The self-test's problems: shapes, inputs, and which problems a model needs.

A problem has the width of the model's own matrix, so it tests the pipeline the model will use. Its numbers repeat along
the row with a period of 256 (or 32, in narrow matrices), and the answer does not depend on how often: for a sum over k
periods, the inputs are divided by k. Activations after the last whole period are zero, and norm vectors make up for
those zeros in the mean.

Inputs are hashes, so they are the same on every machine; NumPy is not used, because a web page does not have it.
The answers are in `answers.json`, computed from the NumPy twins by tools/make_answers.py.
"""

import hashlib
import json
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from operator import mul
from typing import Literal, NamedTuple, TypeAlias

from wgemma.engine.options import Options
from wgemma.engine.sampling import Sampling
from wgemma.engine.slots import bucket_of
from wgemma.files.gguf import Tensor
from wgemma.files.quants import BY_NAME
from wgemma.model.attention import in_pieces
from wgemma.model.config import Config, find_tensors
from wgemma.model.forms import FEW as MOST_FEW
from wgemma.model.forms import MADE_WORK, MIDDLE, MOST_PAIRS, NARROW, WORK, large_from, pairs, tile_shares
from wgemma.model.planes import PLANES
from wgemma.model.rows import PAGE
from wgemma.model.text import attention_inputs

SUMS = 12  # numbers kept per output
PERIODS = (256, 32)
ROWS = 70  # of a matrix: more than the width of a tile
FEW = 3  # rows of activations, for matvec.wgsl; middle.wgsl has them over and over
MANY = (30, 129)  # for both forms of tile.wgsl: fewer than a short tile's rows, and more than a tall one's
EXPERTS, SLOTS = 7, 3  # experts of ten rows each, and experts per row
CHOSEN = (6, 0, 3, 2, 5, 1, 0, 4, 6)  # [FEW, SLOTS]
CROWDED = (6, 0, 3, 2, 6, 1, 0, 4, 6)  # repeated for MANY[1] rows: more than a tile's for one expert, none for another
TOKENS = (3, 69, 0)
SCALE, EPS, CAP = 0.75, 1e-6, 4.0
SIDE = (80, 5)  # stride and offset of a gate's factor
PRODUCTS = 300  # per row of `activate`
PLE_LAYERS, PLE_DIM = 2, 80
ROUTED, ROUTES = 128, 8  # experts to choose from, and how many are chosen

HEAD_SIZES = (32, 64, 128, 256, 512)
HEADS, KV_HEADS = 4, 2
WINDOW = 200  # more keys than attention takes at a time, except with the smallest heads
DEPTH = 8 * PAGE  # of a full layer's history; a ring has half of it
PAGES, RING = (5, 2, 7, 0, 3, 6, 1, 4), (2, 0, 3, 1)  # their order in the arena
TURNING, BASE = 4, 100.0  # pairs that rotate: always the same few; the others do not
LOOKING = {  # rows of attention problems by kind of layer: (used, position, sees)
    "sliding": ((1, 5, 5), (1, 100, 103), (1, 300, 300), (0, 9, 9)),
    "full": ((1, 0, 0), (1, 200, 200), (1, 511, 511), (0, 9, 9)),
}
STORING = ((1, 254, 254), (1, 255, 255), (1, 256, 256), (0, 257, 257))  # rows of kv problems
SEEN = ((253, 3), (256, 2))  # positions to check: (first, count)

VOCAB, POSITION, SUPPRESSED = 1500, 41, 77  # 77 is the largest logit; more than fit the list of sample.wgsl
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.9, top_k=20, top_p=0.91, min_p=0.02, seed=0x1234_5678_9ABC_DE01),
    "free": Sampling(temperature=0.9, top_k=0, top_p=0.91, min_p=0.03, seed=0x1234_5678_9ABC_DE01),
}


# -- inputs


def numbers(label: str, count: int) -> "array[float]":
    """Numbers from −2 to 2 that are exact in f32."""
    words = struct.unpack(f"<{count}h", hashlib.shake_128(label.encode()).digest(2 * count))
    return array("f", [word / 16384 for word in words])


def norms(label: str, count: int) -> "array[float]":
    """Norm weights: around one, like trained ones."""
    return array("f", [1 + number / 8 for number in numbers(label, count)])


def query_norms(label: str, count: int) -> "array[float]":
    """Small norm weights, so that no single key dominates."""
    return array("f", [number / 2 for number in norms(label, count)])


def period_of(columns: int) -> int:
    return next(period for period in PERIODS if columns >= period)


def periods_of(columns: int) -> int:
    """The number of whole periods in a row."""
    return columns // period_of(columns)


def fullness(columns: int) -> float:
    """The factor by which the zeros after the last period reduce the rms."""
    return math.sqrt(periods_of(columns) * period_of(columns) / columns)


def repeated(values: "array[float]", columns: int, scales: Sequence[float]) -> "array[float]":
    """Repeats rows of one period, row i · scales[i % len(scales)], and pads them with zeros."""
    period, count = period_of(columns), periods_of(columns)
    zeros = array("f", bytes(4 * (columns - count * period)))
    out = array("f")
    for row in range(len(values) // period):
        scale = scales[row % len(scales)]
        out += array("f", [scale * value for value in values[row * period : (row + 1) * period]]) * count + zeros
    return out


def averaged(values: Sequence[float], columns: int) -> list[float]:
    """Back to rows of one period: the mean over all periods."""
    period, count = period_of(columns), periods_of(columns)
    end = count * period
    starts = range(0, len(values), columns)
    return [sum(values[start + i : start + end : period]) / count for start in starts for i in range(period)]


# Which bytes of a block hold a float's sign and exponent, which of their bits stay random, and the exponent to set, so
# that weights are well below one and nothing is subnormal.
_EXPONENTS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "F32": ((3,), 0x80, 0x3D),
    "F16": ((1,), 0x87, 0x28),
    "BF16": ((1,), 0x80, 0x3D),
    "Q4_0": ((1,), 0x83, 0x20),
    "Q4_1": ((1, 3), 0x83, 0x20),
    "Q5_0": ((1,), 0x83, 0x1C),
    "Q5_1": ((1, 3), 0x83, 0x1C),
    "Q8_0": ((1,), 0x83, 0x14),
    "Q2_K": ((81, 83), 0x83, 0x14),
    "Q3_K": ((109,), 0x83, 0x10),
    "Q4_K": ((1, 3), 0x83, 0x0C),
    "Q5_K": ((1, 3), 0x83, 0x08),
    "Q6_K": ((209,), 0x83, 0x04),
    "IQ3_XXS": ((1,), 0x83, 0x0C),
    "IQ3_S": ((1,), 0x83, 0x0C),
    "IQ4_NL": ((1,), 0x83, 0x14),
    "IQ4_XS": ((1,), 0x83, 0x04),
    "MXFP4": ((0,), 0x03, 0x78),
}


def blocks(kind: str, count: int, label: str = "weights") -> bytes:
    """`count` values of this type, in file format."""
    places, mask, exponent = _EXPONENTS[kind]
    size = BY_NAME[kind].nbytes
    raw = bytearray(hashlib.shake_128(label.encode()).digest(count // BY_NAME[kind].elements * size))
    tame = bytes(byte & mask | exponent for byte in range(256))
    for place in places:
        raw[place::size] = raw[place::size].translate(tame)
    return bytes(raw)


def matrix_bytes(kind: str, columns: int) -> bytes:
    """The matrix for problems of this type and width; every row repeats a period."""
    period = period_of(columns)
    raw, row = blocks(kind, ROWS * period), BY_NAME[kind].row_nbytes(period)
    count, rest = periods_of(columns), BY_NAME[kind].row_nbytes(columns % period)
    rows = (raw[start : start + row] for start in range(0, len(raw), row))
    return b"".join(data * count + data[:rest] for data in rows)


def fine_bytes(values: Sequence[float]) -> bytes:
    """Blocks of 32 numbers as to_bytes.wgsl makes them with FINE."""
    out = b""
    for start in range(0, len(values), 32):
        block = values[start : start + 32]
        scale = max(map(abs, block)) / 32639
        whole = [round(number / scale) if scale else 0 for number in block]
        upper, lower = (bytes(number + add >> shift & 255 for number in whole) for add, shift in ((128, 8), (0, 0)))
        out += upper + struct.pack("<4f", scale, scale * sum(whole[:16]), scale * sum(whole[16:]), 0) + lower
    return out


def from_bytes(data: bytes) -> list[float]:
    """Back from the bytes of to_bytes.wgsl, without FINE."""
    return [code * scale for *codes, scale, _, _, _ in struct.iter_unpack("<32b4f", data) for code in codes]


def pages(*, sliding: bool) -> Sequence[int]:
    """The page table of a sequence; a ring is gone round twice."""
    return 2 * RING if sliding else PAGES


def place_of(position: int, *, sliding: bool) -> int:
    return pages(sliding=sliding)[position // PAGE] * PAGE + position % PAGE


def cached(label: str, count: int, kv: str) -> bytes:
    """Keys or values in the cache's format, the same numbers in f16 and f32."""
    raw = blocks("F16", count, label)
    return raw if kv == "f16" else array("f", struct.unpack(f"<{count}e", raw)).tobytes()


def crowded() -> list[int]:
    """The experts of MANY[1] rows: [rows, SLOTS]."""
    count = MANY[1] * SLOTS
    return (list(CROWDED) * -(-count // len(CROWDED)))[:count]


def logits() -> "array[float]":
    """Only tokens below 256 are likely."""
    return array(
        "f", [2 * number - (4 if token >= 256 else 0) for token, number in enumerate(numbers("logits", VOCAB))]
    )


def fold(values: Sequence[float]) -> list[float]:
    """A few sums that depend on every value and its position."""
    weights = [1 + i * 37 % 64 / 64 for i in range(-(-len(values) // SUMS))]
    return [sum(map(mul, values[i::SUMS], weights)) for i in range(min(SUMS, len(values)))]


# -- which problems a model needs


# The input of a product or norm: x itself, the norm or sum of the residual stream, its norm for the logits, the pieces
# of a history, the input of a matrix of few rows, or the input of each row's experts.
Source: TypeAlias = Literal["", "x", "norm", "sum", "head", "joined", "thin", "experts"]
Then: TypeAlias = Literal["", "geglu", "ple", "weighted"]  # what follows a product
Activation: TypeAlias = Literal["", "GEGLU", "APART", "SIDE"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A task for a kernel, with a weight type, a number of columns, or a head size."""

    kernel: str
    source: Source = ""
    then: Then = ""
    activation: Activation = ""
    sliding: bool = False  # the kind of layer, which may lack its own values
    without_v: bool = False
    sampling: str = ""  # one of SAMPLINGS
    suppressed: bool = False
    kind: str = ""
    columns: int = 0
    head: int = 0
    fine: bool = False  # for a few rows: see `Result` and `matvec_form`
    deep: bool = False
    in_bytes: bool = False  # for many rows: their input; for middle.wgsl: its result
    tall: bool = False
    shared: bool = False
    n: int = 0  # for middle.wgsl: the matrix's rows, which decide on its form, and the most rows of activations
    rows: int = 0

    @property
    def answer(self) -> str:
        """The name of its answer, which many widths and forms of a product share."""
        period = period_of(self.columns) if self.columns else 0
        source, head = ("x", 0) if self.source in ("joined", "thin") else (self.source, self.head)
        layer = ("sliding" if self.sliding else "full") if self.kernel in ("kv", "attention") else ""
        flags = ("without v" if self.without_v else "", "suppressed" if self.suppressed else "")
        kernel = "matvec" if self.kernel == "middle" else self.kernel
        words = (kernel, source, self.then, self.activation, layer, self.sampling, *flags, self.kind, period, head)
        return " ".join(str(word) for word in words if word)

    def kernels(self, *, compact: bool) -> set[str]:
        """The kernels a wrong answer implicates; `compact` as of the device."""
        if self.kernel == "attention":
            return {"attention", "attention_few", "attention_join", "attention_tile", "attention_direct", "queries"}
        if compact and self.kernel in ("matvec", "tile"):
            return {"direct"}
        if self.kernel == "matvec":
            return {"thin": {"matvec", "low_project"}, "experts": {"experts_matvec"}}.get(self.source, {"matvec"})
        if self.kernel == "tile":
            also = ((self.source == "experts", {"group"}), (self.in_bytes, {"tile_bytes", "to_bytes"}))
            return {"tile"}.union(*(kernels for takes, kernels in (*also, (self.shared, {"add_up"})) if takes))
        if self.kernel == "sample":
            return {"sample", "peaks", *(["adjust"] if self.suppressed else [])}
        return {self.kernel}


class Use(NamedTuple):
    """How a matrix is used: its input, what follows, and whether its fast products are `fine`."""

    source: Source
    then: Then = ""
    fine: bool = False


_USES = {
    **dict.fromkeys(("ffn_down", "proj", "per_layer_model_proj"), Use("x")),
    **dict.fromkeys(("attn_q", "attn_k", "attn_v"), Use("norm", fine=True)),
    "attn_output": Use("x", fine=True),
    "ffn_gate_inp": Use("thin"),
    "inp_gate": Use("sum", "ple"),
    "output": Use("head"),
    "ffn_gate_up_exps": Use("experts", "geglu"),
    "ffn_down_exps": Use("experts", "weighted"),
}
MATVEC_USES = (
    *({use._replace(fine=False) for use in _USES.values()} - {Use("thin")}),
    *(Use("experts"), Use("norm", "geglu"), Use("x", "geglu")),
)
_SHARED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_down", "inp_gate")  # if K is long


def problems_of(config: Config, tensors: Mapping[str, Tensor], options: Options) -> list[Problem]:
    """The problems for this model's kernels, with those of several sequences only if there may be some."""
    width = config.width
    found = {Problem("norm", "norm", columns=width)}
    found.update(_matrix_problems(config, find_tensors(config, tensors), options))
    for layer in config.layers:
        if layer.donor is None:
            shape = Problem("kv", sliding=layer.sliding, without_v=not layer.has_v, head=layer.head_dim)
            found |= {shape, replace(shape, kernel="attention")}
    if config.ple_dim:
        found |= {Problem("norm", "sum", columns=width), Problem("ple"), Problem("activate", activation="SIDE")}
    if config.expert_count:
        found |= {Problem(kernel, columns=width) for kernel in ("experts_norm", "experts_join")} | {Problem("route")}
    suppressed = bool(config.suppress_tokens)
    found.update(Problem("sample", sampling=how, suppressed=suppressed) for how in SAMPLINGS)
    return sorted(found)


def _matrix_problems(config: Config, tensors: Mapping[str, Tensor], options: Options) -> Iterator[Problem]:
    narrowest: dict[Problem, int] = {}  # tile.wgsl has one pipeline for all widths
    tall: set[Problem] = set()  # those with a matrix that takes tall tiles
    shared: list[Problem] = []  # one is enough: only the adding up has its own pipeline
    middle: dict[Problem, Problem] = {}  # the largest of each kind is enough
    groups = [group for layer in config.layers for group in attention_inputs(layer, tensors)]
    together = {tensor: sum(other.shape[1] for other in group) for group in groups for tensor in group}
    for name, tensor in tensors.items():
        part, kind, columns = name.removesuffix(".weight").rpartition(".")[2], tensor.type, tensor.shape[0]
        if part in ("token_embd", "per_layer_token_embd"):
            yield Problem("embed", kind=kind, columns=columns)
        use = Use("head") if part == "token_embd" and config.tied else _USES.get(part)
        if part in ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"):
            other = name.replace("_gate", "_up") if "_gate" in part else name.replace("_up", "_gate")
            alike, routed = tensors[other].type == kind, part.endswith("_exps")
            use = Use("experts" if routed else "x" if config.expert_count else "norm", "geglu" if alike else "")
            yield Problem("activate", activation="GEGLU" if alike else "SIDE" if routed else "APART")
        if part == "ffn_gate_up_exps":
            yield Problem("activate", activation="GEGLU")
        if use is None:
            continue
        source, then, fine = use
        rows = together.get(tensor, tensor.shape[1] * (2 if then == "geglu" else 1)) if source != "experts" else 0
        layer = config.layers[int(name.split(".")[1])] if part == "attn_output" else None
        joined = layer is not None and in_pieces(layer)
        makes = joined or (source in ("norm", "sum", "head") and pairs(columns) <= MOST_PAIRS)
        product = Problem("matvec", source, then, kind=kind, columns=columns, fine=fine)
        product = replace(product, deep=rows * columns // 32 >= large_from(makes))
        if layer is not None and joined:
            product = replace(product, source="joined", head=layer.head_dim)
        yield product
        if source not in ("thin", "experts") and _in_the_middle(kind, rows * columns // 32, makes, options):
            down = tensors[f"{name.partition('.ffn_')[0]}.ffn_down.weight"] if then == "geglu" else None
            hands_on = down is not None and _in_the_middle(down.type, math.prod(down.shape) // 32, False, options)
            some = Problem("middle", source if source in ("sum", "head") else "x", then, kind=kind)
            if fine and _rounds(kind, options):
                some = replace(some, fine=True, source=product.source if joined else "x", head=product.head)
            large = replace(some, columns=columns, n=rows, rows=bucket_of(options.slots), in_bytes=hands_on)
            large = replace(large, shared=part in _SHARED)
            middle[some] = max(large, middle.get(some, large), key=lambda other: (other.n * other.columns, other))
        if source == "head":
            continue
        in_bytes = part.startswith("ffn_") and source != "thin"  # with precision "fast"
        tile = Problem("tile", kind=kind, in_bytes=in_bytes)
        if source == "experts":
            tile = replace(tile, source="experts", then="weighted" if then == "weighted" else "")
        narrowest[tile] = min(columns, narrowest.get(tile, columns))
        if rows > NARROW:
            tall.add(tile)
        if part in _SHARED and tile_shares(1, columns // 32, 8) > 1:
            shared.append(Problem("tile", kind=kind, columns=columns, shared=True))
    for tile, columns in narrowest.items():
        yield replace(tile, columns=columns, tall=tile in tall)
    yield from sorted(shared)[:1]
    yield from middle.values()


def _in_the_middle(kind: str, blocks: int, makes: bool, options: Options) -> bool:
    """Whether decoding with all slots takes middle.wgsl for a matrix of this type and size, if the device can round;
    `makes` as in `Matmuls`."""
    rows = bucket_of(options.slots)
    if _rounds(kind, options):
        return rows >= MIDDLE[0] and rows * blocks > (MADE_WORK if makes else WORK)
    return rows > MOST_FEW


def _rounds(kind: str, options: Options) -> bool:
    return options.precision == "fast" and PLANES[kind].quick


@cache
def answers() -> dict[str, list[list[float]]]:
    """The folded values of each output, by name."""
    found: dict[str, list[list[float]]] = json.loads((files("wgemma.selftest") / "answers.json").read_bytes())
    return found
