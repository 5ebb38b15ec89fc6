"""Texts as vectors: the means of their hidden states. Standard library only, so that it runs in a page."""

import math
from array import array
from collections.abc import Sequence

from wgemma.engine.adapting import Setting
from wgemma.engine.backend import Backend
from wgemma.errors import BadLogits


async def embeddings(backend: Backend, texts: Sequence[Sequence[int]], adapter: Setting) -> list[bytes]:
    """f32 [width] for each: the mean of the last hidden state over all its ids, after the final norm, scaled to
    length 1."""
    width = backend.towers.width
    sums = [[0.0] * width for _ in texts]
    async for number, part in backend.hidden_of(texts, adapter):
        rows = memoryview(part).cast("f")
        sums[number] = [total + sum(rows[column::width]) for column, total in enumerate(sums[number])]
    return [_scaled(each) for each in sums]


def _scaled(sums: Sequence[float]) -> bytes:
    length = math.sqrt(math.fsum(value * value for value in sums))
    if not 0 < length < math.inf:
        raise BadLogits("the model computed NaN or Inf: its weights are damaged.")
    return array("f", (value / length for value in sums)).tobytes()
