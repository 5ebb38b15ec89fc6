"""Audio to soft tokens: rows of the decoder's width that take a clip's place in a prompt.

    E2B, E4B   mel spectrum → conformer → W · rms(·)        40 ms a token
    12B        W · rms(640 samples)                         40 ms a token

Input is mono, 16 kHz, and at most 30 seconds; `resample` does the first two, the caller splits.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from wgemma.checks import counted
from wgemma.errors import MediaError
from wgemma.files.gguf import Gguf
from wgemma.files.sounds import Sound
from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.audio_config import CHUNK, PROJECTION, AudioConfig, audio_tensors, has_audio
from wgemma.model.conformer import Conformer, halved, load_conformer, record_rms, submit_conformer
from wgemma.model.mel import BANDS, BINS, FRAME, HOP, PAD, RATE, Mel, frame_count, load_mel, record_frames, record_mel
from wgemma.model.resample import resample
from wgemma.model.tower import Linear, Step, find, linear, load_linear, submit, unwatched
from wgemma.model.weights import Uploader

__all__ = ["LONGEST", "Audio", "has_audio", "load_audio", "sound_tokens"]

LONGEST = 30 * RATE  # samples the towers were trained for


@dataclass(frozen=True, slots=True)
class _Hearing:
    """The parts only conformer models have."""

    mel: Mel
    conformer: Conformer


class Audio:
    """The audio tower of one file on one device."""

    def __init__(
        self,
        ledger: Ledger,
        config: AudioConfig,
        hearing: _Hearing | None,
        ones: Buffer,
        projection: Linear,
    ) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.config = config
        self.width = config.width
        self._hearing = hearing
        self._ones = ones
        self._projection = projection

    @property
    def nbytes(self) -> int:
        return self.ledger.nbytes

    def tokens(self, samples: int) -> int:
        """How many soft tokens a clip of this many samples becomes; 0 if it is too short."""
        return sound_tokens(self.config, samples)

    async def encode(self, samples: "array[float]", step: Step = unwatched) -> Buffer:
        """The soft tokens [tokens, width] of a clip; the caller frees them. `step` is called before every block."""
        count = len(samples)
        tokens = self.tokens(count)
        if not tokens:
            raise MediaError(
                f"the sound is too short: {counted(count, 'sample')} at 16 kHz; at least {self._shortest} are needed."
            )
        if count > LONGEST:
            raise MediaError(f"the sound is too long: {count / RATE:.1f} seconds. Split it into pieces of 30.")
        with Ledger(self.device) as scratch:
            out = scratch.buffer(4 * tokens * self.width, "soft tokens of a sound")
            inner = CHUNK if self.config.conformer is None else self.config.conformer.inner
            heard, x = scratch.buffers((4 * tokens * inner, label) for label in ("heard", "normed"))
            await self._submit(scratch, self._upload(scratch, samples), count, tokens, heard, step)
            tape = Tape(self.device, "sound")
            record_rms(tape, tokens, inner, heard, self._ones, x)
            linear(tape, self._projection, tokens, x, out)
            submit(tape)
            return scratch.keep(out)

    async def resample(self, sound: Sound) -> "array[float]":
        """Converts audio for `encode`: averages the channels and resamples to 16 kHz."""
        return await resample(self.device, sound)

    async def mel(self, samples: "array[float]") -> bytes:
        """The log-mel spectrogram as f32 [frames, BANDS], for tests."""
        assert self._hearing is not None
        with Ledger(self.device) as scratch:
            wave, tape = self._upload(scratch, samples), Tape(self.device, "mel")
            mel = self._record_mel(tape, self._hearing.mel, scratch, wave, len(samples))
            submit(tape)
            return await self.device.read(mel)

    def free(self) -> None:
        """Frees the tower's memory; it must not be used afterwards."""
        self.ledger.free()

    @property
    def _shortest(self) -> int:
        return 1 if self._hearing is None else FRAME - PAD + 1

    def _upload(self, scratch: Ledger, samples: "array[float]") -> Buffer:
        wave = scratch.buffer(4 * len(samples), "wave")
        self.device.write(wave, 0, memoryview(samples).cast("B"))
        return wave

    async def _submit(self, scratch: Ledger, wave: Buffer, count: int, tokens: int, heard: Buffer, step: Step) -> None:
        """Everything before the last norm and the projection."""
        tape = Tape(self.device, "sound")
        if self._hearing is None:
            await step(0, 1)
            record_frames(tape, wave, count, tokens, CHUNK, CHUNK, 0, heard)
            submit(tape)
        else:
            mel = self._record_mel(tape, self._hearing.mel, scratch, wave, count)
            await submit_conformer(tape, self._hearing.conformer, scratch, frame_count(count), mel, heard, step)

    def _record_mel(self, tape: Tape, mel: Mel, scratch: Ledger, wave: Buffer, count: int) -> Buffer:
        frames = frame_count(count)
        widths = {"frames": FRAME, "spectrum": 2 * BINS, "mel": BANDS}
        pieces, spectrum, result = scratch.buffers((4 * frames * width, label) for label, width in widths.items())
        record_frames(tape, wave, count, frames, FRAME, HOP, PAD, pieces)
        record_mel(tape, mel, frames, pieces, spectrum, result)
        return result


def sound_tokens(config: AudioConfig, samples: int) -> int:
    if config.conformer is None:
        return -(-samples // CHUNK)
    return halved(halved(frame_count(samples)))


async def load_audio(ledger: Ledger, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> Audio:
    """The audio tower in a model's own file or its projector; on failure the ledger is freed."""
    config = AudioConfig.from_gguf(gguf)
    tensors = find(gguf, audio_tensors(config))
    uploader = Uploader(ledger, gguf, progress)
    uploader.expect(sorted(tensors.values(), key=lambda tensor: tensor.offset))
    try:
        hearing, inner = None, CHUNK
        if config.conformer is not None:
            hearing = _Hearing(load_mel(uploader), await load_conformer(uploader, tensors, config.conformer))
            inner = config.conformer.inner
        ones = uploader.upload((array("f", [1.0]) * inner).tobytes(), "ones")
        projection = await load_linear(uploader, tensors, PROJECTION)
        return Audio(ledger, config, hearing, ones, projection)
    except BaseException:
        ledger.free()
        raise
    finally:
        uploader.close()
