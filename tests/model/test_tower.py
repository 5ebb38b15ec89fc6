"""What the towers share: bounds in both spellings, clipped products, and tensors that are checked before use."""

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_writer import write_gguf
from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.config import Wanted
from wgemma.model.tower import (
    FAR,
    Bounds,
    Keys,
    Linear,
    find,
    flat,
    linear,
    linear_tensors,
    load_linear,
    read_bounds,
    submit,
)
from wgemma.model.weights import RowOrder, Uploader
from wgemma.sync import run

Entry = tuple[str, tuple[int, ...], bytes | None]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def bounds_of(name: str, **tensors: Entry) -> Bounds:
    gguf = Gguf.open(write_gguf({}, {key.replace("__", "."): entry for key, entry in tensors.items()}))
    return run(read_bounds(lambda tensor: gguf.aread(tensor.name), gguf.tensors, name))


def test_a_linear_without_bounds_has_none() -> None:
    assert bounds_of("v.blk.0.attn_q", other=("F32", (1,), floats(1))) == Bounds(-FAR, FAR, -FAR, FAR)


def test_bounds_may_be_given_one_by_one_and_zero_is_a_bound() -> None:
    high, low = ("F32", (1,), floats(0)), ("F32", (1,), floats(-2.5))
    got = bounds_of("v.blk.3.ffn_up", v__blk__3__ffn_up__input_max=high, v__blk__3__ffn_up__output_min=low)
    assert got == Bounds(-FAR, 0.0, -2.5, FAR)


def test_infinite_bounds_are_far_away_and_a_nan_is_damage() -> None:
    name = "v.blk.0.attn_k"
    infinite: Entry = ("F32", (1,), floats(float("-inf")))
    assert bounds_of(name, v__blk__0__attn_k__input_min=infinite) == Bounds()
    with pytest.raises(ModelError, match="not a number"):
        bounds_of(name, v__blk__0__attn_k__input_min=("F32", (1,), floats(float("nan"))))
    with pytest.raises(ModelError, match="bounds must be F32"):
        bounds_of(name, v__blk__0__attn_k__input_min=("F16", (1,), b"\0\0"))


def test_packed_bounds_are_found_by_layer_and_part_and_four_zeros_are_none() -> None:
    numbers = [float(i) for i in range((2 * 7 + 1) * 4)]
    numbers[4 * 9 : 4 * 9 + 4] = [0.0, 0.0, 0.0, 0.0]
    packed: Entry = ("F32", (len(numbers),), floats(*numbers))
    assert bounds_of("v.blk.0.attn_q", v__clamp_data=packed) == Bounds(0, 1, 2, 3)
    assert bounds_of("v.blk.1.ffn_down", v__clamp_data=packed) == Bounds(52, 53, 54, 55)
    assert bounds_of("mm.input_projection", v__clamp_data=packed) == Bounds(56, 57, 58, 59)
    assert bounds_of("v.blk.1.attn_v", v__clamp_data=packed) == Bounds()  # the four zeros
    assert bounds_of("a.blk.0.attn_q", v__clamp_data=packed) == Bounds()


# -- products


def uploaded(
    device: NativeDevice, w: NDArray[Any], bias: NDArray[Any] | None, bounds: Bounds
) -> tuple[Linear, Uploader]:
    """W as F16, with its bounds and bias in the file."""
    raw = w.astype("<f2")
    tensors: dict[str, Entry] = {"v.x.weight": ("F16", w.shape[::-1], raw.tobytes())}
    for name in ("input_min", "input_max", "output_min", "output_max"):
        tensors[f"v.x.{name}"] = ("F32", (1,), floats(getattr(bounds, name)))
    if bias is not None:
        tensors["v.x.bias"] = ("F32", bias.shape, bias.astype("<f4").tobytes())
    gguf = Gguf.open(write_gguf({}, tensors))
    wanted = linear_tensors("v.x", w.shape[1], w.shape[0], bias=bias is not None)
    uploader = Uploader(Ledger(device), gguf)
    lin = run(load_linear(uploader, find(gguf, wanted), "v.x"))
    uploader.close()
    return lin, uploader


@pytest.mark.parametrize(("rows", "n", "columns"), [(1, 3, 4), (70, 130, 44), (5, 64, 4304)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_clips_what_goes_in_and_what_comes_out(
    gpu: NativeDevice, rows: int, n: int, columns: int, bias: bool
) -> None:
    rng = np.random.default_rng(rows)
    w = (rng.standard_normal((n, columns)) / np.sqrt(columns)).astype("<f2").astype(np.float64)
    x, b = rng.standard_normal((rows, columns)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    bounds = Bounds(-0.5, 1.5, -0.25, 0.75)
    lin, uploader = uploaded(gpu, w, b if bias else None, bounds)
    assert lin.bounds == bounds
    with Ledger(gpu) as scratch:
        given, y = scratch.buffers((size, "test") for size in (x.nbytes, 4 * rows * n))
        gpu.write(given, 0, x.tobytes())
        tape = Tape(gpu, "test")
        linear(tape, lin, rows, given, y)
        submit(tape)
        got = np.frombuffer(run(gpu.read(y)), dtype="<f4").reshape(rows, n)
    uploader.ledger.free()
    expected = np.clip(np.clip(x, -0.5, 1.5) @ w.T + (b if bias else 0), -0.25, 0.75)
    assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < 1e-6


def test_rows_that_end_within_a_block_are_for_those_who_know(gpu: NativeDevice) -> None:
    gguf = Gguf.open(write_gguf({}, {"w": ("F16", (44, 2), None), "odd": ("F16", (6, 2), None)}))
    uploader = Uploader(Ledger(gpu), gguf)
    with pytest.raises(ModelError, match="needs a multiple of 32"):
        run(uploader.matrix([(gguf.tensors["w"], RowOrder())]))
    with pytest.raises(ModelError, match="needs a multiple of 4"):
        run(uploader.matrix([(gguf.tensors["odd"], RowOrder())], ragged=True))
    matrix = run(uploader.matrix([(gguf.tensors["w"], RowOrder())], ragged=True))
    assert (matrix.columns, matrix.blocks) == (44, 2)
    uploader.close()
    uploader.ledger.free()


# -- what is checked


def test_tensors_are_checked_for_presence_shape_and_type() -> None:
    gguf = Gguf.open(write_gguf({}, {"a": ("F32", (4,), None), "b": ("Q8_0", (32,), None)}))
    assert set(find(gguf, {"a": Wanted((4,)), "c": Wanted((1,), optional=True)})) == {"a"}
    for name, want, complaint in (
        ("c", Wanted((4,)), "is missing"),
        ("a", Wanted((5,)), r"has shape \[4\]"),
        ("b", Wanted((32,)), "has type Q8_0"),
    ):
        with pytest.raises(ModelError, match=complaint):
            find(gguf, {name: want})


def test_a_convolution_becomes_a_matrix_unless_it_is_quantised() -> None:
    gguf = Gguf.open(write_gguf({}, {"a": ("F16", (16, 16, 3, 8), None), "b": ("Q8_0", (32, 2), None)}))
    assert flat(gguf.tensors["a"], 768).shape == (768, 8)
    with pytest.raises(ModelError, match="a convolution must be F32, F16 or BF16"):
        flat(gguf.tensors["b"], 64)


def test_keys_are_read_in_either_spelling_and_checked() -> None:
    clip = Keys({"general.architecture": "clip", "clip.vision.block_count": 3, "clip.vision.bad": "x"}, "vision")
    own = Keys({"general.architecture": "gemma4", "gemma4.audio.block_count": 2}, "audio")
    assert (clip.whole("block_count", 10), own.whole("block_count", 10), own.whole("x", 9, default=5)) == (3, 2, 5)
    for key, complaint in (("none", "is missing"), ("bad", "must be a whole number"), ("block_count", "1 to 2")):
        with pytest.raises(ModelError, match=complaint):
            clip.whole(key, 2)


def test_scratch_goes_however_the_work_ends(gpu: NativeDevice) -> None:
    before = gpu.allocated
    with pytest.raises(ZeroDivisionError), Ledger(gpu) as scratch:
        scratch.buffer(64, "test")
        raise ZeroDivisionError
    with Ledger(gpu) as scratch:
        scratch.buffer(64, "test")
        result = scratch.keep(scratch.buffer(32, "test"))
    assert gpu.allocated == before + 32
    gpu.free(result)
