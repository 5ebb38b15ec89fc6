"""Sounds to ask about: spoken digits and commands, beeps to count, tones that rise or fall.

Words are rendered by Debian's espeak-ng, in many voices and speeds; some voices are kept for the held-out cases alone.
`python tools/tiny/sounds.py OUT.npz` renders them once (a few minutes). Everything else is made of them and of sines by
NumPy, from a random generator: the same seed gives the same sound.
"""

import io
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COMMANDS = ("yes", "no", "stop", "go", "up", "down", "left", "right", "on", "off")
WORDS = DIGITS + COMMANDS

ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan")
TRAIN_VOICES = (
    "",
    "m1",
    "m2",
    "m3",
    "m4",
    "m6",
    "m7",
    "f1",
    "f2",
    "f4",
    "Andy",
    "Annie",
    "Gene",
    "Mike",
    "steph",
    "linda",
)
HELD_OUT_VOICES = ("m5", "f3", "Alex", "belinda")
SPEEDS = (120, 140, 160, 180, 200)


@dataclass(frozen=True)
class Clip:
    """One word in one voice: mono, 16 kHz, in [−1, 1], silence trimmed."""

    word: str
    voice: str
    samples: NDArray[np.float32]


def speak(word: str, accent: str, variant: str, speed: int, pitch: int) -> NDArray[np.float32]:
    voice = f"{accent}+{variant}" if variant else accent
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(raw)) as file:
        rate = file.getframerate()
        data = np.frombuffer(file.readframes(1 << 30), np.int16)
    return trim(resample(data.astype(np.float32) / 32768, rate))


def resample(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """To 16 kHz through the spectrum: what lies above 8 kHz is cut off."""
    count = round(len(samples) * RATE / rate)
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(count // 2 + 1, np.complex128)
    size = min(len(spectrum), len(kept))
    kept[:size] = spectrum[:size]
    return (np.fft.irfft(kept, count) * (count / len(samples))).astype(np.float32)


def trim(samples: NDArray[np.float32], quiet: float = 0.01) -> NDArray[np.float32]:
    loud = np.flatnonzero(np.abs(samples) > quiet)
    return samples[max(loud[0] - 200, 0) : loud[-1] + 400] if len(loud) else samples


def render(variants: tuple[str, ...], per_voice: int, seed: int) -> list[Clip]:
    """Every word in every voice, each time with a speed and a pitch of its own."""
    random = Random(seed)
    jobs = [
        (word, accent, variant, random.choice(SPEEDS) + random.randint(-8, 8), random.randint(25, 75))
        for word in WORDS
        for variant in variants
        for accent in random.sample(ACCENTS, per_voice)
    ]
    with ThreadPoolExecutor(2) as pool:
        sounds = list(pool.map(lambda job: speak(*job), jobs))
    return [Clip(job[0], f"{job[1]}+{job[2]}", sound) for job, sound in zip(jobs, sounds, strict=True)]


def save(path: str, clips: list[Clip]) -> None:
    """Eight bits a sample, spaced by the logarithm, are enough to train on and small enough to carry."""
    coded = [np.round(np.sign(c.samples) * np.log1p(255 * np.abs(c.samples)) / np.log(256) * 127) for c in clips]
    np.savez_compressed(
        path,
        data=np.concatenate(coded).astype(np.int8),
        lengths=np.array([len(c.samples) for c in clips], np.int32),
        words=np.array([WORDS.index(c.word) for c in clips], np.int8),
        voices=np.array([c.voice for c in clips]),
    )


def load(path: str) -> list[Clip]:
    with np.load(path) as file:
        coded = file["data"].astype(np.float32) / 127
        samples = (np.sign(coded) * np.expm1(np.abs(coded) * np.log(256)) / 255).astype(np.float32)
        pieces = np.split(samples, np.cumsum(file["lengths"])[:-1])
        return [Clip(WORDS[w], str(v), p) for w, v, p in zip(file["words"], file["voices"], pieces, strict=True)]


# -- sounds made of clips and sines


def silence(seconds: float) -> NDArray[np.float32]:
    return np.zeros(int(seconds * RATE), np.float32)


def tone(start: float, end: float, seconds: float, volume: float) -> NDArray[np.float32]:
    """A sine whose pitch glides from `start` to `end` hertz, faded in and out over 5 ms."""
    count = int(seconds * RATE)
    phase = 2 * np.pi * np.cumsum(np.linspace(start, end, count)) / RATE
    fade = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.005 * RATE))
    return (volume * np.sin(phase) * fade).astype(np.float32)


@dataclass(frozen=True)
class Sound:
    """Samples, and what is in them: (name, start, end) in samples."""

    samples: NDArray[np.float32]
    marks: tuple[tuple[str, int, int], ...]


def joined(pieces: list[tuple[str, NDArray[np.float32]]]) -> Sound:
    """Pieces one after the other; those with a name are marked."""
    marks, at = [], 0
    for name, samples in pieces:
        if name:
            marks.append((name, at, at + len(samples)))
        at += len(samples)
    return Sound(np.concatenate([samples for _, samples in pieces]), tuple(marks))


def beeps(random: Random, count: int) -> Sound:
    pitch, volume = random.uniform(300, 2000), random.uniform(0.2, 0.8)
    length, gap = random.uniform(0.08, 0.22), random.uniform(0.1, 0.25)
    pieces = [("", silence(random.uniform(0.02, 0.3)))]
    for _ in range(count):
        pieces += [("beep", tone(pitch, pitch, length, volume)), ("", silence(gap * random.uniform(0.85, 1.15)))]
    return joined([*pieces, ("", silence(random.uniform(0, 0.2)))])


def glide(random: Random, direction: str) -> Sound:
    low = random.uniform(200, 900)
    high = low * random.uniform(1.5, 3)
    start, end = (low, high) if direction == "rising" else (high, low)
    sound = tone(start, end, random.uniform(0.4, 1.0), random.uniform(0.2, 0.8))
    return joined(
        [("", silence(random.uniform(0.02, 0.2))), (direction, sound), ("", silence(random.uniform(0.02, 0.2)))]
    )


def spoken(random: Random, words: list[str], clips: list[NDArray[np.float32]]) -> Sound:
    """Words one after the other with pauses between, at some volume."""
    pieces = [("", silence(random.uniform(0.02, 0.35)))]
    for word, clip in zip(words, clips, strict=True):
        pieces += [(word, clip), ("", silence(random.uniform(0.08, 0.3)))]
    sound = joined([*pieces, ("", silence(random.uniform(0, 0.2)))])
    loudest = max(float(np.abs(sound.samples).max()), 1e-3)
    return Sound((sound.samples * (random.uniform(0.25, 0.95) / loudest)).astype(np.float32), sound.marks)


def roughened(random: Random, sound: Sound) -> Sound:
    """With a little noise, as a microphone adds."""
    noise = np.random.default_rng(random.getrandbits(32)).standard_normal(len(sound.samples))
    loud = sound.samples + random.choice((0, 0.001, 0.004, 0.01)) * noise
    return Sound(np.clip(loud, -1, 1).astype(np.float32), sound.marks)


if __name__ == "__main__":
    save(sys.argv[1], render(TRAIN_VOICES, 5, seed=1) + render(HELD_OUT_VOICES, 5, seed=2))
