"""The images and sounds of a model: their embeddings, and their place in a prompt."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wgemma.checks import all_checked
from wgemma.engine.senses import BUDGET, Medium
from wgemma.files.sounds import ARRAY_RATE as RATE
from wgemma.files.sounds import Sound, cuts
from wgemma.loaded import Loaded
from wgemma.sync import run
from wgemma.text.parts import Content, content_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The tokens around the rows of an image or audio clip.
ENCLOSING = {"image": ("<|image>", "<image|>"), "audio": ("<|audio>", "<audio|>")}


@all_checked
class Perceiving(Loaded):
    """A loaded model that may see and hear."""

    @property
    def sees(self) -> bool:
        """Whether prompts may contain images."""
        return self.backend.towers.sees

    @property
    def hears(self) -> bool:
        """Whether prompts may contain audio."""
        return self.backend.towers.hears

    def encode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """The embeddings of an image (`source`: as in a message) as the decoder gets them: [tokens, width], at most
        `budget` (70, 140, 280, 560 or 1120) tokens."""
        return run(self.aencode_image(source, budget))

    async def aencode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """`encode_image`, for code that runs in an event loop."""
        return await self._encoded(Content("image", source, budget))

    def encode_audio(self, source: Any) -> "NDArray[np.float32]":
        """The embeddings of a sound (`source`: as in a message) as the decoder gets them: [tokens, width], the pieces
        of a long one concatenated."""
        return run(self.aencode_audio(source))

    async def aencode_audio(self, source: Any) -> "NDArray[np.float32]":
        """`encode_audio`, for code that runs in an event loop."""
        return await self._encoded(Content("audio", source))

    def cut_audio(self, source: Any) -> list[Sound]:
        """Splits a sound (`source`: as in a message) into pieces the model can take at once, at most 30 seconds each,
        cutting where it is quiet."""
        return run(self.acut_audio(source))

    async def acut_audio(self, source: Any) -> list[Sound]:
        """`cut_audio`, for code that runs in an event loop."""
        samples = await self._in_turn(lambda: self.backend.samples(source))
        return [Sound(RATE, 1, samples[start:end]) for start, end in cuts(samples)]

    async def _encoded(self, content: Content) -> "NDArray[np.float32]":
        import numpy as np

        rows = await self._in_turn(lambda: self.backend.encode(content))
        return np.frombuffer(rows, np.float32).reshape(-1, self.backend.towers.width)

    def media_ids(self, part: Mapping[str, Any]) -> list[int]:
        """The ids that stand for an image or audio clip in a prompt of ids: one per row, between the enclosing tokens.

        `part` is a message part. The ids are valid for this model only, and only while it is loaded.
        """
        return run(self.amedia_ids(part))

    async def amedia_ids(self, part: Mapping[str, Any]) -> list[int]:
        """`media_ids`, for code that runs in an event loop."""
        content = content_of(part)
        placed = await self._in_turn(lambda: self.backend.place([content]))
        self.backend.let_go(placed)
        return self._ids_of_media([content], placed)[0]

    def _ids_of_media(self, contents: Sequence[Content], placed: Sequence[Sequence[Medium[Any]]]) -> list[list[int]]:
        """The ids that stand for each image and audio clip."""
        found = []
        for content, media in zip(contents, placed, strict=True):
            begin, end = (self.tokenizer.id(text) for text in ENCLOSING[content.kind])
            found.append([i for medium in media for i in (begin, *medium.numbers, end)])
        return found

    def release_towers(self) -> None:
        """Frees the vision and audio towers' memory; the next image or audio clip loads them again."""
        run(self._release_towers())

    async def _release_towers(self) -> None:
        self._turns.check()
        async with self._turns.take():
            self.backend.release_towers()
