"""Gemma 4's text model in NumPy: float32, one obvious function per mathematical step.

The oracle the GPU is tested against, and natively the fallback device. It keeps weights quantised, as in the file, and
dequantises a slab of rows when needed, so real models fit into a few gigabytes; at most `CACHE_BYTES` stay
dequantised.

    h = √d · E[token]                         or an image's or sound's embedding, unscaled
    per layer:   h += norm(attention(norm(h)))
                 h += norm(ffn(norm(h)))      with experts beside it in the mixture model
                 h += norm(W · (gelu(W · h) ⊙ ple))
                 h *= scale
    logits = cap · tanh(E · norm(h) / cap)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgemma.errors import ModelError
from wgemma.files.adapters import AdapterFile
from wgemma.files.gguf import Gguf
from wgemma.model.config import Config, LayerConfig, find_tensors
from wgemma.model.rotary import check_factors
from wgemma.reference.dequantize import dequantize
from wgemma.sync import run

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]
Spans = Sequence[tuple[int, int]]

CACHE_BYTES = 1 << 30
SLAB_BYTES = 64 << 20  # of float32 values at a time

# The token whose per-layer embedding soft rows use.
PAD = 0


class Reference:
    """The model of one file. `logits` is a pure function; `step` continues where the last step ended."""

    def __init__(self, gguf: Gguf) -> None:
        self.config = Config.from_gguf(gguf)
        self._weights = _Weights(gguf, self.config)
        self._cache = _Cache()
        self.adapters: Sequence[AdapterFile] = ()
        self.scales: Mapping[str, float] = {}  # by name; unnamed ones are off

    def logits(
        self,
        ids: Sequence[int],
        *,
        embeddings: Mapping[int, Floats] | None = None,
        spans: Spans = (),
        keep: dict[str, Floats] | None = None,
    ) -> Floats:
        """The soft-capped logits after every token: [rows, vocab].

        embeddings  soft tokens: start row → [count, width]; the ids in those rows are ignored
        spans       images as (start, end) of their rows, whose tokens see each other in some models
        keep        is filled with "input", "ple", "layer 0", "layer 1" …, "output" (after the last norm)
        """
        return self._forward(_Cache(), ids, embeddings or {}, spans, keep)

    def step(self, ids: Sequence[int], *, embeddings: Mapping[int, Floats] | None = None, spans: Spans = ()) -> Floats:
        """The logits at every position of `ids`, which continue the ids of earlier steps."""
        return self._forward(self._cache, ids, embeddings or {}, spans, None)

    @property
    def position(self) -> int:
        """The number of tokens processed so far."""
        return self._cache.length

    def rewind(self, position: int = 0) -> None:
        """Forgets every token from `position` on."""
        if not 0 <= position <= self.position:
            raise ModelError(f"position {position} is not among the {self.position} tokens processed so far.")
        self._cache.truncate(position)

    def _forward(
        self,
        cache: "_Cache",
        ids: Sequence[int],
        embeddings: Mapping[int, Floats],
        spans: Spans,
        keep: dict[str, Floats] | None,
    ) -> Floats:
        config, kept = self.config, {} if keep is None else keep
        if not len(ids):
            return np.empty((0, config.vocab_size), dtype=np.float32)
        tokens, h = self._input(ids, embeddings)  # [rows], [rows, width]
        rows = self._rows(tokens, h, spans, cache)
        kept["input"] = h
        if rows.ple is not None:
            kept["ple"] = rows.ple
        for layer in config.layers:
            kept[f"layer {layer.index}"] = h = self._layer(layer, h, rows)
        cache.length += len(h)
        kept["output"] = h = self._norm(h, "output_norm.weight")
        logits = self._linear(h, "token_embd.weight" if config.tied else "output.weight", adapted="output.weight")
        return softcap(logits, config.softcap)

    def _input(self, ids: Sequence[int], embeddings: Mapping[int, Floats]) -> tuple[list[int], Floats]:
        """The tokens, with PAD for soft rows, and the first hidden state."""
        tokens = list(ids)
        for start, rows in embeddings.items():
            if start < 0 or start + len(rows) > len(tokens) or rows.shape[1:] != (self.config.width,):
                raise ModelError(
                    f"embeddings of shape {list(rows.shape)} at row {start} do not fit {len(tokens)} rows "
                    f"of {self.config.width}."
                )
            tokens[start : start + len(rows)] = [PAD] * len(rows)
        for token in tokens:
            if not 0 <= token < self.config.vocab_size:
                raise ModelError(f"token {token} is outside the vocabulary of {self.config.vocab_size}.")
        found = self._weights.gather("token_embd.weight", tokens)
        for scale, a, b in self._pairs("token_embd.weight"):
            found += scale * (b[tokens] @ a)
        h = root(self.config.width) * found
        for start, rows in embeddings.items():
            h[start : start + len(rows)] = rows
        return tokens, h

    def _rows(self, tokens: list[int], h: Floats, spans: Spans, cache: "_Cache") -> "_Rows":
        config, first = self.config, cache.length
        positions = first + np.arange(len(h))
        images = [(first + start, first + end) for start, end in spans] if config.image_attention == "both" else []
        sliding, full = visible(positions, config.window, images, config.image_windowed), visible(positions)
        return _Rows(positions, sliding, full, self._ple(tokens, h), cache)

    def _ple(self, tokens: list[int], h: Floats) -> Floats | None:
        """The per-layer inputs (norm(W · h / √d) + √P · PLE[token]) / √2, from the first hidden state."""
        if not (dim := self.config.ple_dim):
            return None
        shape = (len(h), len(self.config.layers), dim)
        table = root(dim) * self._weights.gather("per_layer_token_embd.weight", tokens)
        projected = self._linear(h, "per_layer_model_proj.weight") / root(self.config.width)
        ple = self._norm(projected.reshape(shape), "per_layer_proj_norm.weight") + table.reshape(shape)
        ple /= root(2)
        return ple

    def _layer(self, layer: LayerConfig, h: Floats, rows: "_Rows") -> Floats:
        block = f"blk.{layer.index}."
        attended = self._attention(layer, self._norm(h, block + "attn_norm.weight"), rows)
        h = h + self._norm(attended, block + "post_attention_norm.weight")
        y = self._mixture(block, h) if self.config.expert_count else self._ffn(block, h)
        h = h + self._norm(y, block + "post_ffw_norm.weight")
        if rows.ple is not None:
            gated = gelu(self._linear(h, block + "inp_gate.weight")) * rows.ple[:, layer.index]  # [rows, ple_dim]
            h = h + self._norm(self._linear(gated, block + "proj.weight"), block + "post_norm.weight")
        if block + "layer_output_scale.weight" in self._weights:
            h = h * self._weights.vector(block + "layer_output_scale.weight")
        return h

    def _attention(self, layer: LayerConfig, x: Floats, rows: "_Rows") -> Floats:
        block, angles = f"blk.{layer.index}.", self._angles(layer, rows.positions)
        q = self._linear(x, block + "attn_q.weight").reshape(len(x), layer.heads, layer.head_dim)
        q = rotate(self._norm(q, block + "attn_q_norm.weight"), angles)
        if layer.donor is None:
            k = self._linear(x, block + "attn_k.weight").reshape(len(x), layer.kv_heads, layer.head_dim)
            v = self._linear(x, block + "attn_v.weight").reshape(k.shape) if layer.has_v else k
            k = rotate(self._norm(k, block + "attn_k_norm.weight"), angles)
            rows.cache.append(layer.index, k, rms(v, self.config.eps))
        keys, values = rows.cache[layer.index if layer.donor is None else layer.donor]
        out = attend(q, keys, values, rows.sliding if layer.sliding else rows.full)
        return self._linear(out, block + "attn_output.weight")

    def _angles(self, layer: LayerConfig, positions: NDArray[np.int64]) -> Doubles:
        """θ[t, j] = t · base^(−2j / head_dim) / f_j for the pairs that rotate."""
        pairs = np.arange(layer.rotary_pairs)
        frequencies = layer.rope_base ** (-2.0 * pairs / layer.head_dim)
        if layer.rope_factors:
            factors = self._weights.vector("rope_freqs.weight")
            check_factors(factors.tolist())
            frequencies /= factors
        return np.outer(positions, frequencies)

    def _ffn(self, block: str, h: Floats) -> Floats:
        z = self._norm(h, block + "ffn_norm.weight")
        gated = gelu(self._linear(z, block + "ffn_gate.weight")) * self._linear(z, block + "ffn_up.weight")
        return self._linear(gated, block + "ffn_down.weight")

    def _mixture(self, block: str, h: Floats) -> Floats:
        """The dense network and the chosen experts, side by side on the same h."""
        dense = self._norm(self._ffn(block, h), block + "post_ffw_norm_1.weight")
        weights = self._route(block, h)  # [rows, experts], 0 where not chosen
        x = self._norm(h, block + "pre_ffw_norm_2.weight")
        y = np.zeros_like(h)
        for expert in np.flatnonzero(weights.any(axis=0)):
            rows = np.flatnonzero(weights[:, expert])
            y[rows] += weights[rows, expert, None] * self._expert(block, int(expert), x[rows])
        return dense + self._norm(y, block + "post_ffw_norm_2.weight")

    def _route(self, block: str, h: Floats) -> Floats:
        """Each expert's weight in each row: the largest of softmax(W · r), normalised to sum to 1, then scaled."""
        r = rms(h, self.config.eps) * self._weights.vector(block + "ffn_gate_inp.scale") / root(self.config.width)
        p = softmax(self._linear(r, block + "ffn_gate_inp.weight"))  # [rows, experts]
        chosen = np.argsort(-p, axis=-1, kind="stable")[:, : self.config.experts_used]
        weights = np.zeros_like(p)
        np.put_along_axis(weights, chosen, np.take_along_axis(p, chosen, axis=-1), axis=-1)
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights * self._weights.vector(block + "ffn_down_exps.scale")

    def _expert(self, block: str, expert: int, x: Floats) -> Floats:
        if block + "ffn_gate_up_exps.weight" in self._weights:
            gate, up = np.split(self._linear(x, block + "ffn_gate_up_exps.weight", expert), 2, axis=-1)
        else:
            gate = self._linear(x, block + "ffn_gate_exps.weight", expert)
            up = self._linear(x, block + "ffn_up_exps.weight", expert)
        return self._linear(gelu(gate) * up, block + "ffn_down_exps.weight", expert)

    def _norm(self, x: Floats, name: str) -> Floats:
        return self._weights.vector(name) * rms(x, self.config.eps)

    def _linear(self, x: Floats, name: str, expert: int = 0, adapted: str = "") -> Floats:
        """y[r, n] = Σ_k W[n, k] · x[r, k], plus the adapters; `adapted` is their name for the matrix."""
        y = np.concatenate([x @ slab.T for slab in self._weights.slabs(name, expert)], axis=-1)
        for scale, a, b in self._pairs(adapted or name, expert):
            y += scale * (x @ a.T @ b.T)
        return y

    def _pairs(self, name: str, expert: int = 0) -> Iterator[tuple[np.float32, Floats, Floats]]:
        """(scale, A [rank, columns], B [rows, rank]) of every adapter that is on."""
        for adapter in self.adapters:
            pair, scale = adapter.pairs.get(name), self.scales.get(adapter.name, 0.0)
            if pair is not None and scale:
                a = np.frombuffer(pair.a, np.float32).reshape(pair.experts, pair.rank, pair.columns)
                b = np.frombuffer(pair.b, np.float32).reshape(pair.experts, pair.rows, pair.rank)
                yield np.float32(scale * pair.scale), a[expert], b[expert]


def rms(x: Floats, eps: float) -> Floats:
    """x / √(mean x² + ε) over the last axis."""
    scale: Floats = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return x / scale


def gelu(x: Floats) -> Floats:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def root(x: int) -> np.float32:
    return np.float32(np.sqrt(x))


def softcap(x: Floats, cap: float | None) -> Floats:
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def softmax(x: Floats) -> Floats:
    weights: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def rotate(x: Floats, angles: Doubles) -> Floats:
    """Rotates the pairs (j, j + head_dim / 2) of every head by θ[t, j]; pairs beyond the angles pass through."""
    cos, sin = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)
    pairs, half = angles.shape[1], x.shape[-1] // 2
    first, second = x[..., :pairs], x[..., half : half + pairs]  # [rows, heads, pairs]
    turned = x.copy()
    turned[..., :pairs] = first * cos - second * sin
    turned[..., half : half + pairs] = second * cos + first * sin
    return turned


def visible(positions: NDArray[np.int64], window: int | None = None, spans: Spans = (), windowed: bool = True) -> Mask:
    """Which keys p, from position 0 on, the row at position t sees: [rows, keys].

    (p ≤ t or both in one span) and t − p < window;  not windowed: (p ≤ t and t − p < window) or both in one span
    """
    t, p = positions[:, None], np.arange(positions[-1] + 1)
    past = p <= t
    near = t - p < (p.size if window is None else window)
    same = np.zeros_like(past)
    for start, end in spans:
        same |= (start <= t) & (t < end) & (start <= p) & (p < end)
    mask: Mask = (past | same) & near if windowed else (past & near) | same
    return mask


def attend(q: Floats, keys: Floats, values: Floats, mask: Mask) -> Floats:
    """softmax(q · k) · v, unscaled; heads / kv_heads query heads in a row share a KV head. [rows, heads · head_dim]"""
    group = q.shape[1] // keys.shape[1]
    out = np.empty_like(q)  # [rows, heads, head_dim]
    for head in range(q.shape[1]):
        k, v = keys[:, head // group], values[:, head // group]  # [keys, head_dim]
        scores = np.where(mask, q[:, head] @ k.T, np.float32(-np.inf))
        out[:, head] = softmax(scores) @ v
    return out.reshape(len(q), -1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Data about the rows of one forward pass besides their hidden state."""

    positions: NDArray[np.int64]  # [rows]
    sliding: Mask  # [rows, keys]
    full: Mask  # [rows, keys]
    ple: Floats | None  # [rows, layers, ple_dim]
    cache: "_Cache"


class _Cache:
    """K (rotated) and V of every layer that has its own, from position 0 on: [keys, kv_heads, head_dim] each."""

    def __init__(self) -> None:
        self.length = 0
        self._layers: dict[int, tuple[Floats, Floats]] = {}

    def __getitem__(self, layer: int) -> tuple[Floats, Floats]:
        return self._layers[layer]

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        if layer in self._layers:
            keys, values = self._layers[layer]
            # A step that failed halfway leaves rows past the length, which are not part of the sequence.
            k = np.concatenate([keys[: self.length], k])
            v = np.concatenate([values[: self.length], v])
        self._layers[layer] = (k, v)

    def truncate(self, length: int) -> None:
        self.length = length
        self._layers = {layer: (k[:length], v[:length]) for layer, (k, v) in self._layers.items()}


class _Weights:
    """The file's tensors as float32, by their usual names, a slab of rows at a time."""

    def __init__(self, gguf: Gguf, config: Config) -> None:
        self._source = gguf.source
        self._tensors = find_tensors(config, gguf.tensors)
        self._kept: dict[tuple[str, int], Floats] = {}
        self._room = CACHE_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str) -> Floats:
        values: Floats = self._slab(name, 0, 1)[0]
        return values

    def gather(self, name: str, rows: Sequence[int]) -> Floats:
        """Single rows of a table: [rows, columns]."""
        return np.concatenate([self._read(name, row, 1) for row in rows])

    def slabs(self, name: str, expert: int) -> Iterator[Floats]:
        """One matrix (one expert's, if a tensor holds several) in slabs [rows, columns]."""
        columns, rows = self._tensors[name].shape[:2]
        most = max(1, SLAB_BYTES // (4 * columns))
        for start in range(0, rows, most):
            yield self._slab(name, expert * rows + start, min(most, rows - start))

    def _slab(self, name: str, start: int, count: int) -> Floats:
        if (name, start) in self._kept:
            return self._kept[name, start]
        slab = self._read(name, start, count)
        if slab.nbytes <= self._room:
            self._room -= slab.nbytes
            self._kept[name, start] = slab
        return slab

    def _read(self, name: str, start: int, count: int) -> Floats:
        tensor = self._tensors[name]
        row_nbytes = tensor.format.row_nbytes(tensor.shape[0])
        raw = run(self._source.read(tensor.offset + start * row_nbytes, count * row_nbytes))
        return dequantize(raw, tensor.type, (count, tensor.shape[0]))
