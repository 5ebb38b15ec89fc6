"""From sounds to soft tokens: rows of the decoder's width that stand in a prompt where a sound is.

    E2B, E4B   mel spectrum → conformer → W · rms(·)        40 ms a token
    12B        W · rms(640 samples)                         40 ms a token

A sound is mono, 16 kHz, and at most 30 seconds; `resample` makes the first two true, the caller cuts.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from wgemma.errors import MediaError
from wgemma.files.gguf import Gguf
from wgemma.files.sounds import Sound
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.tape import Tape
from wgemma.model.audio_config import CHUNK, PROJECTION, AudioConfig, audio_tensors, has_audio
from wgemma.model.conformer import Conformer, Scratch, halved, load_conformer, record_conformer, record_rms
from wgemma.model.mel import BANDS, BINS, FRAME, HOP, PAD, RATE, Mel, frame_count, load_mel, record_frames, record_mel
from wgemma.model.resample import resample
from wgemma.model.tower import Linear, find, linear, load_linear
from wgemma.model.weights import Uploader

__all__ = ["LONGEST", "Audio", "has_audio", "load_audio", "sound_tokens"]

LONGEST = 30 * RATE  # samples that the towers were made for


@dataclass(frozen=True, slots=True)
class _Hearing:
    """What only a conformer needs."""

    mel: Mel
    conformer: Conformer


class Audio:
    """The sound tower of one file on one device."""

    def __init__(
        self,
        device: Device,
        config: AudioConfig,
        hearing: _Hearing | None,
        ones: Buffer,
        projection: Linear,
        buffers: list[Buffer],
    ) -> None:
        self.device = device
        self.config = config
        self.width = config.width
        self.nbytes = sum(buffer.size for buffer in buffers)
        self._hearing = hearing
        self._ones = ones
        self._projection = projection
        self._buffers = buffers

    def tokens(self, samples: int) -> int:
        """How many soft tokens a sound of so many samples becomes; 0 where it is too short."""
        return sound_tokens(self.config, samples)

    async def encode(self, samples: "array[float]") -> Buffer:
        """The soft tokens [tokens, width] of a sound; the caller frees them."""
        count = len(samples)
        tokens = self.tokens(count)
        if not tokens:
            raise MediaError(
                f"the sound is too short: {count} samples at 16 kHz; at least {self._shortest} are needed."
            )
        if count > LONGEST:
            raise MediaError(f"the sound is too long: {count / RATE:.1f} seconds; cut it into pieces of 30.")
        out = self.device.buffer(4 * tokens * self.width, "soft tokens of a sound")
        scratch, tape = Scratch(self.device), Tape(self.device, "sound")
        try:
            self._record(tape, scratch, self._upload(scratch, samples), count, tokens, out)
            tape.program().replay()
        except BaseException:
            self.device.free(out)
            raise
        finally:
            tape.free()
            scratch.free()
        return out

    async def resample(self, sound: Sound) -> "array[float]":
        """Any sound as `encode` wants it: its channels averaged, 16 kHz."""
        return await resample(self.device, sound)

    async def mel(self, samples: "array[float]") -> bytes:
        """The logarithm of the mel spectrum as f32 [frames, BANDS], for tests and the curious."""
        assert self._hearing is not None
        scratch, tape = Scratch(self.device), Tape(self.device, "mel")
        try:
            wave = self._upload(scratch, samples)
            mel = self._record_mel(tape, self._hearing.mel, scratch, wave, len(samples))
            tape.program().replay()
            return await self.device.read(mel)
        finally:
            tape.free()
            scratch.free()

    def free(self) -> None:
        """Gives the tower's memory back; it must not be used any more."""
        for buffer in self._buffers:
            self.device.free(buffer)
        self._buffers.clear()

    @property
    def _shortest(self) -> int:
        return 1 if self._hearing is None else FRAME - PAD + 1

    def _upload(self, scratch: Scratch, samples: "array[float]") -> Buffer:
        wave = scratch(len(samples), "wave")
        self.device.write(wave, 0, memoryview(samples).cast("B"))
        return wave

    def _record(self, tape: Tape, scratch: Scratch, wave: Buffer, count: int, tokens: int, out: Buffer) -> None:
        inner = CHUNK if self.config.conformer is None else self.config.conformer.inner
        raw, x = scratch(tokens * inner, "heard"), scratch(tokens * inner, "normed")
        if self._hearing is None:
            record_frames(tape, wave, count, tokens, CHUNK, CHUNK, 0, raw)
        else:
            mel = self._record_mel(tape, self._hearing.mel, scratch, wave, count)
            record_conformer(tape, self._hearing.conformer, scratch, frame_count(count), mel, raw)
        record_rms(tape, tokens, inner, raw, self._ones, x)
        linear(tape, self._projection, tokens, x, out)

    def _record_mel(self, tape: Tape, mel: Mel, scratch: Scratch, wave: Buffer, count: int) -> Buffer:
        frames = frame_count(count)
        pieces, spectrum = scratch(frames * FRAME, "frames"), scratch(frames * 2 * BINS, "spectrum")
        result = scratch(frames * BANDS, "mel")
        record_frames(tape, wave, count, frames, FRAME, HOP, PAD, pieces)
        record_mel(tape, mel, frames, pieces, spectrum, result)
        return result


def sound_tokens(config: AudioConfig, samples: int) -> int:
    if config.conformer is None:
        return -(-samples // CHUNK)
    return halved(halved(frame_count(samples)))


async def load_audio(device: Device, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> Audio:
    """The sound tower of a model's own file or of its projector; nothing stays on the GPU when it fails."""
    config = AudioConfig.from_gguf(gguf)
    tensors = find(gguf, audio_tensors(config))
    uploader = Uploader(device, gguf, progress)
    uploader.expect(sorted(tensors.values(), key=lambda tensor: tensor.offset))
    try:
        hearing, inner = None, CHUNK
        if config.conformer is not None:
            hearing = _Hearing(load_mel(uploader), await load_conformer(uploader, tensors, config.conformer))
            inner = config.conformer.inner
        ones = uploader.upload((array("f", [1.0]) * inner).tobytes(), "ones")
        projection = await load_linear(uploader, tensors, PROJECTION)
        return Audio(device, config, hearing, ones, projection, uploader.buffers)
    except BaseException:
        for buffer in uploader.buffers:
            device.free(buffer)
        raise
    finally:
        uploader.close()
