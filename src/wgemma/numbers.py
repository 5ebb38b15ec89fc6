"""What a model computes, as numbers: logits and embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wgemma.checks import all_checked, shown, whole, whole_numbers
from wgemma.engine.adapting import ALL, Choice
from wgemma.engine.embedding import embeddings
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

    def embed(self, texts: str | Sequence[str], *, adapter: Choice = ALL) -> "NDArray[np.float32]":
        """Texts as vectors of length 1, whose scalar product says how alike they are: the mean, over all tokens of a
        text (`<bos>` included), of the last hidden state after the final norm. A string gives [width], a list of
        `texts` [len(texts), width]. The current chat goes on unharmed.

        Options:
            adapter: as in `chat`.
        """
        return run(self.aembed(texts, adapter=adapter))

    async def aembed(self, texts: str | Sequence[str], *, adapter: Choice = ALL) -> "NDArray[np.float32]":
        """`embed`, for code that runs in an event loop."""
        import numpy as np

        vectors = np.frombuffer(await self.embed_bytes(texts, adapter), np.float32)
        return vectors if isinstance(texts, str) else vectors.reshape(-1, self.backend.towers.width)

    async def embed_bytes(self, texts: str | Sequence[str], adapter: Choice = ALL) -> bytes:
        """`embed`, for code that runs in an event loop or without NumPy: raw bytes."""
        self._turns.check()
        prompts = [self._with_bos(text) for text in _texts(texts)]
        async with self._turns.take():
            setting = self.backend.adapters.choose(adapter)
            return b"".join(await embeddings(self.backend, prompts, setting))

    def _with_bos(self, text: str) -> list[int]:
        """The ids of a text that is no chat."""
        return [self.tokenizer.id("<bos>"), *self.tokenizer.encode(text)]


def _texts(given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else None
    if found is None or not all(isinstance(text, str) for text in found):
        raise SettingsError(f"texts is {shown(given)}; it must be a string or a list of strings.")
    for i, text in enumerate(found):
        if not text:
            raise SettingsError(f"texts[{i}] is empty; there is nothing to embed. Leave it out.")
    return found


def ids_of(given: Any) -> list[int]:
    """Token ids from any series of whole numbers; what they may be depends on the model."""
    ids = whole_numbers(given)
    if ids is None:
        raise SettingsError(f"the prompt is {shown(given)}; it must be text or a list of token ids.")
    return ids
