"""Images become the soft tokens that transformers makes of them, on any device, and what does not fit is refused."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from gguf_writer import write_gguf
from wgemma.errors import ModelError, OutOfMemory
from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels, read_image
from wgemma.files.sources import NativeSource
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.model import picture
from wgemma.model.picture import bands, needed, resized
from wgemma.model.vision import BUDGETS, Vision, has_vision, load_vision
from wgemma.model.vision_config import fitted, read_vision
from wgemma.reference.vision import VisionReference
from wgemma.sync import run

Floats = NDArray[np.float32]
Opener = Callable[[str], Gguf]
# Goldens of these pictures were made without a resize, which is what the smallest budget gives.
BUDGET = {"img_384x336": 70, "img_336x480": 70}


def image(shared: Path, name: str) -> Pixels:
    return read_image(shared / "media" / f"{name}.png")


def relative(got: Floats, expected: Floats) -> float:
    assert got.shape == expected.shape
    return float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))


def encoded(device: NativeDevice, vision: Vision, pixels: Pixels, budget: int = 280) -> Floats:
    rows = run(vision.encode(pixels, budget))
    across, down = vision.grid(pixels.width, pixels.height, budget)
    assert rows.size == across * down * vision.width * 4
    values = np.frombuffer(run(device.read(rows)), dtype="<f4").reshape(across * down, vision.width)
    device.free(rows)
    return values


@pytest.fixture(scope="module")
def towers(shared: Path, gpu: NativeDevice) -> Iterator[Callable[[str], Vision]]:
    """The towers of the fixtures, each loaded when first asked for."""
    loaded: dict[str, Vision] = {}

    def tower(name: str) -> Vision:
        if name not in loaded:
            loaded[name] = run(load_vision(Ledger(gpu), Gguf.open(shared / "models" / f"{name}.gguf")))
        return loaded[name]

    yield tower
    for vision in loaded.values():
        vision.free()


# -- goldens

GOLDENS = [
    ("tiny-e2b", "mmproj-tiny-e2b-F16", "img_384x336"),
    ("tiny-e2b", "mmproj-tiny-e2b-F16", "img_336x480"),
    pytest.param("tiny-e2b", "mmproj-tiny-e2b-F16", "img_500x300", marks=pytest.mark.slow),
    pytest.param("tiny-e2b", "mmproj-tiny-e2b-F16", "img_1600x900", marks=pytest.mark.slow),
    ("tiny-e2b-ollama", "tiny-e2b-ollama", "img_384x336"),
    ("tiny-31b", "mmproj-tiny-31b-F16", "img_384x336"),
    ("tiny-31b", "mmproj-tiny-31b-F16", "img_336x480"),
    ("tiny-26b-a4b", "mmproj-tiny-26b-a4b-F16", "img_384x336"),
    pytest.param("tiny-26b-a4b", "mmproj-tiny-26b-a4b-F16", "img_336x480", marks=pytest.mark.slow),
    ("tiny-12b", "mmproj-tiny-12b-F16", "img_384x336"),
]


@pytest.mark.parametrize(("folder", "file", "name"), GOLDENS)
def test_an_image_becomes_the_tokens_that_transformers_makes(
    shared: Path, gpu: NativeDevice, towers: Callable[[str], Vision], folder: str, file: str, name: str
) -> None:
    expected = np.load(shared / folder / f"vision_{name}.embd.npy")
    got = encoded(gpu, towers(file), image(shared, name), BUDGET.get(name, 280))
    assert relative(got, expected) <= 1e-3


def with_packed_bounds(shared: Path, folder: Path) -> Path:
    """The monolithic tiny model with all its bounds in one tensor, put together from its recipe."""
    models = shared / "models"
    recipe = json.loads((models / "tiny-e2b-ollama-clampdata.json").read_text())
    bytes_of = {"src": (models / recipe["source"]).read_bytes(), "lit": (models / recipe["literal"]).read_bytes()}
    pieces = [bytes(at[0]) if kind == "zero" else bytes_of[kind][at[0] : sum(at)] for kind, *at in recipe["segments"]]
    path = folder / recipe["output"]
    path.write_bytes(b"".join(pieces))
    return path


def test_packed_bounds_give_the_same_tokens(shared: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    """The store's `legacy` model has four zeros for the projector."""
    models = json.loads((shared / "ollama-store" / "EXPECTED.json").read_text())["models"]
    store = {name: shared / "ollama-store" / models[name]["model"] for name in ("gemma4:tiny", "gemma4:legacy")}
    for folder, file in (
        ("tiny-e2b-ollama", with_packed_bounds(shared, tmp_path)),
        ("micro", store["gemma4:tiny"]),
        ("micro", store["gemma4:legacy"]),
    ):
        vision = run(load_vision(Ledger(gpu), Gguf.open(file)))
        expected = np.load(shared / folder / "vision_img_384x336.embd.npy")
        assert relative(encoded(gpu, vision, image(shared, "img_384x336"), 70), expected) <= 1e-3
        vision.free()


@pytest.mark.parametrize("file", ["mmproj-tiny-e2b-F16", "mmproj-tiny-12b-F16"])
def test_default_limits_are_enough(shared: Path, floor: NativeDevice, file: str) -> None:
    vision = run(load_vision(Ledger(floor), Gguf.open(shared / "models" / f"{file}.gguf")))
    folder = file.removeprefix("mmproj-").removesuffix("-F16")
    expected = np.load(shared / folder / "vision_img_384x336.embd.npy")
    assert relative(encoded(floor, vision, image(shared, "img_384x336"), 70), expected) <= 1e-3
    vision.free()


# -- a tower of our own


def small_tower(rng: np.random.Generator, heads: int, head: int, ffn: int, places: int = 64) -> Gguf:
    """Two layers with clipped linears, scales and standardised tokens; every vector in another type."""
    inner, width = heads * head, 96
    tensors: dict[str, tuple[str, tuple[int, ...], bytes | None]] = {}

    def put(name: str, kind: str, shape: tuple[int, ...], scale: float, around: float = 0.0) -> None:
        values = (around + scale * rng.standard_normal(shape[::-1])).astype(np.float32)
        words = values.view("<u4") >> 16 if kind == "BF16" else values
        form = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind]
        tensors[name] = (kind, shape, words.astype(form).tobytes())

    put("v.patch_embd.weight", "F32", (16, 16, 3, inner), 0.05)
    put("v.position_embd.weight", "BF16", (inner, places, 2), 0.5)
    put("mm.input_projection.weight", "F16", (inner, width), 0.1)
    put("v.std_bias", "F32", (inner,), 1.0)
    put("v.std_scale", "F16", (inner,), 0.2, 1.0)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (inner, inner))
    shapes |= {"ffn_gate": (inner, ffn), "ffn_up": (inner, ffn), "ffn_down": (ffn, inner)}
    for block in ("v.blk.0.", "v.blk.1."):
        for name, shape in shapes.items():
            put(f"{block}{name}.weight", "F16", shape, shape[0] ** -0.5)
            put(f"{block}{name}.input_max", "F32", (1,), 0.0, 1.5)
            put(f"{block}{name}.output_min", "F32", (1,), 0.0, -1.0)
        for name in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            put(f"{block}{name}.weight", "F32", (inner,), 0.2, 1.0)
        for name in ("attn_q_norm", "attn_k_norm"):
            put(f"{block}{name}.weight", "F32", (head,), 0.1, 0.4)
        put(f"{block}out_scale.weight", "F32", (1,), 0.0, 0.7)
    keys = {"block_count": 2, "embedding_length": inner, "feed_forward_length": ffn, "attention.head_count": heads}
    metadata: dict[str, Any] = {f"clip.vision.{key}": value for key, value in keys.items()}
    return Gguf.open(write_gguf({"general.architecture": "clip", **metadata}, tensors))


def noise(rng: np.random.Generator, width: int, height: int) -> Pixels:
    return Pixels(width, height, rng.integers(0, 256, width * height * 4, dtype=np.uint8).tobytes())


@pytest.mark.parametrize(("heads", "head", "ffn"), [(4, 72, 100), (4, 8, 32), (1, 128, 68)])
def test_other_shapes_agree_with_the_reference(gpu: NativeDevice, heads: int, head: int, ffn: int) -> None:
    """Heads of 72 and rows of ffn that end within a block, as in the 26B; the feed-forward block in two pieces."""
    rng = np.random.default_rng(head)
    gguf, pixels = small_tower(rng, heads, head, ffn), noise(rng, 150, 100)
    vision = run(load_vision(Ledger(gpu), gguf))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wgemma.model.vision_tower.FFN_ROWS", 320)
        got = encoded(gpu, vision, pixels, 70)
    vision.free()
    assert relative(got, VisionReference(gguf).encode(pixels, 70)) < 1e-4


# -- pixels


def pictures(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "media-odd" / "expected.json").read_text())["images"]
    return found


ODD = (
    "alpha_331x207.png",
    "big_4000x3000.png",
    "exact_960x672.png",
    "exif6_120x80.jpg",
    "gray_50x70.png",
    "one_1x1.png",
    "palette_97x61.png",
    "palette_trns_97x61.png",
    "tall_2x3000.png",
    "wide_3000x2.png",
)


def shown(device: NativeDevice, pixels: Pixels, width: int, height: int) -> NDArray[np.int64]:
    buffer = resized(device, pixels, width, height)
    rgba = np.frombuffer(run(device.read(buffer)), dtype=np.uint8).reshape(height, width, 4)
    device.free(buffer)
    assert (rgba[..., 3] == 255).all()
    return rgba[..., :3].astype(np.int64)


def check_pixels(got: NDArray[np.int64], file: Path) -> None:
    assert (got == np.asarray(Image.open(file).convert("RGB"))).all()


@pytest.mark.parametrize("name", ODD)
def test_odd_pictures_are_resized_as_transformers_does(shared: Path, gpu: NativeDevice, name: str) -> None:
    expected = pictures(shared)[name]
    pixels = read_image(shared / "media-odd" / expected.get("decoded", name))
    size = fitted(pixels.width, pixels.height, 280)
    assert list(size) == expected["output_wh"]
    assert size[0] // 48 * (size[1] // 48) == expected["soft_tokens"]
    check_pixels(shown(gpu, pixels, *size), shared / "media-odd" / expected["resized"])


@pytest.mark.parametrize("name", ["img_500x300", "img_1600x900"])
def test_photographs_are_resized_as_transformers_does(shared: Path, gpu: NativeDevice, name: str) -> None:
    pixels = image(shared, name)
    got = shown(gpu, pixels, *fitted(pixels.width, pixels.height, 280))
    check_pixels(got, shared / "media" / f"{name}.hf_resized.png")


def test_all_the_odd_pictures_are_here(shared: Path) -> None:
    assert sorted(pictures(shared)) == sorted(ODD)


@pytest.mark.parametrize("size", [(48, 96), (480, 240)])
def test_bands_show_what_the_whole_would(gpu: NativeDevice, size: tuple[int, int]) -> None:
    pixels = noise(np.random.default_rng(5), 120, 200)
    whole = shown(gpu, pixels, *size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "BAND", 4 * 480 * 24)
        patch.setattr(picture, "GRID_ROWS", 3)
        assert len(bands(pixels, *size)) > 2
        assert (shown(gpu, pixels, *size) == whole).all()


def test_a_band_needs_few_rows_and_never_none() -> None:
    for before, size in ((1, 48), (3000, 48), (48, 3000), (13, 13)):
        for begin in (0, size // 2, size - 1):
            first, last = needed(before, size, begin, begin + 1)
            assert 0 <= first < last <= before
            assert last - first <= 4 * max(before / size, 1) + 6


def test_a_row_too_long_for_a_binding_is_refused(gpu: NativeDevice) -> None:
    limits = replace(gpu.limits, binding=1 << 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "limits", limits)
        with pytest.raises(ModelError, match="too long for this GPU"):
            resized(gpu, noise(np.random.default_rng(6), 5000, 9), 48, 48)
    assert fitted(5000, 9, 280) == (13440, 48)


# -- sizes


def test_the_size_rule_is_transformers(shared: Path) -> None:
    for width, height, *expected, tokens in json.loads((shared / "media-odd" / "expected.json").read_text())[
        "size_rule"
    ]:
        assert list(fitted(width, height, 280)) == expected
        assert expected[0] * expected[1] == tokens * 48 * 48


@pytest.mark.parametrize("budget", BUDGETS)
def test_no_image_takes_more_than_its_budget(budget: int) -> None:
    rng = np.random.default_rng(budget)
    for _ in range(300):
        width, height = (int(2 ** rng.uniform(0, 16)) for _ in range(2))
        across, down = fitted(width, height, budget)
        assert across % 48 == down % 48 == 0 and min(across, down) >= 48
        assert across * down <= budget * 48 * 48


def test_other_budgets_and_empty_images_are_refused(towers: Callable[[str], Vision]) -> None:
    vision = towers("mmproj-tiny-e2b-F16")
    with pytest.raises(ModelError, match="use one of 70, 140, 280, 560, 1120"):
        vision.grid(100, 100, 100)
    with pytest.raises(ModelError, match="is empty"):
        vision.grid(0, 100)


def test_an_image_longer_than_the_position_table_is_refused(gpu: NativeDevice, towers: Callable[[str], Vision]) -> None:
    vision = towers("mmproj-tiny-e2b-F16")  # knows 128 places
    before = gpu.allocated
    with pytest.raises(ModelError, match="840 patches long, but this model has only 128 positions"):
        run(vision.encode(noise(np.random.default_rng(0), 3000, 2)))
    assert vision.grid(2540, 100, 70) == (42, 1)
    with pytest.raises(ModelError, match="129 patches long"):
        vision.grid(2650, 100, 70)
    assert gpu.allocated == before


# -- memory


def test_only_the_tokens_stay_and_free_takes_the_weights(shared: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    seen: list[int] = []
    gguf = Gguf.open(shared / "models" / "mmproj-tiny-e2b-F16.gguf")
    vision = run(load_vision(Ledger(gpu), gguf, seen.append))
    assert gpu.allocated == before + vision.nbytes
    assert sum(seen) > 1_000_000
    rows = run(vision.encode(noise(np.random.default_rng(1), 100, 50), 70))
    assert gpu.allocated == before + vision.nbytes + rows.size
    gpu.free(rows)
    vision.free()
    assert gpu.allocated == before
    assert vision.nbytes == 0


@pytest.mark.parametrize("file", ["mmproj-tiny-e2b-F16", "mmproj-tiny-12b-F16"])
def test_a_gpu_that_runs_out_of_memory_keeps_nothing(
    gpu: NativeDevice, towers: Callable[[str], Vision], file: str
) -> None:
    vision, pixels = towers(file), noise(np.random.default_rng(2), 96, 48)
    gpu.free(run(vision.encode(pixels, 70)))
    before, make, left = gpu.allocated, gpu.buffer, 0

    def stingy(size: int, label: str) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OutOfMemory(f"no room for {label}.")
        return make(size, label)

    failures = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "buffer", stingy)
        for count in (0, 1, 2, 3, 5, 8, 9, 14):
            left = count
            try:
                gpu.free(run(vision.encode(pixels, 70)))
            except OutOfMemory:
                failures += 1
    assert failures >= 6
    assert gpu.allocated == before


# -- files


@pytest.fixture(scope="module")
def header(shared: Path) -> Opener:
    """A file's metadata and tensor table, free to be altered."""

    def copy(name: str) -> Gguf:
        file = Gguf.open(shared / "models" / f"{name}.gguf")
        return Gguf(file.source, file.version, dict(file.metadata), dict(file.tensors))

    return copy


def refused(gguf: Gguf) -> str:
    with pytest.raises(ModelError) as caught:
        read_vision(gguf)
    message = str(caught.value)
    assert message.startswith(f"{gguf.source.name}: ") and message.endswith(".")
    return message


def test_a_file_says_whether_it_has_eyes(header: Opener, gpu: NativeDevice) -> None:
    assert has_vision(header("mmproj-tiny-12b-F16")) and has_vision(header("tiny-e2b-ollama"))
    blind = header("tiny-e2b-F16")
    assert not has_vision(blind)
    with pytest.raises(ModelError, match="no vision tower in this file"):
        run(load_vision(Ledger(gpu), blind))


@pytest.mark.parametrize("name", ["mmproj-tiny-e2b-F16", "mmproj-tiny-31b-F16", "mmproj-tiny-12b-F16"])
def test_every_tensor_is_checked(header: Opener, name: str) -> None:
    config, tensors = read_vision(header(name))
    for tensor in tensors:
        if tensor == "v.patch_embd.weight" or tensor.startswith("v.blk.1"):
            continue
        gguf = header(name)
        gguf.tensors[tensor] = replace(gguf.tensors[tensor], shape=(*gguf.tensors[tensor].shape, 2))
        assert tensor in refused(gguf)
        gguf = header(name)
        del gguf.tensors[tensor]
        optional = tensor.endswith(("_min", "_max")) or tensor.startswith("v.std")
        if optional:
            read_vision(gguf)
        elif tensor == "v.patch_norm.1.weight":  # without it the file looks like the other family
            refused(gguf)
        else:
            assert tensor in refused(gguf)
    assert config.width == 256


def test_shapes_that_cannot_be_are_refused(header: Opener) -> None:
    for key, value, complaint in (
        ("block_count", 0, "block_count is 0"),
        ("block_count", 5, "v.blk.3.attn_q.weight"),
        ("block_count", None, "block_count is missing"),
        ("attention.head_count", 3, "128 wide with 3 heads"),
        ("attention.head_count", 32, "128 wide with 32 heads"),
        ("attention.head_count", "2", "must be a whole number"),
        ("embedding_length", 120, "needs a multiple of 32"),
        ("embedding_length", 256, "has shape"),
        ("feed_forward_length", 1 << 40, "it must be 1 to"),
        ("patch_size", 14, "patch_size of the vision tower is not 16"),
        ("projector.scale_factor", 2, "scale_factor of the vision tower is not 3"),
        ("projector_type", "gemma3", "another model's projector"),
    ):
        gguf = header("mmproj-tiny-e2b-F16")
        gguf.metadata[f"clip.vision.{key}"] = value
        if value is None:
            del gguf.metadata[f"clip.vision.{key}"]
        assert complaint in refused(gguf)


def test_a_damaged_tower_leaves_nothing_on_the_gpu(header: Opener, gpu: NativeDevice) -> None:
    gguf, before = header("mmproj-tiny-e2b-F16"), gpu.allocated
    gguf.tensors["v.blk.2.ffn_post_norm.weight"] = replace(
        gguf.tensors["v.blk.2.ffn_post_norm.weight"], offset=gguf.tensors["v.patch_embd.weight"].offset, type="BF16"
    )
    source = gguf.source

    class Damaged(NativeSource):
        name, size, first_read, close = source.name, source.size, source.first_read, source.close

        async def read(self, offset: int, length: int) -> bytes:
            data = bytes(await source.read(offset, length))
            return b"\xff" * length if offset == gguf.tensors["v.patch_embd.weight"].offset and length < 1000 else data

    gguf.source = Damaged()
    with pytest.raises(ModelError, match="NaN or Inf"):
        run(load_vision(Ledger(gpu), gguf))
    assert gpu.allocated == before
