"""The backend of last resort: the NumPy reference, for machines without any adapter. Slow, and right."""

from collections.abc import AsyncGenerator, Sequence
from os import PathLike
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wgemma.engine.engine import Options, context_of
from wgemma.engine.sampling import Sampling
from wgemma.engine.session import Token, check_ids
from wgemma.errors import BadLogits, SessionError
from wgemma.files.gguf import Gguf
from wgemma.reference.decoder import Reference
from wgemma.reference.sampling import distribution
from wgemma.sync import breathe

Floats: TypeAlias = NDArray[np.float32]


class ReferenceBackend:
    """Keeps one sequence; a prompt that goes on from it computes only what is new."""

    name = "NumPy (reference)"

    def __init__(self, gguf: Gguf, options: Options) -> None:
        self._model = Reference(gguf)
        self.context = context_of(self._model.config, options)
        self.reused = 0
        self._ids: list[int] = []

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, max_tokens: int, marks: Sequence[int] = ()
    ) -> AsyncGenerator[Token, None]:
        check_ids(ids, self._model.config.vocab_size, self.context)
        common = 0
        while common < min(len(self._ids), len(ids) - 1) and self._ids[common] == ids[common]:
            common += 1
        self.reused = common
        self._model.rewind(common)
        del self._ids[common:]
        past, fresh = list(ids), list(ids[common:])
        dice = np.random.default_rng(None if sampling.seed is None else sampling.seed & (1 << 64) - 1)
        for _ in range(min(max_tokens, self.context - len(ids))):
            logits = self._model.step(fresh)[-1]
            self._ids += fresh
            if not np.isfinite(logits).all():
                raise BadLogits(f"the model computed NaN or Inf at position {len(past) - 1}: its weights are damaged.")
            token = self._choose(logits, past, sampling, dice)
            yield Token(token, _alternatives(logits, token, sampling.logprobs))
            past.append(token)
            fresh = [token]
            await breathe()

    def _choose(self, logits: Floats, past: list[int], s: Sampling, dice: np.random.Generator) -> int:
        bias = dict(s.logit_bias) | dict.fromkeys(self._model.config.suppress_tokens, -np.inf)
        ids, probabilities = distribution(
            logits,
            history=past,
            logit_bias=bias,
            repeat_penalty=s.repeat_penalty,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repeat_last_n=s.repeat_last_n,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            temperature=s.temperature,
        )
        return int(dice.choice(ids, p=probabilities / probabilities.sum()))

    async def logits(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> AsyncGenerator[bytes, None]:
        check_ids(ids, self._model.config.vocab_size, self.context)
        self.reset()
        yield self._model.logits(list(ids)).astype(np.float32).tobytes()

    def reset(self) -> None:
        self._model.rewind(0)
        self._ids.clear()

    async def save(self, path: str | PathLike[str]) -> None:
        raise SessionError("the reference device does not save sessions.")

    async def restore(self, path: str | PathLike[str]) -> None:
        raise SessionError("the reference device does not restore sessions.")

    def close(self) -> None:
        self.reset()


def _alternatives(logits: Floats, token: int, count: int | None) -> list[tuple[int, float]]:
    if count is None:
        return []
    shifted = logits.astype(np.float64) - logits.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    best = np.argsort(-logs, kind="stable")[:count]
    return [(token, float(logs[token])), *((int(i), float(logs[i])) for i in best)]
