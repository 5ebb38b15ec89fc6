"""A text as one vector: the mean of its hidden states. Standard library only, so that it runs in a page."""

import math
from array import array
from collections.abc import Sequence

from wgemma.engine.adapting import Setting
from wgemma.engine.backend import Backend
from wgemma.errors import BadLogits


async def embedding(backend: Backend, ids: Sequence[int], adapter: Setting) -> bytes:
    """f32 [width]: the mean of the last hidden state over all `ids`, after the final norm, scaled to length 1."""
    width = backend.towers.width
    sums = [0.0] * width
    async for part in backend.hidden(ids, adapter):
        rows = memoryview(part).cast("f")
        sums = [total + sum(rows[column::width]) for column, total in enumerate(sums)]
    length = math.sqrt(math.fsum(value * value for value in sums))
    if not 0 < length < math.inf:
        raise BadLogits("the model computed NaN or Inf: its weights are damaged.")
    return array("f", (value / length for value in sums)).tobytes()
