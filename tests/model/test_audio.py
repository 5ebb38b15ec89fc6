"""The sound towers on the GPU against transformers' goldens and the oracle; files that cannot be one are refused."""

import json
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fake_device import FakeBuffer, FakeDevice
from formula_sound import sound
from gguf_writer import string, tensor_nbytes, value
from wgemma.errors import MediaError, ModelError
from wgemma.files.gguf import Gguf
from wgemma.files.quants import BY_NAME
from wgemma.files.sounds import Sound, read_sound
from wgemma.gpu.device import DEFAULT_LIMITS
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.model import resample as resampling
from wgemma.model.audio import Audio, has_audio, load_audio
from wgemma.model.audio_config import LLAMA_CPP, OLLAMA, AudioConfig, ConformerConfig, audio_tensors
from wgemma.model.mel import BANDS
from wgemma.model.resample import resample
from wgemma.reference.audio import AudioReference
from wgemma.reference.audio import resample as resample_reference
from wgemma.sync import run

Floats = NDArray[np.float32]
CLOSE = 2e-5  # relative rms; the goldens allow 1e-3


def relative_error(ours: Floats, golden: Floats) -> float:
    assert ours.shape == golden.shape
    return float(np.linalg.norm(ours - golden) / np.linalg.norm(golden))


def heard(device: NativeDevice, tower: Audio, samples: "array[float]") -> Floats:
    """The soft tokens of a sound; nothing but them was left on the GPU."""
    before = device.allocated
    rows = run(tower.encode(samples))
    assert device.allocated - before == rows.size == 4 * tower.tokens(len(samples)) * tower.width
    values = np.frombuffer(run(device.read(rows)), dtype="<f4").reshape(-1, tower.width)
    device.free(rows)
    return values


def mel(tower: Audio, samples: "array[float]") -> Floats:
    return np.frombuffer(run(tower.mel(samples)), dtype="<f4").reshape(-1, BANDS)


def in_store(shared: Path, name: str, part: str) -> Path:
    entry = json.loads((shared / "ollama-store/EXPECTED.json").read_text())["models"][name][part]
    return shared / "ollama-store" / (entry if isinstance(entry, str) else entry[0])


@pytest.fixture(scope="module")
def tiny(shared: Path, gpu: NativeDevice) -> Iterator[Audio]:
    tower = run(load_audio(Ledger(gpu), Gguf.open(shared / "models/mmproj-tiny-e2b-F16.gguf")))
    yield tower
    tower.free()


@pytest.mark.parametrize(
    ("file", "folder", "name"),
    [
        ("mmproj-tiny-e2b-F16", "tiny-e2b", "aud_1p37s"),
        ("mmproj-tiny-e2b-F16", "tiny-e2b", "aud_2s"),
        ("tiny-e2b-ollama", "tiny-e2b-ollama", "aud_1p37s"),
        ("mmproj-tiny-12b-F16", "tiny-12b", "aud_1p37s"),
    ],
)
def test_soft_tokens_equal_transformers(shared: Path, gpu: NativeDevice, file: str, folder: str, name: str) -> None:
    check_golden(gpu, shared / f"models/{file}.gguf", shared / folder / f"audio_{name}.embd.npy")


@pytest.mark.parametrize("file", ["tiny-e2b-ollama", "mmproj-tiny-12b-F16"])
def test_soft_tokens_equal_transformers_at_the_default_limits(shared: Path, floor: NativeDevice, file: str) -> None:
    folder = file.removeprefix("mmproj-").removesuffix("-F16")
    check_golden(floor, shared / f"models/{file}.gguf", shared / folder / "audio_aud_1p37s.embd.npy")


def test_both_spellings_of_the_micro_tower_equal_transformers(shared: Path, gpu: NativeDevice) -> None:
    golden = shared / "micro/audio_aud_1p37s.embd.npy"
    check_golden(gpu, in_store(shared, "gemma4:tiny", "model"), golden)
    check_golden(gpu, in_store(shared, "hf.co/acme/gemma4-micro-GGUF:Q8_0", "projectors"), golden)


def test_packed_bounds_of_the_vision_tower_do_not_touch_the_sound_tower(
    shared: Path, gpu: NativeDevice, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, shared / "materialise.py", shared / "models", tmp_path], check=True)
    golden = shared / "tiny-e2b-ollama/audio_aud_1p37s.embd.npy"
    check_golden(gpu, tmp_path / "tiny-e2b-ollama-clampdata.gguf", golden)


def check_golden(device: NativeDevice, file: Path, golden: Path) -> None:
    before = device.allocated
    progress: list[int] = []
    gguf = Gguf.open(file)
    assert has_audio(gguf)
    tower = run(load_audio(Ledger(device), gguf, progress.append))
    assert device.allocated - before == tower.nbytes > 0
    wanted = [gguf.tensors[name] for name in audio_tensors(tower.config) if name in gguf.tensors]
    weights = [tensor.nbytes for tensor in wanted if tensor.name.endswith((".weight", ".bias"))]
    assert sum(weights) <= sum(progress) <= sum(tensor.nbytes for tensor in wanted)
    name = golden.name.removeprefix("audio_").removesuffix(".embd.npy")
    samples = read_sound(golden.parent.parent / f"media/{name}.wav").samples
    assert relative_error(heard(device, tower, samples), np.load(golden)) < CLOSE
    tower.free()
    assert device.allocated == before


# -- the spectrum


@pytest.mark.parametrize("name", ["aud_1p37s", "aud_2s"])
def test_mel_spectra_equal_transformers(shared: Path, tiny: Audio, name: str) -> None:
    golden = np.load(shared / f"tiny-e2b/audio_{name}.mel.npy")
    ours = mel(tiny, read_sound(shared / f"media/{name}.wav").samples)
    assert ours.shape == golden.shape
    assert np.abs(ours - golden).max() < 1e-3


def test_the_mel_spectrum_of_thirty_seconds_equals_transformers(shared: Path, tiny: Audio) -> None:
    golden = np.load(shared / "media-odd/mel_formula.npz")
    ours = mel(tiny, sound(496_000)[:480_000])
    assert ours.shape == golden["mel_f16"].shape
    assert np.abs(ours - golden["mel_f16"]).max() < 4e-3
    assert np.abs(ours[::50] - golden["every_50th_f32"]).max() < 1e-3
    assert np.abs(mel(tiny, sound(496_000)[:479_840]) - ours[:2998]).max() < 1e-6


def test_the_shortest_sound_is_one_frame(shared: Path, tiny: Audio, gpu: NativeDevice) -> None:
    golden = np.load(shared / "media-odd/mel_s161.npz")["mel"]
    samples = read_sound(shared / "media-odd/s161.wav").samples
    assert np.abs(mel(tiny, samples) - golden).max() < 1e-3
    assert heard(gpu, tiny, samples).shape == (1, tiny.width)


def test_token_counts_equal_transformers(shared: Path, tiny: Audio) -> None:
    entries = json.loads((shared / "media-odd/expected.json").read_text())["audio"]
    for entry in entries.values():
        if isinstance(entry, dict) and "soft_tokens" in entry:
            samples = min(entry["samples_16k"], 480_000)
            assert tiny.tokens(samples) == entry["soft_tokens"]


def test_a_sound_that_is_too_short_or_too_long_is_refused(shared: Path, tiny: Audio, gpu: NativeDevice) -> None:
    before = gpu.allocated
    with pytest.raises(MediaError, match="too short: 160 samples at 16 kHz; at least 161"):
        run(tiny.encode(read_sound(shared / "media-odd/s160.wav").samples))
    with pytest.raises(MediaError, match=r"too long: 31\.0 seconds\. Split it"):
        run(tiny.encode(array("f", bytes(4 * 496_000))))
    assert gpu.allocated == before


# -- the whole tower


@pytest.mark.parametrize("samples", [161, 321, 1000, 5001, 12_345])
def test_every_length_equals_the_oracle(shared: Path, tiny: Audio, gpu: NativeDevice, samples: int) -> None:
    oracle = AudioReference(Gguf.open(shared / "models/mmproj-tiny-e2b-F16.gguf"))
    wave = sound(496_000)[7000 : 7000 + samples]
    assert relative_error(heard(gpu, tiny, wave), oracle.encode(wave)) < CLOSE


def test_raw_samples_are_padded_to_a_whole_token(shared: Path, gpu: NativeDevice) -> None:
    gguf = Gguf.open(shared / "models/mmproj-tiny-12b-F16.gguf")
    tower, oracle = run(load_audio(Ledger(gpu), gguf)), AudioReference(gguf)
    for count in (1, 640, 641):
        wave = sound(496_000)[7000 : 7000 + count]
        assert relative_error(heard(gpu, tower, wave), oracle.encode(wave)) < CLOSE
    with pytest.raises(MediaError, match="too short: 0 samples"):
        run(tower.encode(array("f")))
    tower.free()


def test_a_sound_has_no_future(tiny: Audio, gpu: NativeDevice) -> None:
    """What follows changes only the last token, whose frames it shares."""
    wave = sound(496_000)[:32_000]
    short, long = heard(gpu, tiny, wave[:16_000]), heard(gpu, tiny, wave)
    assert np.abs(short[:-1] - long[: len(short) - 1]).max() < 1e-5


# -- other rates


def test_resampling_equals_scipys(shared: Path, gpu: NativeDevice, tiny: Audio) -> None:
    golden = np.load(shared / "media-odd/stereo_8k_1s.npz")
    ours = run(tiny.resample(read_sound(shared / "media-odd/stereo_8k_1s.wav")))
    assert relative_error(np.array(ours, dtype=np.float32), golden["wave_16k"]) < 2e-3
    low = np.abs(mel(tiny, ours) - golden["mel"])[:, :85]
    assert low.mean() < 0.01 and low.max() < 0.05


@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (48_000, 1), (22_050, 6), (11_025, 1), (44_099, 1)])
def test_any_rate_and_number_of_channels_equals_the_oracle(gpu: NativeDevice, rate: int, channels: int) -> None:
    given = np.random.default_rng(rate).standard_normal((rate // 8, channels)).astype(np.float32)
    before = gpu.allocated
    ours = np.array(run(resample(gpu, Sound(rate, channels, array("f", given.tobytes())))), dtype=np.float32)
    assert relative_error(ours, resample_reference(given, rate)) < CLOSE
    assert gpu.allocated == before


def test_tones_that_fit_are_kept_and_others_vanish(gpu: NativeDevice) -> None:
    time = np.arange(4800) / 48_000
    kept, gone = np.sin(2 * np.pi * 3000 * time), np.sin(2 * np.pi * 11_000 * time)
    ours = np.array(run(resample(gpu, Sound(48_000, 1, array("f", (kept + gone).astype(np.float32).tobytes())))))
    inner = slice(100, -100)
    assert np.abs(ours - np.sin(2 * np.pi * 3000 * np.arange(1600) / 16_000))[inner].max() < 1e-3


def test_pieces_fit_together(gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Sound(44_100, 2, array("f", np.random.default_rng(5).standard_normal(12_000).astype(np.float32).tobytes()))
    whole = run(resample(gpu, given))
    monkeypatch.setattr(resampling, "PIECE", 333)
    assert np.abs(np.array(run(resample(gpu, given))) - np.array(whole)).max() < 1e-6


def test_a_sound_that_fits_already_is_not_touched(gpu: NativeDevice) -> None:
    samples = sound(496_000)[:1000]
    assert run(resample(gpu, Sound(16_000, 1, samples))) == samples


# -- files


def test_a_file_without_a_tower_says_so(shared: Path, gpu: NativeDevice) -> None:
    for path in (in_store(shared, "gemma4:legacy", "model"), shared / "models/mmproj-tiny-31b-F16.gguf"):
        gguf = Gguf.open(path)
        assert not has_audio(gguf)
        with pytest.raises(ModelError, match="no audio tower in this file"):
            run(load_audio(Ledger(gpu), gguf))


def without(name: str) -> Callable[[Gguf], None]:
    return lambda gguf: gguf.tensors.__delitem__(name)


def key(name: str, given: Any) -> Callable[[Gguf], None]:
    return lambda gguf: gguf.metadata.__setitem__(f"clip.audio.{name}", given)


def tensor(name: str, **changes: Any) -> Callable[[Gguf], None]:
    return lambda gguf: gguf.tensors.__setitem__(name, replace(gguf.tensors[name], **changes))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (without("a.blk.1.attn_k_rel.weight"), "attn_k_rel.weight of shape .* is missing"),
        (without("a.pre_encode.out.bias"), "a.pre_encode.out.bias of shape .* is missing"),
        (without("a.conv1d.1.weight"), "a.conv1d.1.weight is missing"),
        (key("block_count", 3), "a.blk.2.* is missing"),
        (key("block_count", "2"), "must be a whole number"),
        (key("block_count", 100_000), "it must be 1 to 256"),
        (key("attention.head_count", 3), "of its 3 heads"),
        (key("attention.head_count", 4), "per_dim_scale.weight has shape"),
        (key("embedding_length", 100), "width 100"),
        (key("feed_forward_length", 256), "ffn_up.weight has shape"),
        (key("num_mel_bins", 80), "80 mel bands"),
        (tensor("a.conv1d.0.weight", shape=(3, 3, 1, 1 << 20)), "must be 1 to 256"),
        (tensor("a.conv1d.0.weight", shape=(3, 3, 1, 126)), "multiple of 4"),
        (tensor("a.conv1d.1.weight", shape=(3, 3, 32, 128)), "has shape"),
        (tensor("a.blk.0.conv_dw.weight", shape=(128, 5)), "must be 1 to 64"),
        (tensor("a.blk.0.ffn_norm.weight", type="Q8_0"), "has type Q8_0"),
        (tensor("a.blk.0.attn_q.weight", type="IQ2_XXS"), "has type IQ2_XXS"),
        (tensor("a.blk.0.attn_q.input_min", shape=(2,)), "has shape"),
        (tensor("mm.a.input_projection.weight", shape=(1, 192 * 256)), "must be 1 to"),
        (tensor("mm.a.input_projection.weight", shape=(256, 192)), "has shape"),
    ],
)
def test_a_tower_that_does_not_fit_together_is_refused(
    shared: Path, gpu: NativeDevice, damage: Callable[[Gguf], None], sentence: str
) -> None:
    gguf, before = Gguf.open(shared / "models/mmproj-tiny-e2b-F16.gguf"), gpu.allocated
    damage(gguf)
    with pytest.raises(ModelError, match=f"mmproj-tiny-e2b-F16.*: .*{sentence}"):
        run(load_audio(Ledger(gpu), gguf))
    assert gpu.allocated == before


def test_a_number_that_is_none_is_refused_and_nothing_stays(shared: Path, gpu: NativeDevice) -> None:
    data = bytearray((shared / "models/mmproj-tiny-e2b-F16.gguf").read_bytes())
    at = Gguf.open(bytes(data)).tensors["a.blk.1.ln2.weight"].offset
    data[at : at + 4] = struct.pack("<f", float("nan"))
    before = gpu.allocated
    with pytest.raises(ModelError, match=r"a\.blk\.1\.ln2\.weight contains NaN or Inf"):
        run(load_audio(Ledger(gpu), Gguf.open(bytes(data))))
    assert gpu.allocated == before


# -- the real sizes


class Watched(FakeDevice):
    """Counts what was allocated at most."""

    most = 0

    def buffer(self, size: int, label: str) -> FakeBuffer:
        assert size <= self.limits.binding, label
        made = super().buffer(size, label)
        self.most = max(self.most, self.allocated)
        return made


@pytest.mark.parametrize("names", [OLLAMA, LLAMA_CPP])
def test_thirty_seconds_of_the_real_tower_fit_the_default_limits(tmp_path: Path, names: Any) -> None:
    """Weights of zeros on a device that only counts: bindings, grids and memory are the real ones."""
    config = AudioConfig(1536, ConformerConfig(names, 12, 1024, 8, 4096, (128, 32), 5, 1536))
    write_tower(tmp_path / "tower.gguf", config)
    device = Watched(DEFAULT_LIMITS)
    tower = run(load_audio(Ledger(device), Gguf.open(tmp_path / "tower.gguf")))  # type: ignore[arg-type]
    assert tower.config == config
    assert tower.nbytes == device.allocated < 650 << 20
    weights, device.most = device.allocated, 0
    rows = run(tower.encode(array("f", bytes(4 * 480_000))))
    assert rows.size == 4 * 750 * 1536
    assert device.most - weights < 120 << 20


def write_tower(path: Path, config: AudioConfig) -> None:
    """A sparse file with every tensor in its place: matrices BF16, everything else F32."""
    conformer = config.conformer
    assert conformer is not None
    prefix = "gemma4" if conformer.names is OLLAMA else "clip"
    sizes = {
        "block_count": conformer.blocks,
        "embedding_length": conformer.width,
        "attention.head_count": conformer.heads,
        "feed_forward_length": conformer.ffn_width,
    }
    metadata: dict[str, Any] = {"general.architecture": prefix}
    metadata |= {f"{prefix}.audio.{name}": size for name, size in sizes.items()}
    tensors = {name: want for name, want in audio_tensors(config).items() if not want.optional}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(name) + value(entry) for name, entry in metadata.items())
    offset = 0
    for name, want in tensors.items():
        kind, shape = "BF16" if want.matrix else "F32", want.shape
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, BY_NAME[kind].id, offset)
        offset += -(-tensor_nbytes(kind, shape) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(-(-len(head) // 32) * 32 + offset)
