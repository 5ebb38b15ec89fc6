"""Every sound becomes floats in [-1, 1], or one clear error. WAV needs no package; long sounds are cut in pauses."""

import io
import json
import math
import struct
import subprocess
import sys
import time
import tracemalloc
import wave
from array import array
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media_maker import extensible, riff_chunk, wav, wav_format
from wgemma import MediaError
from wgemma.files.sounds import MAX_SECONDS, SHORTEST, Sound, cuts, read_sound, sound_seconds

RAMP = list(range(-32768, 32768, 257))
BODY = struct.pack(f"<{len(RAMP)}h", *RAMP)
FLOATS = [value / 32768 for value in RAMP]


def refusal(source: Any) -> str:
    with pytest.raises(MediaError) as caught:
        read_sound(source)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def formula(count: int) -> list[int]:
    """The integer formula of the shared fixtures."""

    def triangle(p: int) -> int:
        return 4 * p - 16000 if p < 8000 else 48000 - 4 * p

    u, out = 1, []
    for n in range(count):
        u = (u * 4093 + 57421) % 65536
        value = triangle(330 * n % 16000) // 4 + triangle(n * n // 128 % 16000) // 4 + u // 32 - 1024
        out.append(0 if n % 48000 >= 40000 else value)
    return out


# -- goldens


def test_the_short_goldens_are_their_formula(shared: Path) -> None:
    expected = formula(1161)
    golden = json.loads((shared / "media-odd/expected.json").read_text())["audio"]
    assert expected[:12] == golden["formula_first_samples"]
    for count in (160, 161):
        sound = read_sound(shared / f"media-odd/s{count}.wav")
        assert (sound.rate, sound.channels) == (16000, 1)
        assert [value * 32768 for value in sound.samples] == expected[1000 : 1000 + count]


def test_the_stereo_golden_has_its_rate_and_both_channels(shared: Path) -> None:
    sound = read_sound(shared / "media-odd/stereo_8k_1s.wav")
    assert (sound.rate, sound.channels, len(sound.samples)) == (8000, 2, 16000)
    mean = np.asarray(sound.samples).reshape(-1, 2).mean(axis=1)
    resampled = np.load(shared / "media-odd/stereo_8k_1s.npz")["wave_16k"]
    assert np.linalg.norm(resampled[::2] - mean) < 1e-3 * np.linalg.norm(mean)


def test_the_goldens_are_what_pythons_own_reader_finds(shared: Path) -> None:
    for path in sorted(shared.glob("media*/*.wav")):
        with wave.open(str(path)) as file:
            values = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
            rate, channels = file.getframerate(), file.getnchannels()
        sound = read_sound(path)
        assert (sound.rate, sound.channels) == (rate, channels)
        assert np.array_equal(np.asarray(sound.samples), values.astype(np.float32))


# -- codings of WAV


@pytest.mark.parametrize(
    ("bits", "body", "expected"),
    [
        (8, bytes([0, 64, 128, 255]), [-1.0, -0.5, 0.0, 127 / 128]),
        (16, struct.pack("<4h", -32768, -1, 1, 32767), [-1.0, -(2**-15), 2**-15, 1 - 2**-15]),
        (12, struct.pack("<2h", -32768, 0x7FF0), [-1.0, 0x7FF / 2**11]),
        (24, b"\0\0\x80" + b"\xff\xff\xff" + b"\1\0\0" + b"\0\0\x40", [-1.0, -(2**-23), 2**-23, 0.5]),
        (20, b"\0\0\x80" + b"\xf0\xff\x7f", [-1.0, 0x7FFFF / 2**19]),
        (32, struct.pack("<3i", -(2**31), 2**30, 2**16), [-1.0, 0.5, 2**-15]),
    ],
)
@pytest.mark.parametrize("shape", ["plain", "extensible"])
def test_integers_of_each_width(bits: int, body: bytes, expected: list[float], shape: str) -> None:
    form = wav_format(bits=bits) if shape == "plain" else extensible(1, 1, 16000, bits)
    assert read_sound(wav(body, form)).samples.tolist() == expected


@pytest.mark.parametrize(("bits", "code"), [(32, "f"), (64, "d")])
@pytest.mark.parametrize("shape", ["plain", "extensible"])
def test_floats_are_taken_as_they_are(bits: int, code: str, shape: str) -> None:
    values = [0.0, 1.0, -1.0, 0.25, -(2**-20)]
    form = wav_format(3, bits=bits) if shape == "plain" else extensible(3, 1, 16000, bits)
    assert read_sound(wav(struct.pack(f"<5{code}", *values), form)).samples.tolist() == values


def test_a_and_mu_law_are_those_of_g711() -> None:
    # Code, value of 16 bits: the ends of the tables, both zeros, one in between.
    mu = {0x00: -32124, 0x80: 32124, 0x7F: 0, 0xFF: 0, 0x01: -31100, 0xF0: 120}
    a = {0x2A: -32256, 0xAA: 32256, 0x55: -8, 0xD5: 8, 0x00: -5504, 0x80: 5504}
    for coding, table in ((7, mu), (6, a)):
        sound = read_sound(wav(bytes(table), wav_format(coding, bits=8, rate=8000)))
        assert [value * 32768 for value in sound.samples] == list(table.values())


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "RF64"])
def test_wav_agrees_with_libsndfile(kind: str, subtype: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    values = np.random.default_rng(1).uniform(-1, 1, (70_001, 3))
    soundfile.write(file := io.BytesIO(), values, 44100, subtype, format=kind)
    sound = read_sound(file.getvalue())
    expected, rate = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")
    assert (sound.rate, sound.channels) == (rate, 3)
    assert np.array_equal(np.asarray(sound.samples).reshape(-1, 3), expected)


def test_half_a_minute_of_24_bits_takes_well_under_a_second() -> None:
    body = np.random.default_rng(1).bytes(48_000 * 30 * 2 * 3)
    data = wav(body, wav_format(channels=2, rate=48_000, bits=24))
    taken = []
    for _ in range(3):
        start = time.process_time()
        sound = read_sound(data)
        taken.append(time.process_time() - start)
    assert len(sound.samples) == 48_000 * 60
    assert min(taken) < 0.9


# -- chunks


def test_other_chunks_are_passed_over() -> None:
    noise = riff_chunk(b"LIST", b"INFOodd") + riff_chunk(b"fact", bytes(4)) + riff_chunk(b"bext", bytes(603))
    sound = read_sound(wav(BODY, before=noise, after=riff_chunk(b"LIST", b"INFO" * 9)))
    assert sound.samples.tolist() == FLOATS


def test_an_odd_number_of_bytes_is_padded() -> None:
    first = wav(b"\x80\xc0\x40", wav_format(bits=8), after=riff_chunk(b"LIST", b"INFO"))
    assert read_sound(first).samples.tolist() == [0.0, 0.5, -0.5]


def test_the_format_may_follow_the_samples() -> None:
    chunks = riff_chunk(b"data", BODY) + riff_chunk(b"fmt ", wav_format())
    data = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    assert read_sound(data).samples.tolist() == FLOATS


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF])
@pytest.mark.parametrize("riff_size", [0, 0xFFFFFFFF, 36])
def test_a_streamed_wav_is_what_is_there(size: int, riff_size: int) -> None:
    assert read_sound(wav(BODY, size=size, riff_size=riff_size)).samples.tolist() == FLOATS
    assert read_sound(wav(BODY, size=size, riff_size=riff_size) + b"\1").samples.tolist() == FLOATS


@pytest.mark.parametrize(("long_size", "kind"), [(len(BODY), b"RF64"), (len(BODY), b"BW64"), (0, b"RF64")])
def test_sizes_of_64_bits_are_read(long_size: int, kind: bytes) -> None:
    ds64 = riff_chunk(b"ds64", struct.pack("<QQQI", 0, long_size, 0, 0))
    data = wav(BODY, before=ds64, size=0xFFFFFFFF, riff_size=0xFFFFFFFF, kind=kind)
    assert read_sound(data).samples.tolist() == FLOATS
    lying = wav(BODY, before=riff_chunk(b"ds64", struct.pack("<QQQI", 0, 1 << 40, 0, 0)), size=0xFFFFFFFF, kind=kind)
    assert f"{(1 << 40) - len(BODY)} are missing" in refusal(lying)


def test_half_a_frame_at_the_end_is_left_out() -> None:
    assert len(read_sound(wav(BODY + BODY[:2], wav_format(channels=2))).samples) == len(RAMP) // 2 * 2


def test_a_rate_and_many_channels_are_kept() -> None:
    for rate, channels in ((1000, 1), (11_025, 5), (192_000, 3), (16_000, 200)):
        sound = read_sound(wav(bytes(2 * channels * 7), wav_format(channels=channels, rate=rate)))
        assert (sound.rate, sound.channels, len(sound.samples)) == (rate, channels, 7 * channels)


# -- where sounds come from


def test_a_sound_is_the_same_from_everywhere(tmp_path: Path) -> None:
    data = wav(BODY)
    path = tmp_path / "ramp.wav"
    path.write_bytes(data)
    text = b64encode(data).decode()
    integers = np.array(RAMP, np.int16)
    sources = [str(path), path, data, bytearray(data), memoryview(data), text, f"data:audio/wav;base64,{text}"]
    sources += [integers, (integers, 16_000), (np.array(FLOATS), np.int64(16_000)), np.array(FLOATS, np.float32)]
    sources += [integers.astype(np.int32) << 16, integers[:, None]]
    expected = read_sound(data)
    assert all(read_sound(source) == expected for source in sources)
    assert read_sound(expected) is expected
    with pytest.raises(MediaError, match="contains NaN or Inf"):
        read_sound(Sound(16_000, 1, array("f", [0.0, float("nan")])))


def test_arrays_keep_their_channels_and_rate() -> None:
    array = np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32)
    sound = read_sound((array[::2], 44_100))
    assert (sound.rate, sound.channels) == (44_100, 2)
    assert np.array_equal(np.asarray(sound.samples).reshape(-1, 2), array[::2])
    assert read_sound(np.array([0, 128, 255], np.uint8)).samples.tolist() == [-1.0, 0.0, 127 / 128]


def test_wav_and_cuts_need_no_other_package() -> None:
    script = """
import sys
for package in ("numpy", "PIL", "soundfile"):
    sys.modules[package] = None
from wgemma.files.sounds import cuts, read_sound
sound = read_sound(sys.stdin.buffer.read())
print(sound.rate, sound.channels, len(sound.samples), cuts(sound.samples, 400, 100))
"""
    data = wav(BODY * 3)
    done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, check=False)
    assert done.stdout.decode().startswith("16000 1 768 [(0, "), done.stderr.decode()


# -- compressed


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [("FLAC", "PCM_16", 1e-4), ("OGG", "VORBIS", 0.1), ("OGG", "OPUS", 0.1), ("MP3", "MPEG_LAYER_III", 0.1)],
)
def test_compressed_sounds_go_through_the_extra(kind: str, subtype: str, error: float) -> None:
    soundfile = pytest.importorskip("soundfile")
    seconds = np.arange(100_000) / 48_000
    tone = np.stack([np.sin(2700 * seconds), np.cos(1900 * seconds)], 1) * 0.5
    soundfile.write(file := io.BytesIO(), tone, 48_000, subtype, format=kind)
    sound = read_sound(file.getvalue())
    assert (sound.rate, sound.channels, len(sound.samples)) == (48_000, 2, 200_000)
    ours = np.asarray(sound.samples).reshape(-1, 2)
    assert np.abs(ours - tone)[5000:-5000].max() < error
    if kind == "FLAC":
        data = file.getvalue()
        assert "truncated" in refusal(data[: len(data) // 2])
        unknown = bytearray(data)
        unknown[21] &= 0xF0
        unknown[22:26] = bytes(4)  # the count of samples in STREAMINFO
        assert "does not say how long it is" in refusal(bytes(unknown))
    if kind == "MP3":
        assert "of its 100000 samples" in refusal(file.getvalue()[:9000])


@pytest.mark.parametrize(
    ("head", "kind"), [(b"fLaC", "FLAC"), (b"OggS", "Ogg"), (b"ID3\4", "MP3"), (b"\xff\xfb\x90\0", "MP3")]
)
def test_without_the_extra_a_sentence_says_how_to_get_it(
    head: bytes, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "voice"
    path.write_bytes(head + bytes(64))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    message = refusal(path)
    assert f"voice is {kind}" in message and "pip install 'wgemma[audio]'" in message


@pytest.mark.parametrize("head", [b"fLaC", b"OggS"])
def test_a_compressed_file_of_nonsense_is_refused(head: bytes) -> None:
    pytest.importorskip("soundfile")
    assert "truncated or damaged" in refusal(head + b"nonsense" * 20)


# -- hostile files


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty (0 bytes)"),
        (b"Once upon a time", "not a sound wgemma can read"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", "not a sound wgemma can read"),
        (b"\0\0\0\x18ftypM4A ", "ffmpeg"),
        (b"\xff\xf1\x50\x80", "ffmpeg"),  # AAC, which starts much like MP3
        (b"RIFF\x04\0\0\0WAVE", "without format"),
        (wav(BODY)[:36], "without samples"),
        (wav(BODY)[:30], "bytes are missing from its b'fmt ' chunk"),
        (wav(b""), "is empty: it holds no samples"),
        (wav(b"", after=riff_chunk(b"LIST", b"INFO" * 4)), "is empty: it holds no samples"),
        (wav(b"\1", wav_format(bits=16)), "is empty: it holds no samples"),
        (wav(BODY, size=len(BODY) + 12), "12 are missing"),
        (wav(BODY)[:-100], "100 are missing"),
        (wav(BODY, wav_format(block=0)), "take 0 bytes, not 2"),
        (wav(BODY, wav_format(channels=2, block=2)), "take 2 bytes, not 4"),
        (wav(BODY, wav_format(rate=0)), "0 samples a second"),
        (wav(BODY, wav_format(rate=2**32 - 1)), "4294967295 samples a second"),
        (wav(BODY, wav_format(channels=0)), "has 0 channels"),
        (wav(BODY, wav_format(bits=0)), "values of 0 bits"),
        (wav(BODY, wav_format(bits=64)), "values of 64 bits"),
        (wav(BODY, wav_format(3, bits=16)), "values of 16 bits"),
        (wav(BODY, wav_format(7, bits=16)), "values of 16 bits"),
        (wav(BODY, wav_format(2)), "holds ADPCM"),
        (wav(BODY, wav_format(0x55)), "holds MP3"),
        (wav(BODY, wav_format(0x1234)), "holds coding 0x1234"),
        (wav(BODY, wav_format(0xFFFE)), "variant wgemma cannot read"),
        (wav(BODY, extensible(1, 1, 16000, 16, tail=bytes(14))), "variant wgemma cannot read"),
        (wav(BODY, extensible(2, 1, 16000, 16)), "holds ADPCM"),
        (wav(BODY, wav_format()[:14]), "format chunk of 14 bytes"),
        (wav(BODY, before=riff_chunk(b"junk", b"") * 10_001), "without samples"),
        (wav(bytes(1000 * MAX_SECONDS + 1), wav_format(rate=1000, bits=8)), "minutes long; the limit is 60"),
        (wav(bytes(100), wav_format(rate=1, bits=8)), "1 samples a second; wgemma reads 1000 to 1000000"),
        (wav(bytes(514), wav_format(channels=257)), "257 channels; wgemma reads 1 to 256"),
    ],
)
def test_one_sentence_says_what_is_wrong(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(data)
    assert sentence in refusal(data)
    message = refusal(path)
    assert sentence in message and message.startswith(str(path))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused_with_their_place(bits: int, value: float) -> None:
    values = [0.0] * 4000 + [value] + [0.0] * 4000
    body = struct.pack(f"<8001{'f' if bits == 32 else 'd'}", *values)
    assert "NaN or Inf, first after 0.250 s" in refusal(wav(body, wav_format(3, bits=bits)))


def test_two_infinities_do_not_hide_each_other() -> None:
    assert "NaN or Inf" in refusal(wav(struct.pack("<2f", math.inf, -math.inf), wav_format(3, bits=32)))
    assert "NaN or Inf" in refusal(wav(struct.pack("<1d", 1e300), wav_format(3, bits=64)))
    assert "values up to 3.4" in refusal(wav(struct.pack("<2f", 3.4e38, 3.4e38), wav_format(3, bits=32)))


def test_floats_a_little_too_loud_are_clipped() -> None:
    sound = read_sound(wav(struct.pack("<4f", 1.5, -1.25, 0.5, -1.0), wav_format(3, bits=32)))
    assert sound.samples.tolist() == [1.0, -1.0, 0.5, -1.0]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (np.zeros(0), "holds no samples"),
        (np.zeros((5, 0)), "0 channels"),
        (np.zeros((2, 3, 4)), "2×3×4"),
        (np.zeros(()), "no dimension"),
        (np.zeros((2, 16_000)), "transpose it"),
        (np.zeros(8, np.int64), "array of int64"),
        (np.zeros(8, complex), "array of complex128"),
        (np.zeros(8, bool), "array of bool"),
        (np.full(8, np.nan), "NaN or Inf"),
        (np.full(8, 1e300), "NaN or Inf"),
        (np.full(8, 20_000.0), "Divide 16-bit samples by 32768"),
        (np.broadcast_to(np.float32(0), (16_000 * 3601,)), "60 minutes long; the limit is 60"),
        ((np.broadcast_to(np.float32(0), (30_000_000, 16)), 48_000), "million values"),
        ((np.zeros(8), 0), "0 samples a second"),
        ((np.zeros(8), 999), "999 samples a second"),
        ((np.zeros(8), 10**5000), "too many samples a second"),
        ((np.zeros(8), 16_000.5), "whole number"),
        ((np.zeros(8), "16000"), "whole number"),
        (([0.0, 0.1], 16_000), "a NumPy array and its rate"),
        ((np.zeros(8),), "a NumPy array and its rate"),
        (None, "is not a sound"),
        ([0.0], "is not a sound"),
        ("voice.wav", "voice.wav: no such file"),
        ("https://example.org/voice.wav", "Download it"),
        (b64encode(b"Once upon a time").decode(), "not a sound in base64"),
    ],
)
def test_what_is_no_sound_says_why(source: Any, sentence: str) -> None:
    assert sentence in refusal(source)


def test_the_length_is_in_the_header() -> None:
    """At every length that is refused, too, and without memory for the samples."""
    hour = wav(bytes(8000 * 3600), wav_format(rate=8000, bits=8))
    tracemalloc.start()
    assert sound_seconds(hour) == 3600
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert sound_seconds(Sound(16_000, 2, array("f", bytes(4 * 32_000)))) == 1
    assert sound_seconds((np.zeros((8000, 2)), 4000)) == 2
    with pytest.raises(MediaError, match="1 samples a second"):
        sound_seconds(wav(bytes(100), wav_format(rate=1, bits=8)))
    with pytest.raises(MediaError, match="60 minutes long"):
        sound_seconds(wav(bytes(1000 * 3601), wav_format(rate=1000, bits=8)))


def test_folders_are_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_sound_must_fit_its_channels() -> None:
    for rate, channels, samples in ((16000, 2, array("f", [0.0])), (16000, 1, array("f")), (0, 1, array("f", [0.0]))):
        with pytest.raises(MediaError):
            Sound(rate, channels, samples)
    with pytest.raises(MediaError, match="32-bit floats"):
        Sound(16000, 1, array("d", [0.0]))


def test_a_lying_header_costs_no_memory() -> None:
    resource = pytest.importorskip("resource")
    read_sound(wav(BODY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(wav(BODY, wav_format(channels=65535, rate=10**6, bits=8), size=0x70000000))
    refusal(wav(BODY, wav_format(channels=30000, rate=10**6), size=0xFFFFFFFF))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB


@given(st.binary(max_size=200), st.sampled_from([0, 12, 20, 36, 44]))
def test_random_bytes_raise_nothing_else(tail: bytes, good: int) -> None:
    data = wav(BODY)[:good] + tail
    if data[:1] != b"\xff":  # what might be MP3 is libsndfile's
        check_only_media_errors(data)


def check_only_media_errors(data: bytes) -> None:
    try:
        sound = read_sound(data)
    except MediaError:
        return
    assert len(sound.samples) > 0 and len(sound.samples) % sound.channels == 0
    assert all(-1 <= value <= 1 for value in sound.samples)


# -- cuts


def noise(count: int, pauses: Sequence[tuple[int, int]] = ()) -> "array[float]":
    values = np.random.default_rng(1).uniform(-0.5, 0.5, count).astype(np.float32)
    for start, end in pauses:
        values[start:end] *= 1e-3
    return array("f", values.tobytes())


def test_what_fits_is_one_piece() -> None:
    assert cuts(array("f")) == []
    for count in (1, 160, 161, 479_999, 480_000):
        assert cuts(array("f", bytes(4 * count))) == [(0, count)]


def test_the_cut_is_in_the_pause_near_the_limit() -> None:
    sound = noise(700_000, [(431_000, 433_000)])
    for start in (389_000, 481_000):  # quieter still, but too early or too late
        sound[start : start + 10_000] = array("f", bytes(40_000))
    (first, second) = cuts(sound)
    assert first[0] == 0 and first[1] == second[0] and second[1] == 700_000
    assert 431_400 <= first[1] <= 432_600


def test_the_cut_is_the_middle_of_the_quietest_stretch() -> None:
    sound = noise(500_000, [(450_000, 450_800)])
    assert abs(cuts(sound)[0][1] - 450_400) <= 40


def test_of_equal_silence_the_latest_makes_the_longest_piece() -> None:
    assert cuts(array("f", bytes(4 * 500_000))) == [(0, 479_600), (479_600, 500_000)]


def test_the_golden_formula_is_cut_in_its_silence(shared: Path) -> None:
    golden = json.loads((shared / "media-odd/expected.json").read_text())["audio"]
    values = formula(496_000)
    assert all(values[n] == value for n, value in golden["formula_samples_at"])
    (first, _) = cuts(array("f", [value / 32768 for value in values]))
    assert set(values[first[1] - 400 : first[1] + 400]) == {0}


@pytest.mark.parametrize("over", [1, 2, 160, 161, 162, 400, 79_999])
def test_the_tail_is_never_too_short_to_be_heard(over: int) -> None:
    sound = array("f", bytes(4 * (480_000 - 1000))) + array("f", [0.5]) * (1000 + over)
    pieces = cuts(sound)
    assert len(pieces) == 2
    assert min(end - start for start, end in pieces) >= SHORTEST


@given(st.integers(0, 6000), st.integers(2 * SHORTEST, 3000), st.integers(0, 4000), st.integers(0, 2**32))
def test_pieces_cover_everything_in_order(count: int, limit: int, search: int, seed: int) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32)
    pieces = cuts(array("f", values.tobytes()), limit, search)
    assert [start for start, _ in pieces] == [0, *(end for _, end in pieces)][: len(pieces)]
    assert (pieces[-1][1] if pieces else 0) == count
    assert all(0 < end - start <= limit for start, end in pieces)
    assert len(pieces) <= 1 or all(end - start >= SHORTEST for start, end in pieces)


def test_a_limit_too_small_to_cut_by_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="the minimum is 322"):
        cuts(array("f", bytes(4000)), 321)


def test_an_hour_is_cut_in_seconds() -> None:
    sound = noise(480_000) * 120
    start = time.process_time()
    pieces = cuts(sound)
    assert time.process_time() - start < 3
    assert len(pieces) >= 120
