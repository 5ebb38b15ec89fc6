"""The oracle hears what transformers hears, from every kind of file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from formula_sound import formula, sound
from wgemma.errors import MediaError
from wgemma.files.gguf import Gguf
from wgemma.files.sounds import Sound, read_sound
from wgemma.reference.audio import AudioReference, log_mel, resample

CLOSE = 1e-5  # several times what float32 costs these towers


def relative_error(ours: NDArray[Any], golden: NDArray[Any]) -> float:
    assert ours.shape == golden.shape
    return float(np.linalg.norm(ours - golden) / np.linalg.norm(golden))


def projector_in_store(shared: Path) -> Path:
    models = json.loads((shared / "ollama-store/EXPECTED.json").read_text())["models"]
    path: str = models["hf.co/acme/gemma4-micro-GGUF:Q8_0"]["projectors"][0]
    return shared / "ollama-store" / path


def model_in_store(shared: Path) -> Path:
    models = json.loads((shared / "ollama-store/EXPECTED.json").read_text())["models"]
    path: str = models["gemma4:tiny"]["model"]
    return shared / "ollama-store" / path


@pytest.mark.parametrize(
    ("file", "folder", "name"),
    [
        ("mmproj-tiny-e2b-F16", "tiny-e2b", "aud_1p37s"),
        ("mmproj-tiny-e2b-F16", "tiny-e2b", "aud_2s"),
        ("tiny-e2b-ollama", "tiny-e2b-ollama", "aud_1p37s"),
        ("mmproj-tiny-12b-F16", "tiny-12b", "aud_1p37s"),
    ],
)
def test_soft_tokens_equal_transformers(shared: Path, file: str, folder: str, name: str) -> None:
    tower = AudioReference(Gguf.open(shared / f"models/{file}.gguf"))
    golden = np.load(shared / folder / f"audio_{name}.embd.npy")
    heard = read_sound(shared / f"media/{name}.wav")
    assert tower.tokens(len(heard.samples)) == len(golden)
    assert relative_error(tower.encode(heard.samples), golden) < CLOSE


def test_the_two_spellings_of_one_tower_hear_the_same(shared: Path) -> None:
    golden = np.load(shared / "micro/audio_aud_1p37s.embd.npy")
    samples = read_sound(shared / "media/aud_1p37s.wav").samples
    for path in (model_in_store(shared), projector_in_store(shared)):
        assert relative_error(AudioReference(Gguf.open(path)).encode(samples), golden) < CLOSE


@pytest.mark.parametrize("name", ["aud_1p37s", "aud_2s"])
def test_mel_spectra_equal_transformers(shared: Path, name: str) -> None:
    golden = np.load(shared / f"tiny-e2b/audio_{name}.mel.npy")
    ours = log_mel(np.array(read_sound(shared / f"media/{name}.wav").samples, dtype=np.float32))
    assert ours.shape == golden.shape
    assert np.abs(ours - golden).max() < 5e-5


def test_the_formula_is_the_fixtures(shared: Path) -> None:
    digest = json.loads((shared / "media-odd/expected.json").read_text())["audio"]["formula_31s_s16le_sha256"]
    assert hashlib.sha256(formula(496_000).tobytes()).hexdigest() == digest


def test_the_mel_spectrum_of_a_long_sound_equals_transformers(shared: Path) -> None:
    golden = np.load(shared / "media-odd/mel_formula.npz")
    ours = log_mel(np.array(sound(496_000)[:480_000], dtype=np.float32))
    assert ours.shape == golden["mel_f16"].shape
    assert np.abs(ours - golden["mel_f16"]).max() < 4e-3
    assert np.abs(ours[::50] - golden["every_50th_f32"]).max() < 5e-5


def test_resampling_equals_scipys(shared: Path) -> None:
    golden = np.load(shared / "media-odd/stereo_8k_1s.npz")
    heard = read_sound(shared / "media-odd/stereo_8k_1s.wav")
    ours = resample(np.array(heard.samples, dtype=np.float32).reshape(-1, heard.channels), heard.rate)
    assert relative_error(ours, golden["wave_16k"]) < 2e-3
    low = np.abs(log_mel(ours) - golden["mel"])[:, :85]
    assert low.mean() < 0.002 and low.max() < 0.01


def test_what_is_too_short_or_too_long_is_refused(shared: Path) -> None:
    tower = AudioReference(Gguf.open(model_in_store(shared)))
    with pytest.raises(MediaError, match="too short"):
        tower.encode(np.zeros(160))
    with pytest.raises(MediaError, match="too long"):
        tower.encode(np.zeros(480_001))


def test_a_sound_at_16_khz_stays_as_it_is(shared: Path) -> None:
    tower = AudioReference(Gguf.open(model_in_store(shared)))
    heard = read_sound(shared / "media/aud_2s.wav")
    ours = tower.resample(Sound(16_000, 1, heard.samples))
    assert np.abs(ours - np.array(heard.samples)).max() < 1e-6
