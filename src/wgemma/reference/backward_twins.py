"""What every backward kernel must compute, one short NumPy function each (see twins.py).

Gradients are called d…: `dy` is that of a step's output, `dx` that of its input. All in float64.

Shapes: R rows, K columns of x and W, N rows of W; an adapter has `rank` rows of A for each of T targets.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wgemma.reference.decoder import gelu
from wgemma.reference.twins import Array, wide

NO_TARGET = 0xFFFFFFFF


def linear_back(w: Array, dy: Array) -> Array:
    """tile_back: dx[r, k] = Σ_n dy[r, n] · W[n, k]."""
    return wide(dy) @ wide(w)


def rms_back(x: Array, w: Array, dy: Array, eps: float) -> Array:
    """norm_back: through y = w ⊙ rms(x), over the last axis."""
    x, above = wide(x), wide(w) * wide(dy)
    factor = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    dx: Array = factor * above - factor**3 * x * np.mean(above * x, axis=-1, keepdims=True)
    return dx


# -- activations


def gelu_slope(x: Array) -> Array:
    """gelu′: with t = tanh(u) and u = √(2/π) (x + 0.044715 x³), ½ (1 + t) + ½ x (1 − t²) u′."""
    x = wide(x)
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    slope: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)
    return slope


def gated_back(gate: Array, up: Array, dy: Array) -> tuple[Array, Array]:
    """activate_back: (dgate, dup) of y = gelu(gate) · up."""
    return wide(dy) * wide(up) * gelu_slope(gate), wide(dy) * gelu(wide(gate))


def geglu_back(x: Array, dy: Array) -> Array:
    """Gate and up alternate."""
    return np.stack(gated_back(x[..., 0::2], x[..., 1::2], dy), axis=-1).reshape(x.shape)


def apart_back(x: Array, dy: Array) -> Array:
    """The first half of each row is gate, the second up."""
    gate, up = np.split(x, 2, axis=-1)
    return np.concatenate(gated_back(gate, up, dy), axis=-1)


# -- adapters


class Targets(NamedTuple):
    """Which target a result belongs to."""

    edge1: int = NO_TARGET
    edge2: int = NO_TARGET
    interleaved: int = 0

    def of(self, n: int) -> NDArray[np.int64]:
        at = np.arange(n)
        return at % 2 if self.interleaved else (at >= self.edge1).astype(np.int64) + (at >= self.edge2)


def low(z: Array, b: Array, targets: Targets) -> Array:
    """What an adapter adds: y[r, n] = Σ_j z[r, t(n) · rank + j] · b[j, n]."""
    rank, n = b.shape
    at = targets.of(n) * rank + np.arange(rank)[:, None]  # [rank, N]
    y: Array = np.einsum("rjn,jn->rn", wide(z)[:, at], wide(b))
    return y


def low_back(dy: Array, b: Array, scales: Array, targets: Targets) -> Array:
    """g[r, t · rank + j] = scales[t · rank + j] · Σ_{n: t(n) = t} dy[r, n] · b[j, n]."""
    rank, n = b.shape
    of = targets.of(n)
    sums = [wide(dy)[:, of == t] @ wide(b)[:, of == t].T for t in range(scales.size // rank)]
    g: Array = wide(scales) * np.concatenate(sums, axis=1)
    return g


def low_grad(p: Array, q: Array, rank: int, targets: Targets) -> Array:
    """d[j, n] = Σ_r p[r, t(n) · rank + j] · q[r, n]."""
    at = targets.of(q.shape[1]) * rank + np.arange(rank)[:, None]
    d: Array = np.einsum("rjn,rn->jn", wide(p)[:, at], wide(q))
    return d


# -- the loss


def scan(logits: Array, targets: NDArray[np.int64]) -> Array:
    """loss, SCAN over all tiles: (max, Σ exp(l − max), the target's logit, 0) of every row."""
    logits, rows = wide(logits), np.arange(len(logits))
    highest = logits.max(axis=1)
    chosen = logits[rows, np.where(targets == NO_TARGET, 0, targets)]
    return np.stack([highest, np.exp(logits - highest[:, None]).sum(axis=1), chosen, 0 * rows], axis=1)


def loss_back(logits: Array, state: Array, targets: NDArray[np.int64], cap: float) -> Array:
    """loss, BACK: the gradient of Σ nll before the cap, from soft-capped logits; 0 without a target."""
    logits, state = wide(logits), wide(state)
    share = np.exp(logits - state[:, :1]) / state[:, 1:2]
    share -= np.arange(logits.shape[1]) == targets[:, None]
    slope = 1 - np.square(logits / cap) if cap else 1.0
    d: Array = share * slope
    d[targets == NO_TARGET] = 0
    return d


def nll(state: Array, targets: NDArray[np.int64]) -> Array:
    """max + log Σ − the target's logit; 0 for rows without a target."""
    highest, total, chosen, _ = wide(state).T
    return np.where(targets == NO_TARGET, 0.0, highest + np.log(total) - chosen)


# -- the optimiser


class Step(NamedTuple):
    """The settings of one AdamW step, the t-th."""

    rate: float
    beta1: float
    beta2: float
    eps: float
    decay: float
    clip: float
    t: int
    share: float = 1.0

    def params(self, count: int) -> dict[str, float]:
        """The parameters of adamw.wgsl."""
        params = {"correction1": 1 - self.beta1**self.t, "correction2": 1 - self.beta2**self.t}
        params |= {"count": count, "rest1": 1 - self.beta1, "rest2": 1 - self.beta2}
        return params | {name: value for name, value in self._asdict().items() if name != "t"}


def adamw(values: Array, g: Array, first: Array, second: Array, norm: float, step: Step) -> tuple[Array, Array, Array]:
    """(values, first, second) after a step; `norm` is Σ g² over all parameters."""
    g = step.share * wide(g)
    g *= min(1.0, step.clip / (step.share * np.sqrt(norm) + 1e-6)) if step.clip else 1.0
    m = step.beta1 * wide(first) + (1 - step.beta1) * g
    v = step.beta2 * wide(second) + (1 - step.beta2) * g * g
    pull = m / (1 - step.beta1**step.t) / (np.sqrt(v / (1 - step.beta2**step.t)) + step.eps)
    return wide(values) * (1 - step.rate * step.decay) - step.rate * pull, m, v


def dropout(x: Array, threshold: int, seed: int, salt: int, scale: float) -> Array:
    """scale · x where the hash of (seed, salt, r, k) is not below the threshold, else 0."""
    rows, columns = (np.arange(size, dtype=np.uint32) for size in x.shape)
    salted = _hash(np.array([salt], dtype=np.uint32) + np.uint32(0x9E3779B9))
    by_row = _hash(rows ^ _hash(np.uint32(seed) ^ salted))
    drawn = _hash(columns ^ by_row[:, None])
    return np.where(drawn >= threshold, scale * wide(x), 0.0)


def _hash(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
