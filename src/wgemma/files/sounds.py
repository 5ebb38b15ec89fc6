"""Sounds as 32-bit floats in [-1, 1], and where to cut a long one.

WAV is read here, without any other package, so it works in a page, too. MP3, FLAC and Ogg need `soundfile`. Files are
treated as hostile: the length is checked by the header, and truncated files are refused. Anything wrong raises a
`MediaError`. Mixing and resampling are up to the audio tower.
"""

import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index, mul
from typing import TYPE_CHECKING, Any, TypeAlias

from wgemma.checks import shown
from wgemma.errors import MediaError
from wgemma.files.images import FileLike, contents, is_a
from wgemma.files.reading import ViewFile

if TYPE_CHECKING:
    import numpy as np

    SoundArray: TypeAlias = np.ndarray[Any, Any]

SoundSource: TypeAlias = "Sound | FileLike | SoundArray | tuple[SoundArray, int]"

ARRAY_RATE = 16_000  # for an array without a rate: the model's own
MIN_RATE = 1000  # resampling multiplies a sound by 16 kHz over its rate
MAX_RATE = 1_000_000
MAX_CHANNELS = 256
MAX_SECONDS = 3600
MAX_BYTES = 2 << 30
MAX_VALUES = 400_000_000  # an hour of 48 kHz stereo is 346 million
LOUDEST = 16.0  # floats beyond ±1 are clipped; beyond this they have some other unit

# At 16 kHz: the longest piece the audio tower takes at once, and the shortest that gives it a frame.
PIECE = 480_000
SHORTEST = 161
REST = 16_000  # samples that must follow a cut: less than a second is not worth encoding

_STEP = 1 << 16  # values decoded at a time, to limit the number of Python floats
_MAX_CHUNKS = 10_000
_UNKNOWN = 1 << 60  # frames: libsndfile's value for a file of unknown length

_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_CODINGS = {2: "ADPCM", 0x11: "IMA ADPCM", 0x31: "GSM", 0x50: "MPEG", 0x55: "MP3", 0xFF: "AAC", 0x161: "WMA"}
# The GUID of an extensible format is its old number followed by this.
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")


@dataclass(frozen=True, slots=True)
class Sound:
    """A decoded sound. `samples` are [frames, channels], interleaved, at `rate` per second."""

    rate: int
    channels: int
    samples: "array[float]"

    def __post_init__(self) -> None:
        if self.samples.typecode != "f":
            raise MediaError("a sound needs 32-bit floats.")
        _check_form("the sound", self.rate, self.channels)
        if not self.samples or len(self.samples) % self.channels:
            raise MediaError(f"{len(self.samples)} values are not a sound of {self.channels} channels.")

    @property
    def frames(self) -> int:
        """The number of samples per channel."""
        return len(self.samples) // self.channels


def read_sound(source: SoundSource) -> Sound:
    """The sound from a path, a file's bytes, base64 text, a data: URL, a NumPy array, or an (array, rate) pair."""
    if isinstance(source, Sound):
        _check_length("the sound", source.frames, source.rate, source.channels)
        tamed = _tamed("the sound", source.samples, source.rate * source.channels)
        return source if tamed is source.samples else replace(source, samples=tamed)
    if isinstance(source, tuple) or is_a(source, "numpy", "ndarray"):
        return _from_array(*_array_and_rate(source))
    name, data = contents(source, "sound", sound_format)
    kind = check_sound(name, data)
    return _read_wav(name, memoryview(data)) if kind == "WAV" else _read_compressed(name, kind, data)


def sound_seconds(source: SoundSource) -> float:
    """The length of what `read_sound` takes, from its header: nothing is decoded."""
    if isinstance(source, Sound):
        _check_length("the sound", source.frames, source.rate, source.channels)
        return source.frames / source.rate
    if isinstance(source, tuple) or is_a(source, "numpy", "ndarray"):
        frames, rate, _ = _array_form(*_array_and_rate(source))
        return frames / rate
    name, data = contents(source, "sound", sound_format)
    kind = check_sound(name, data)
    if kind == "WAV":
        form, _, frames = _wav_form(name, memoryview(data))
        return frames / form.rate
    with _compressed(name, kind, data) as file:
        return float(file.frames / file.samplerate)


def check_sound(name: str, data: bytes | memoryview) -> str:
    """The format of a sound file; refuses it by its first bytes and size, before the rest is read."""
    kind = sound_format(data)
    if not data:
        raise MediaError(f"{name} is empty (0 bytes).")
    if kind is None:
        raise MediaError(
            f"{name} is not a sound wgemma can read. Use a WAV, MP3, FLAC or Ogg: `ffmpeg -i FILE out.wav`."
        )
    if len(data) > MAX_BYTES:
        raise MediaError(f"{name} has {len(data) >> 20} MiB; the limit is {MAX_BYTES >> 20}. Split it into parts.")
    return kind


def sound_format(data: bytes | memoryview) -> str | None:
    """WAV, MP3, FLAC or Ogg by the first bytes; None for everything else."""
    head = bytes(data[:12])
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:] == b"WAVE":
        return "WAV"
    if head.startswith(b"fLaC"):
        return "FLAC"
    if head.startswith(b"OggS"):
        return "Ogg"
    # Eleven set bits, then a valid version and layer (layer 0 would be AAC).
    is_frame = len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x18 != 8 and head[1] & 6 != 0
    return "MP3" if is_frame or head.startswith(b"ID3") else None


# -- WAV


@dataclass(frozen=True, slots=True)
class _Format:
    """What a `fmt ` chunk says; `width` is the bytes of one value."""

    coding: int
    channels: int
    rate: int
    width: int


def _wav_form(name: str, data: memoryview) -> tuple[_Format, memoryview, int]:
    """The format, the bytes of the samples, and how many frames they are."""
    form, body = _chunks(name, data)
    frames = len(body) // (form.channels * form.width)
    _check_length(name, frames, form.rate, form.channels)
    return form, body, frames


def _read_wav(name: str, data: memoryview) -> Sound:
    form, body, frames = _wav_form(name, data)
    samples = array("f")
    decode = _decoder(form)
    raw = body[: frames * form.channels * form.width]
    for start in range(0, len(raw), _STEP * form.width):
        samples.extend(array("f", decode(raw[start : start + _STEP * form.width])))
    if form.coding == _FLOAT:
        samples = _tamed(name, samples, form.rate * form.channels)
    return Sound(form.rate, form.channels, samples)


def _chunks(name: str, data: memoryview) -> tuple[_Format, memoryview]:
    """The format and the bytes of the samples; all other chunks are skipped."""
    form: _Format | None = None
    body: memoryview | None = None
    long_size: int | None = None  # size of the samples, if 32 bits are too few
    at = 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(data) or (form is not None and body is not None):
            break
        kind = bytes(data[at : at + 4])
        (size,) = struct.unpack_from("<I", data, at + 4)
        at += 8
        if kind == b"data" and body is None:
            size = _body_size(name, data, at, long_size if size == 0xFFFFFFFF and long_size is not None else size)
            body = data[at : at + size]
        elif at + size > len(data):
            missing = at + size - len(data)
            raise MediaError(
                f"{name} is truncated: {missing} bytes are missing from its {kind!r} chunk. Download it again."
            )
        elif kind == b"fmt " and form is None:
            form = _format(name, data[at : at + size])
        elif kind == b"ds64" and size >= 16:
            (long_size,) = struct.unpack_from("<Q", data, at + 8)
        at += size + size % 2
    if form is None or body is None:
        what = "format" if form is None else "samples"
        raise MediaError(f"{name} is a WAV without {what}: it is truncated or damaged. Record or download it again.")
    return form, body


def _body_size(name: str, data: memoryview, at: int, size: int) -> int:
    """How many bytes of samples there are at `at`, if the header says `size`.

    A writer that could not seek back to its header left a placeholder there: 0, or (nearly) the largest number of 31,
    32 or 64 bits. Then the rest of the file is the sound. If the whole file has the length it claims, 0 means 0.
    """
    have = len(data) - at
    (riff_size,) = struct.unpack_from("<I", data, 4)
    is_large = size & 0x7FFFF000 == 0x7FFFF000 and size >> 32 in (0, 0xFFFFFFFF)
    if is_large or (size == 0 and riff_size + 8 != len(data)):
        return have
    if size > have:
        raise MediaError(
            f"{name} is truncated: its header promises {size} bytes of sound, but there are {have}; "
            f"{size - have} are missing. Record or download it again."
        )
    return size


def _format(name: str, chunk: memoryview) -> _Format:
    if len(chunk) < 16:
        raise MediaError(f"{name} has a format chunk of {len(chunk)} bytes; the minimum is 16. It is damaged.")
    coding, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if coding == _EXTENSIBLE:
        if len(chunk) < 40 or bytes(chunk[26:40]) != _GUID_TAIL:
            raise MediaError(f"{name} is a WAV variant wgemma cannot read. Convert it: `ffmpeg -i FILE out.wav`.")
        (coding,) = struct.unpack_from("<H", chunk, 24)
    widths = {_PCM: (1, 2, 3, 4), _FLOAT: (4, 8), _ALAW: (1,), _MULAW: (1,)}.get(coding)
    if widths is None:
        what = _CODINGS.get(coding, f"coding {coding:#06x}")
        raise MediaError(f"{name} is a WAV that holds {what}, not plain samples. Convert it: `ffmpeg -i FILE out.wav`.")
    _check_form(name, rate, channels)
    width = (bits + 7) // 8
    if width not in widths:
        raise MediaError(
            f"{name} has values of {bits} bits, which its coding ({coding}) does not allow. It is damaged."
        )
    if block != channels * width:
        raise MediaError(
            f"{name} claims that {channels} × {bits} bits take {block} bytes, not {channels * width}. It is damaged."
        )
    return _Format(coding, channels, rate, width)


def _decoder(form: _Format) -> Callable[[memoryview], Iterable[float]]:
    """Bytes → floats. Odd sizes (12 or 20 bits) fill their bytes from the top, so whole bytes can be decoded."""
    if form.coding == _FLOAT:
        return lambda raw: _words("f" if form.width == 4 else "d", raw)
    if form.width == 1:
        table = {_PCM: _UNSIGNED, _ALAW: _alaw(), _MULAW: _mulaw()}[form.coding]
        return lambda raw: [table[code] for code in raw]
    if form.width == 2:
        return lambda raw: [value * 2.0**-15 for value in _words("h", raw)]
    if form.width == 3:
        return lambda raw: [value * 2.0**-31 for value in _words("i", _widened(raw))]
    return lambda raw: [value * 2.0**-31 for value in _words("i", raw)]


def _words(code: str, raw: memoryview | bytearray) -> "array[Any]":
    values = array(code)
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _widened(raw: memoryview) -> bytearray:
    """3-byte values as the upper three of four bytes."""
    wide = bytearray(len(raw) // 3 * 4)
    for byte in range(3):
        wide[byte + 1 :: 4] = raw[byte::3]
    return wide


_UNSIGNED = [(code - 128) / 128 for code in range(256)]


def _mulaw() -> list[float]:
    """G.711 µ-law: all bits inverted; sign, exponent e and mantissa m are ±((2m + 33) · 2^e − 33) of 14 bits."""

    def value(code: int) -> int:
        size = ((2 * (code & 15) + 33) << (code >> 4 & 7)) - 33
        return -size if code & 0x80 else size

    return [value(~code) / 2**13 for code in range(256)]


def _alaw() -> list[float]:
    """G.711 A-law: every other bit inverted; ±(2m + 33) · 2^(e − 1) of 13 bits, or ±(2m + 1) where e is 0."""

    def value(code: int) -> int:
        mantissa, exponent = 2 * (code & 15) + 1, code >> 4 & 7
        size = (mantissa + 32) << (exponent - 1) if exponent else mantissa
        return size if code & 0x80 else -size

    return [value(code ^ 0x55) / 2**12 for code in range(256)]


# -- compressed files


@contextmanager
def _compressed(name: str, kind: str, data: bytes | memoryview) -> Iterator[Any]:
    """The file opened by `soundfile`, whose header was read; whatever goes wrong meanwhile is a `MediaError`."""
    try:
        import soundfile  # type: ignore[import-untyped]
    except (ImportError, OSError):  # OSError: the package without the library it wraps
        raise MediaError(
            f"{name} is {kind}, which needs another package: pip install 'wgemma[audio]'. WAV needs none."
        ) from None
    try:
        with soundfile.SoundFile(ViewFile(data)) as file:
            if file.frames >= _UNKNOWN:
                raise MediaError(f"{name} does not say how long it is. Convert it: `ffmpeg -i FILE out.wav`.")
            _check_form(name, file.samplerate, file.channels)
            _check_length(name, file.frames, file.samplerate, file.channels)
            yield file
    except MediaError:
        raise
    except Exception as error:  # broken files raise many kinds
        reason = str(error).rpartition(">: ")[2].rstrip(".") or type(error).__name__
        raise MediaError(f"{name} is truncated or damaged {kind} ({reason}). Download it again.") from None


def _read_compressed(name: str, kind: str, data: bytes | memoryview) -> Sound:
    samples = array("f")
    with _compressed(name, kind, data) as file:
        rate, channels, promised = file.samplerate, file.channels, file.frames
        step = memoryview(bytearray(4 * channels * _STEP))  # memory grows with the data, not with the promised length
        while frames := file.buffer_read_into(step, "float32"):
            samples.frombytes(step[: 4 * channels * frames])
            _check_length(name, len(samples) // channels, rate, channels)
    if (have := len(samples) // channels) < promised:
        raise MediaError(f"{name} is truncated: it has {have} of its {promised} samples. Download it again.")
    return Sound(rate, channels, _tamed(name, samples, rate * channels))


# -- arrays


def _array_and_rate(source: Any) -> "tuple[SoundArray, int]":
    if not isinstance(source, tuple):
        return source, ARRAY_RATE
    if len(source) != 2 or not is_a(source[0], "numpy", "ndarray"):
        raise MediaError("a tuple is not a sound unless it is a NumPy array and its rate.")
    values, rate = source
    try:
        return values, index(rate)
    except TypeError:
        raise MediaError(f"a rate is a whole number of samples a second, not {shown(rate)}.") from None


def _array_form(values: "SoundArray", rate: int) -> tuple[int, int, int]:
    """Frames, rate and channels of [n] or [n, channels]."""
    shape = "×".join(map(str, values.shape))
    if values.ndim not in (1, 2):
        raise MediaError(f"an array of {shape or 'no dimension'} is not a sound: use samples, or samples×channels.")
    if values.ndim == 2 and values.shape[1] > max(32, values.shape[0]):
        raise MediaError(f"an array of {shape} has its channels first; they must come last, so transpose it.")
    channels = int(values.shape[1]) if values.ndim == 2 else 1
    frames = values.size // max(channels, 1)
    _check_form("the array", rate, channels)
    _check_length("the array", frames, rate, channels)
    return frames, rate, channels


def _from_array(values: "SoundArray", rate: int) -> Sound:
    """Integers of 8 (unsigned), 16 or 32 bits, or floats in [-1, 1]."""
    import numpy as np

    _, rate, channels = _array_form(values, rate)
    scales = {"uint8": 2**7, "int16": 2**15, "int32": 2**31}
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # Inf is refused below
            floats = values.astype(np.float32)
    elif (scale := scales.get(values.dtype.name)) is not None:
        floats = ((values - 128.0 if scale == 128 else values) / scale).astype(np.float32)
    else:
        raise MediaError(f"an array of {values.dtype} is not a sound: use uint8, int16, int32 or floats.")
    samples = array("f")
    samples.frombytes(floats.tobytes())
    return Sound(rate, channels, _tamed("the array", samples, rate * channels))


# -- what all sounds must be


def _check_form(name: str, rate: int, channels: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        told = rate if abs(rate) < 1 << 40 else "too many"
        raise MediaError(f"{name} has {told} samples a second; wgemma reads {MIN_RATE} to {MAX_RATE}.")
    if not 1 <= channels <= MAX_CHANNELS:
        raise MediaError(f"{name} has {channels} channels; wgemma reads 1 to {MAX_CHANNELS}.")


def _check_length(name: str, frames: int, rate: int, channels: int) -> None:
    if frames == 0:
        raise MediaError(f"{name} is empty: it holds no samples.")
    if frames > MAX_SECONDS * rate:
        raise MediaError(
            f"{name} is {frames / rate / 60:.0f} minutes long; the limit is {MAX_SECONDS // 60}. Split it into parts."
        )
    if frames * channels > MAX_VALUES:
        raise MediaError(
            f"{name} has {frames * channels / 1e6:.0f} million values; the limit is {MAX_VALUES // 10**6} million. "
            "`ffmpeg -i FILE -ac 1 -ar 16000 out.wav` makes it smaller."
        )


def _tamed(name: str, samples: "array[float]", per_second: int) -> "array[float]":
    """Floats from outside, limited to [-1, 1]: refuses NaN and Inf, clips what is slightly too loud."""
    if not math.isfinite(sum(samples)):  # 32-bit floats summed in doubles: finite ones cannot overflow
        at = next(i for i, value in enumerate(samples) if not math.isfinite(value))
        raise MediaError(f"{name} contains NaN or Inf, first after {at / per_second:.3f} s. It is damaged.")
    peak = max(max(samples), -min(samples))
    if peak > LOUDEST:
        raise MediaError(f"{name} has values up to {peak:g}; floats go from -1 to 1. Divide 16-bit samples by 32768.")
    if peak <= 1:
        return samples
    clipped = array("f")
    for start in range(0, len(samples), _STEP):  # in steps: one list would take ten times the memory
        clipped.extend([max(-1.0, min(1.0, value)) for value in samples[start : start + _STEP]])
    return clipped


# -- long sounds


def cuts(samples: "array[float]", limit: int = PIECE, search: int = 80_000) -> list[tuple[int, int]]:
    """Pieces [start, end) of at most `limit` samples that cover the whole sound, cut where it is quietest.

    A cut is in the middle of the quietest 50 ms (at 16 kHz) of the last `search` samples a piece could have. When there
    are several pieces, none is too short for the tower.
    """
    if limit < 2 * SHORTEST:
        raise ValueError(f"pieces of up to {limit} samples are too short to cut; the minimum is {2 * SHORTEST}")
    rest = min(REST, limit // 2)
    pieces = []
    start = 0
    while len(samples) - start > limit:
        last = min(start + limit, len(samples) - rest)
        first = max(start + SHORTEST, min(start + limit - search, last))
        end = _quietest(samples, first, last)
        pieces.append((start, end))
        start = end
    if len(samples) > start:
        pieces.append((start, len(samples)))
    return pieces


def _quietest(samples: "array[float]", first: int, last: int, block: int = 80, blocks: int = 10) -> int:
    """The middle of the quietest run of `blocks` blocks in [first, last]; of equals, the last."""
    starts = range(first, last - block + 1, block)
    energies = [sum(map(mul, piece := samples[at : at + block], piece)) for at in starts]
    blocks = min(blocks, len(energies))
    if blocks == 0:
        return last
    runs = [sum(energies[i : i + blocks]) for i in range(len(energies) - blocks + 1)]
    quietest = min(reversed(range(len(runs))), key=runs.__getitem__)
    return first + quietest * block + blocks * block // 2
