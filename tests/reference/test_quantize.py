"""Quantised weights stay near the floats: nearer than llama.cpp's, and finite whatever the weights."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wgemma.files.quants import BY_NAME
from wgemma.reference import quantize as module
from wgemma.reference.dequantize import dequantize
from wgemma.reference.quantize import QUANTIZERS, quantize

Floats = NDArray[np.float32]

BLOCK_KINDS = ["Q8_0", "Q4_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
HALF_STEP = 2.0**-10  # the relative distance between half-precision numbers

# The root of the mean squared error on gaussian weights of deviation 1.
GAUSSIAN_ERROR = {
    "Q8_0": 0.0055, "Q4_0": 0.083, "Q5_0": 0.041, "Q5_1": 0.0355, "Q4_K": 0.072, "Q5_K": 0.036, "Q6_K": 0.0178,
}  # fmt: skip


def round_trip(values: Floats, kind: str) -> Floats:
    return dequantize(quantize(values, kind), kind, values.shape)


def gaussian(*shape: int) -> Floats:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


@pytest.mark.parametrize(("file", "kind"), [("Q8_0", "Q8_0"), ("Q4_0", "Q4_0"), ("Q4_K_M", "Q4_K"), ("Q4_K_M", "Q6_K")])
def test_the_error_is_below_that_of_llama_cpp(shared: Path, file: str, kind: str) -> None:
    floats = {tensor.name: tensor for tensor in gguf.GGUFReader(shared / "models" / "tiny-e2b-F16.gguf").tensors}
    ours, theirs = 0.0, 0.0
    for tensor in gguf.GGUFReader(shared / "models" / f"tiny-e2b-{file}.gguf").tensors:
        if tensor.tensor_type.name != kind:
            continue
        values = floats[tensor.name].data.astype(np.float32)
        ours += rms(round_trip(values, kind) - values) ** 2 * values.size
        theirs += rms(gguf_dequantize(tensor.data, tensor.tensor_type) - values) ** 2 * values.size
    assert 0 < ours < theirs


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q5_1"])
def test_the_error_is_below_that_of_the_gguf_package(kind: str) -> None:
    values, theirs = gaussian(64, 1024), gguf.GGMLQuantizationType[kind]
    ours = rms(round_trip(values, kind) - values)
    assert ours < rms(gguf_dequantize(gguf_quantize(values, theirs), theirs) - values)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_the_error_on_gaussian_weights_is_small(kind: str) -> None:
    values = gaussian(64, 1024)
    assert rms(round_trip(values, kind) - values) < GAUSSIAN_ERROR[kind]


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("scale", [3e-4, 1e3])
def test_the_relative_error_does_not_depend_on_the_size_of_the_weights(kind: str, scale: float) -> None:
    values = gaussian(64, 1024) * np.float32(scale)
    assert rms(round_trip(values, kind) - values) < 1.02 * GAUSSIAN_ERROR[kind] * scale


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_blocks_all_of_one_sign_are_no_worse_than_mixed_ones(kind: str) -> None:
    for sign in (-1, 1):
        values = sign * np.abs(gaussian(64, 1024))
        assert rms(round_trip(values, kind) - values) < GAUSSIAN_ERROR[kind]


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_zeros_stay_zeros(kind: str) -> None:
    assert not round_trip(np.zeros((3, 512), dtype=np.float32), kind).any()


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.3, -0.3, 12345.678])
def test_constant_rows_lose_only_the_rounding_of_the_scale(kind: str, value: float) -> None:
    values = np.full((2, 512), value, dtype=np.float32)
    np.testing.assert_allclose(round_trip(values, kind), values, rtol=HALF_STEP)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("value", [3e-4, -3e-4])
def test_constant_rows_of_small_weights_stay_near_though_scales_are_subnormal(kind: str, value: float) -> None:
    values = np.full((2, 512), value, dtype=np.float32)
    np.testing.assert_allclose(round_trip(values, kind), values, rtol=0.015)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_single_large_outlier_survives_and_spoils_its_own_block_only(kind: str, sign: int) -> None:
    values = gaussian(1, 512)
    values[0, 300] = sign * 1000
    after = round_trip(values, kind)
    np.testing.assert_allclose(after[0, 300], values[0, 300], rtol=0.005)
    assert after[:, :256].tobytes() == round_trip(values[:, :256], kind).tobytes()
    assert rms(after[:, 256:] - values[:, 256:]) < 3


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_weights_beyond_the_format_saturate(kind: str) -> None:
    values = gaussian(1, 256)
    values[0, 5], values[0, 77] = np.finfo(np.float32).max, np.finfo(np.float32).min
    after = round_trip(values, kind)
    assert np.isfinite(after).all()
    assert after[0, 5] > 4e5
    assert after[0, 77] <= (-65504 if kind == "Q5_1" else -4e5)  # there nothing lies below the min, a half


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_denormals_become_almost_nothing(kind: str) -> None:
    values = gaussian(4, 256) * np.float32(1e-40)
    assert np.abs(round_trip(values, kind)).max() <= 2.0**-24


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), low=st.integers(-149, 127), high=st.integers(-149, 127))
def test_finite_weights_never_give_nan_or_infinity(kind: str, seed: int, low: int, high: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = rng.integers(min(low, high), max(low, high) + 1, (2, 512))
    values = np.ldexp(rng.uniform(-1, 1, exponents.shape).astype(np.float32), exponents)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert np.isfinite(round_trip(values, kind)).all()


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_what_was_quantised_once_hardly_moves_again(kind: str) -> None:
    once = round_trip(gaussian(16, 512), kind)
    assert rms(round_trip(once, kind) - once) < 0.5 * GAUSSIAN_ERROR[kind]


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_slabs_do_not_show(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = gaussian(5, 512)
    whole = quantize(values, kind)
    monkeypatch.setattr(module, "SLAB", 512)
    assert quantize(values, kind).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", list(QUANTIZERS))
def test_rows_keep_their_axes_and_become_bytes(kind: str) -> None:
    assert quantize(gaussian(2, 3, 512), kind).shape == (2, 3, BY_NAME[kind].row_nbytes(512))


def test_f32_is_kept_and_f16_rounded() -> None:
    values = gaussian(7, 33)
    assert round_trip(values, "F32").tobytes() == values.tobytes()
    np.testing.assert_array_equal(round_trip(values, "F16"), values.astype(np.float16).astype(np.float32))


def test_bf16_rounds_as_gguf_does() -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, (16, 4096), dtype=np.uint32)
    bits[0, :2] = 0x7F800001, 0xFFFFFFFF  # a NaN whose payload is in the lower half only, and one that would carry
    bits[1] = bits[1] & 0xFFFF0000 | 0x8000  # ties
    values = bits.view(np.float32)
    assert quantize(values, "BF16").tobytes() == gguf_quantize(values, gguf.GGMLQuantizationType.BF16).tobytes()


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="IQ4_XS"):
        quantize(gaussian(1, 256), "IQ4_XS")


def test_a_row_that_does_not_fill_its_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 256"):
        quantize(gaussian(2, 288), "Q4_K")
