"""Every block format is read bit for bit as the `gguf` package reads it."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize
from numpy.typing import NDArray

from wgemma.files.quants import BY_NAME
from wgemma.reference.dequantize import DEQUANTIZERS, dequantize

# Where the half-precision scales of a block stand; formats not listed have none.
HALF_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}  # fmt: skip


def random_blocks(kind: str, count: int, rng: np.random.Generator | None = None) -> NDArray[np.uint8]:
    """Blocks of random bytes, their scales too, but for the half-precision ones an exponent that keeps them finite."""
    rng = rng or np.random.default_rng(sum(kind.encode()))
    blocks = rng.integers(0, 256, (count, BY_NAME[kind].nbytes), dtype=np.uint8)
    for at in HALF_SCALES.get(kind, ()):
        blocks[:, at + 1] &= 0xBF
    return blocks


def by_gguf(blocks: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values: NDArray[np.float32] = gguf_dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return values.ravel()


@pytest.mark.parametrize("kind", sorted(set(DEQUANTIZERS) - {"F32", "F16", "BF16"}))
def test_random_blocks_are_bit_exact(kind: str) -> None:
    blocks = random_blocks(kind, 2000)
    values = dequantize(blocks, kind)
    assert values.dtype == np.float32
    assert values.view(np.uint32).tolist() == by_gguf(blocks, kind).view(np.uint32).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(DEQUANTIZERS) - {"F32", "F16", "BF16"}))
def test_a_million_random_blocks_are_bit_exact(kind: str) -> None:
    rng, step = np.random.default_rng(sum(kind.encode())), 20_000
    for _ in range(0, 1_000_000, step):
        blocks = random_blocks(kind, step, rng)
        assert dequantize(blocks, kind).tobytes() == by_gguf(blocks, kind).tobytes()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_scales_that_are_not_finite_stay_so(kind: str) -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (500, BY_NAME[kind].nbytes), dtype=np.uint8)
    at = HALF_SCALES[kind][0]
    blocks[::3, at : at + 2] = (0x00, 0x7C)
    blocks[1::3, at : at + 2] = (0x01, 0x7E)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(dequantize(blocks, kind), by_gguf(blocks, kind))


def test_every_scale_byte_of_the_fp4_formats_is_bit_exact() -> None:
    for kind, scales, codes in (("MXFP4", slice(0, 1), slice(1, None)), ("NVFP4", slice(0, 4), slice(4, None))):
        blocks = random_blocks(kind, 256)
        blocks[:, scales] = np.arange(256, dtype=np.uint8)[:, None]
        blocks[:, codes] = np.arange(256, dtype=np.uint8)[: blocks[:, codes].shape[1]] * 7
        assert dequantize(blocks, kind).tobytes() == by_gguf(blocks, kind).tobytes(), kind


def test_all_half_precision_numbers_are_read() -> None:
    halves = np.arange(1 << 16, dtype="<u2").view("<f2")
    np.testing.assert_array_equal(dequantize(halves.tobytes(), "F16"), halves.astype(np.float32))


def test_all_bf16_numbers_are_read_as_gguf_reads_them() -> None:
    raw = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    assert dequantize(raw, "BF16").tobytes() == by_gguf(raw.reshape(1, -1), "BF16").tobytes()


def test_f32_comes_back_unchanged() -> None:
    values = np.random.default_rng(2).standard_normal(999, dtype=np.float32)
    assert dequantize(values.tobytes(), "F32").tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", list(DEQUANTIZERS))
def test_bytes_memoryviews_and_arrays_mean_the_same(kind: str) -> None:
    blocks = np.zeros((6, BY_NAME[kind].nbytes), dtype=np.uint8) + np.arange(6, dtype=np.uint8)[:, None]
    expected = dequantize(blocks, kind).tobytes()
    odd_address = memoryview(b"?" + blocks.tobytes())[1:]
    every_other = np.repeat(blocks, 2, axis=0)[::2]
    for raw in (blocks.tobytes(), odd_address, every_other):
        assert dequantize(raw, kind).tobytes() == expected


def test_a_shape_is_slowest_axis_first() -> None:
    raw = random_blocks("Q8_0", 6)
    values = dequantize(raw, "Q8_0", (3, 64))
    assert values.shape == (3, 64)
    np.testing.assert_array_equal(values[1], dequantize(raw[2:4], "Q8_0"))


def test_without_a_shape_the_values_are_flat() -> None:
    assert dequantize(random_blocks("Q4_K", 2), "Q4_K").shape == (512,)


@pytest.mark.parametrize("kind", list(DEQUANTIZERS))
def test_no_bytes_are_no_values(kind: str) -> None:
    assert dequantize(b"", kind, (0, 256)).shape == (0, 256)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="IQ2_XXS"):
        dequantize(b"", "IQ2_XXS")


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="Q4_0 blocks are 18 bytes"):
        dequantize(bytes(27), "Q4_0")


@pytest.mark.parametrize("file", ["tiny-e2b-Q4_K_M.gguf", "tiny-26b-a4b-Q4_K_M.gguf"])
def test_tensors_of_real_files_are_bit_exact(shared: Path, file: str) -> None:
    for tensor in gguf.GGUFReader(shared / "models" / file).tensors:
        kind, raw = tensor.tensor_type.name, np.ascontiguousarray(tensor.data).view(np.uint8)
        expected = gguf_dequantize(tensor.data, tensor.tensor_type)
        assert dequantize(raw, kind, expected.shape).tobytes() == expected.tobytes(), tensor.name
