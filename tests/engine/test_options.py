"""Options that a model or a GPU does not allow are refused before any work is done."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wgemma
from wgemma.engine.options import Options, check_room, context_of
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import Limits
from wgemma.gpu.native import NativeDevice
from wgemma.model.config import Config


@pytest.fixture(scope="module")
def blob(data: Path) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / store["gemma4:tiny"]["model"]


@pytest.fixture(scope="module")
def config(blob: Path) -> Config:
    with Gguf.open(blob) as gguf:
        return Config.from_gguf(gguf)


def with_number(blob: Path, key: str, number: int, to: Path) -> Path:
    """The model with another value of a 32-bit key."""
    data = bytearray(blob.read_bytes())
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    struct.pack_into("<I", data, at + 4, number)
    to.write_bytes(data)
    return to


@pytest.mark.parametrize("context", [1 << 26, 1 << 31, 1 << 63, 10**5000], ids=lambda n: n.bit_length())
def test_a_context_beyond_the_models_is_refused_before_a_device_is_opened(
    blob: Path, monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    monkeypatch.setattr("wgemma.loading.open_device", None)
    with pytest.raises(wgemma.SettingsError, match=r"^context is .{1,40}; this model allows 1 to 2048\.$"):
        wgemma.load(blob, context=context)


@pytest.mark.parametrize("key", ["context_length", "attention.sliding_window"])
def test_a_file_with_an_absurd_context_or_window_is_refused(blob: Path, tmp_path: Path, key: str) -> None:
    for number in ((1 << 22) + 1, 1 << 31):
        path = with_number(blob, f"gemma4.{key}", number, tmp_path / "absurd.gguf")
        with pytest.raises(wgemma.ModelError, match=rf"gemma4\.{key} is {number}; it must be 1 to {1 << 22}"):
            wgemma.load(path, device="reference")


def test_a_window_too_large_for_a_binding_is_refused(blob: Path, floor: NativeDevice, tmp_path: Path) -> None:
    path, before = (
        with_number(blob, "gemma4.attention.sliding_window", 1 << 22, tmp_path / "wide.gguf"),
        floor.allocated,
    )
    with pytest.raises(wgemma.ModelError, match=rf"window of {1 << 22} tokens needs .* this GPU allows {128 << 20}\."):
        wgemma.load(path, device=floor)
    assert floor.allocated == before


def test_a_context_too_large_for_a_binding_is_refused(config: Config) -> None:
    long = replace(config, context_length=1 << 22)
    check_room(long, Options(), Limits())
    with pytest.raises(wgemma.SettingsError, match=rf"a context of {1 << 22} tokens needs .*smaller context"):
        check_room(long, Options(), Limits(binding=1 << 20))
    check_room(long, Options(context=2048), Limits(binding=1 << 20))


@pytest.mark.parametrize(
    "given",
    [
        {"context": 0},
        {"context": "x"},
        {"memory": -1},
        {"chunk": 3},
        {"kv": ["f16"]},
        {"slots": 0},
        {"slots": 65},
        {"arena": -1},
        {"arena": 0.5},
    ],
)
def test_options_of_the_wrong_kind_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(wgemma.SettingsError, match=f"^{next(iter(given))} is "):
        Options(**given)


def test_the_models_own_context_is_the_default(config: Config) -> None:
    assert context_of(config, Options()) == 2048 and context_of(config, Options(context=5)) == 5


def test_an_arena_too_small_for_anything_is_refused(config: Config) -> None:
    with pytest.raises(
        wgemma.SettingsError, match="arena is 8 bytes; with 8 slots this model needs at least"
    ) as refused:
        check_room(config, Options(arena=8), Limits())
    least = int(str(refused.value).split("at least ")[1].split(",")[0])
    check_room(config, Options(arena=least), Limits())
    with pytest.raises(wgemma.SettingsError, match="arena is"):
        check_room(config, Options(arena=least - 1), Limits())
    check_room(config, Options(arena=least - 1, slots=1), Limits())


@pytest.mark.parametrize("given", [{"slots": 0}, {"slots": 65}, {"slots": None}, {"arena": -1}, {"arena": 0.5}])
def test_slots_and_arenas_of_the_wrong_kind_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(wgemma.SettingsError, match=f"^{next(iter(given))} is "):
        Options(**given)
