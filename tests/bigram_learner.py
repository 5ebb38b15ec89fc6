"""A learner small enough to see through: the next token from the one before, by a table of low rank.

    logits[t] = base[ids[t−1]] + scale · B A[:, ids[t−1]]        A [rank, V], B [V, rank]

It really learns, with AdamW and clipping, in float64; tokens in `poison` make every loss they precede NaN.
"""

from array import array
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from wgemma.files.adapters import AdapterFile, Pair
from wgemma.train.batches import Pack
from wgemma.train.data import IGNORED
from wgemma.train.settings import TrainingSettings


class BigramLearner:
    def __init__(self, vocabulary: int, settings: TrainingSettings, poison: Collection[int] = ()) -> None:
        self.settings = settings
        self.base = np.zeros((vocabulary, vocabulary))
        self.base[list(poison)] = np.nan
        a = np.random.default_rng(settings.seed).normal(0, 0.5, (settings.rank, vocabulary))
        self.values = [a, np.zeros((vocabulary, settings.rank))]
        self.first = [np.zeros_like(value) for value in self.values]
        self.second = [np.zeros_like(value) for value in self.values]
        self.gradients = [np.zeros_like(value) for value in self.values]
        self.freed = False

    async def accumulate(self, packs: Sequence[Pack], targets: int, step: int) -> float:
        total = 0.0
        for pack in packs:
            before, after = _pairs(pack)
            nll, d_logits = self._loss(before, after)
            a, b = self.values
            scale = self.settings.scale / targets
            self.gradients[1] += scale * d_logits.T @ a[:, before].T
            np.add.at(self.gradients[0].T, before, scale * d_logits @ b)
            total += float(nll.sum())
        return total

    async def update(self, rate: float, step: int) -> float:
        s, (beta1, beta2) = self.settings, self.settings.betas
        norm = float(np.sqrt(sum((g * g).sum() for g in self.gradients)))
        if np.isfinite(norm):
            clip = min(1.0, s.clip / (norm + 1e-6)) if s.clip else 1.0
            for value, gradient, m, v in zip(self.values, self.gradients, self.first, self.second, strict=True):
                m[:] = beta1 * m + (1 - beta1) * clip * gradient
                v[:] = beta2 * v + (1 - beta2) * (clip * gradient) ** 2
                value *= 1 - rate * s.weight_decay
                m_hat, v_hat = m / (1 - beta1 ** (step + 1)), v / (1 - beta2 ** (step + 1))
                value -= rate * m_hat / (np.sqrt(v_hat) + s.eps)
        for gradient in self.gradients:
            gradient[:] = 0
        return norm

    async def evaluate(self, packs: Sequence[Pack]) -> tuple[float, int]:
        total = sum(float(self._loss(*_pairs(pack))[0].sum()) for pack in packs)
        return total, sum(pack.targets for pack in packs)

    async def state(self) -> dict[str, bytes]:
        kept = {"values": self.values, "first": self.first, "second": self.second}
        return {name: b"".join(part.tobytes() for part in parts) for name, parts in kept.items()}

    async def restore(self, state: dict[str, bytes]) -> None:
        for name, parts in (("values", self.values), ("first", self.first), ("second", self.second)):
            flat = np.frombuffer(state[name])
            parts[0][:] = flat[: parts[0].size].reshape(parts[0].shape)
            parts[1][:] = flat[parts[0].size :].reshape(parts[1].shape)

    async def adapter(self) -> AdapterFile:
        (rank, size), flat = self.values[0].shape, [array("f", value.ravel().tolist()) for value in self.values]
        pair = Pair(rank, size, size, flat[0], flat[1], self.settings.scale)
        return AdapterFile("bigrams", {"blk.0.attn_q.weight": pair}, self.settings.alpha)

    def free(self) -> None:
        self.freed = True

    def _loss(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
        """nll of each target, and its gradient with respect to the logits."""
        a, b = self.values
        logits = self.base[before] + self.settings.scale * (b @ a[:, before]).T
        logits = logits - logits.max(axis=1, keepdims=True)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        rows = np.arange(len(after))
        nll = -np.log(p[rows, after])
        p[rows, after] -= 1
        return nll, p


def _pairs(pack: Pack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The token before each target, and the target."""
    found = [
        (example.ids[t - 1], example.labels[t])
        for example in pack
        for t in range(1, len(example))
        if example.labels[t] != IGNORED
    ]
    before, after = np.array(found).T
    return before, after


class After:
    """Asks to stop once it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0
