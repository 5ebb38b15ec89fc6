"""A model's vision and audio towers: which file has them; loaded on first use, freed on request.

Sizes follow from the files' headers, so images and sounds can be placed in a prompt before any tower is loaded.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.files.sounds import Sound
from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.model.audio import Audio, load_audio, sound_tokens
from wgemma.model.audio_config import AudioConfig, has_audio
from wgemma.model.resample import resample
from wgemma.model.tower import Step, unwatched
from wgemma.model.vision import Vision, load_vision
from wgemma.model.vision_config import SIDE, VisionConfig, has_vision, read_vision

Rows_co = TypeVar("Rows_co", covariant=True)  # encoded media: a buffer, or a NumPy array

# Called with a tower's name and size when it is loaded; yields the callback for its progress.
Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def heard_by(progress: Callable[[int], None]) -> Watch:
    """A watch that reports every piece to one callback."""

    @contextmanager
    def watch(name: str, total: int) -> Iterator[Callable[[int], None]]:
        yield progress

    return watch


class Towers:
    """What a model can see and hear, from the headers of its projectors, then of its own file.

    A projector that does not fit is refused immediately. A model whose own tower is unusable still handles text.
    """

    def __init__(self, name: str, width: int, own: Gguf, projectors: Sequence[Gguf] = (), watch: Watch | None = None):
        self.name = name
        self.width = width
        self.watch = watch or heard_by(lambda nbytes: None)
        self._own = own
        for projector in projectors:
            if not has_vision(projector) and not has_audio(projector):
                name = projector.source.name
                raise ModelError(f"{name} is not a projector: it has neither a vision nor an audio tower.")
        files = (*projectors, own)
        self._eyes = next((gguf for gguf in files if has_vision(gguf)), None)
        self._ears = next((gguf for gguf in files if has_audio(gguf)), None)
        self._sight: VisionConfig | ModelError | None = self._read(self._eyes, lambda gguf: read_vision(gguf)[0])
        self._hearing: AudioConfig | ModelError | None = self._read(self._ears, AudioConfig.from_gguf)

    def _read(self, gguf: Gguf | None, read: Callable[[Gguf], Any]) -> Any:
        """A tower's config, or the error, such as for one made for a model of another width."""
        if gguf is None:
            return None
        try:
            config = read(gguf)
            if config.width != self.width:
                raise ModelError(
                    f"{gguf.source.name} was made for a model {config.width} wide; {self.name} is {self.width} wide. "
                    "Use the projector that belongs to it."
                )
        except ModelError as error:
            if gguf is not self._own:
                raise
            return error
        return config

    @property
    def sees(self) -> bool:
        return isinstance(self._sight, VisionConfig)

    @property
    def hears(self) -> bool:
        return isinstance(self._hearing, AudioConfig)

    def require(self, kind: str) -> None:
        """Raises `ModelError` if the model cannot take this kind."""
        _ = self.sight if kind == "image" else self.hearing

    def image_tokens(self, width: int, height: int, budget: int) -> int:
        """How many rows an image becomes."""
        across, down = self.sight.fit(width, height, budget)
        return (across // SIDE) * (down // SIDE)

    def sound_tokens(self, samples: int) -> int:
        """How many rows a piece of sound becomes; 0 if it is too short."""
        return sound_tokens(self.hearing, samples)

    @property
    def sight(self) -> VisionConfig:
        if isinstance(self._sight, VisionConfig):
            return self._sight
        raise self._sight or ModelError(f"{self.name} cannot see: it has no vision tower. {self._hint('images')}")

    @property
    def hearing(self) -> AudioConfig:
        if isinstance(self._hearing, AudioConfig):
            return self._hearing
        raise self._hearing or ModelError(f"{self.name} cannot hear: it has no audio tower. {self._hint('sounds')}")

    def _hint(self, what: str) -> str:
        return f"Leave {what} out, or load it with its projector file (projector='mmproj-….gguf', --projector)."


class Encoder(Protocol[Rows_co]):
    """Towers that encode images and sounds."""

    def require(self, kind: str) -> None: ...
    def image_tokens(self, width: int, height: int, budget: int) -> int: ...
    def sound_tokens(self, samples: int) -> int: ...
    async def see(self, pixels: Pixels, budget: int, step: Step = unwatched) -> Rows_co: ...
    async def resample(self, sound: Sound) -> "array[float]": ...
    async def hear(self, samples: "array[float]", step: Step = unwatched) -> Rows_co: ...
    def drop(self, rows: Any) -> None: ...
    def release(self) -> None: ...


class GpuTowers(Towers):
    """Towers on a device; `see` and `hear` return f32 buffers [tokens, width]."""

    def __init__(
        self,
        whole: Ledger,
        name: str,
        width: int,
        own: Gguf,
        projectors: Sequence[Gguf] = (),
        watch: Watch | None = None,
    ) -> None:
        super().__init__(name, width, own, projectors, watch)
        self.ledger = whole.part()
        self._vision: Vision | None = None
        self._audio: Audio | None = None

    async def see(self, pixels: Pixels, budget: int, step: Step = unwatched) -> Buffer:
        if self._vision is None:
            assert self.sight and self._eyes is not None
            with self.watch("vision", tower_bytes(self._eyes, "v.")) as progress:
                self._vision = await load_vision(self.ledger.part(), self._eyes, progress)
        return self.ledger.adopt(await self._vision.encode(pixels, budget, step))

    async def hear(self, samples: "array[float]", step: Step = unwatched) -> Buffer:
        if self._audio is None:
            assert self.hearing and self._ears is not None
            with self.watch("audio", tower_bytes(self._ears, "a.")) as progress:
                self._audio = await load_audio(self.ledger.part(), self._ears, progress)
        return self.ledger.adopt(await self._audio.encode(samples, step))

    async def resample(self, sound: Sound) -> "array[float]":
        return await resample(self.ledger.device, sound)

    def drop(self, rows: Any) -> None:
        self.ledger.drop(rows)

    def release(self) -> None:
        for tower in (self._vision, self._audio):
            if tower is not None:
                tower.free()
        self._vision = self._audio = None

    def move(self, whole: Ledger) -> None:
        """Moves to another device after this one was lost."""
        self.ledger = whole.part()
        self._vision = self._audio = None

    @property
    def nbytes(self) -> int:
        """GPU memory of the loaded towers."""
        return sum(tower.nbytes for tower in (self._vision, self._audio) if tower is not None)


def tower_bytes(gguf: Gguf, prefix: str) -> int:
    """Approximate size of a tower in a file: its own tensors and its projector's."""
    projector = "mm.a." if prefix == "a." else "mm.input_projection"
    return sum(t.nbytes for name, t in gguf.tensors.items() if name.startswith((prefix, projector)))
