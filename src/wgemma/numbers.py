"""What a model computes, as numbers: logits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wgemma.checks import all_checked, shown, whole, whole_numbers
from wgemma.engine.adapting import ALL, Choice
from wgemma.errors import SettingsError
from wgemma.loaded import Loaded
from wgemma.sync import run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@all_checked
class Computing(Loaded):
    """A loaded model that gives out its numbers."""

    def logits(self, ids: Sequence[int], *, chunks: Sequence[int] = (), adapter: Choice = ALL) -> "NDArray[np.float32]":
        """Soft-capped logits at every position of `ids`: [len(ids), vocab].

        Options:
            chunks: the sizes of the passes, for tests.
            adapter: as in `chat`.
        """
        import numpy as np

        rows = ids_of(ids)
        return np.frombuffer(run(self.logit_bytes(rows, chunks, adapter)), np.float32).reshape(len(rows), -1)

    async def logit_bytes(self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Choice = ALL) -> bytes:
        """`logits`, for code that runs in an event loop or without NumPy: raw bytes."""
        self._turns.check()
        ids, sizes = ids_of(ids), whole_numbers(chunks)
        if sizes is None:
            raise SettingsError(f"chunks is {shown(chunks)}; it must be a list of pass sizes.")
        sizes = [whole("a size in chunks", size, 1) for size in sizes]
        async with self._turns.take():
            setting = self.backend.adapters.choose(adapter)
            return b"".join([part async for part in self.backend.logits(ids, sizes, setting)])


def ids_of(given: Any) -> list[int]:
    """Token ids from any series of whole numbers; what they may be depends on the model."""
    ids = whole_numbers(given)
    if ids is None:
        raise SettingsError(f"the prompt is {shown(given)}; it must be text or a list of token ids.")
    return ids
