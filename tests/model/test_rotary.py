"""Factors of rotary embeddings that give no angles are refused, on the GPU and in the reference."""

import json
import struct
from pathlib import Path

import pytest

import wgemma
from wgemma.gpu.native import NativeDevice
from wgemma.model.rotary import check_factors, rotary_tables


@pytest.mark.parametrize("factor", [9e-41, 1e-45, 0.0, -0.0, -1.0, 1e-30, float("inf"), float("nan")])
def test_a_factor_that_gives_no_angles_is_refused(factor: float) -> None:
    with pytest.raises(wgemma.ModelError, match=r"rope_freqs\.weight contains the factor .* damaged\.$"):
        check_factors([1.0, factor, 8.0])


def test_the_least_and_the_largest_factor_give_angles() -> None:
    factors = [1e-3, 3e38]
    check_factors(factors)
    assert len(rotary_tables(1e12, 4, 2, factors, 1000)) == 8 * 2 * (256 + 4)


@pytest.mark.parametrize("place", ["gpu", "reference"])
def test_a_model_with_such_a_factor_names_the_tensor(place: str, data: Path, tmp_path: Path, gpu: NativeDevice) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    content = bytearray((data / "ollama-store" / store["gemma4:tiny"]["model"]).read_bytes())
    with wgemma.Gguf.open(bytes(content)) as gguf:
        struct.pack_into("<f", content, gguf.tensors["rope_freqs.weight"].offset, 9e-41)
    (tmp_path / "odd.gguf").write_bytes(content)
    with pytest.raises(wgemma.ModelError, match=r"rope_freqs\.weight contains the factor 8\.99998e-41"):
        list(wgemma.load(tmp_path / "odd.gguf", device=gpu if place == "gpu" else "reference").generate("a"))
