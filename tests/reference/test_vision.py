"""The oracle of the vision towers agrees with transformers; the GPU is then held to the same goldens."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels, read_image
from wgemma.model.vision_config import fitted
from wgemma.reference.vision import VisionReference, cubic, layer_norm, on_white, pool, resample, resize

UNTOUCHED = ("img_384x336", "img_336x480")  # made without a resize, which is what the smallest budget gives
GOLDENS = [
    ("tiny-e2b", "mmproj-tiny-e2b-F16", (*UNTOUCHED, "img_500x300", "img_1600x900")),
    ("tiny-e2b-ollama", "tiny-e2b-ollama", ("img_384x336",)),
    ("tiny-31b", "mmproj-tiny-31b-F16", UNTOUCHED),
    ("tiny-26b-a4b", "mmproj-tiny-26b-a4b-F16", UNTOUCHED),
    ("tiny-12b", "mmproj-tiny-12b-F16", ("img_384x336",)),
]


@pytest.mark.parametrize(("folder", "file", "names"), GOLDENS)
def test_an_image_becomes_the_tokens_that_transformers_makes(
    shared: Path, folder: str, file: str, names: tuple[str, ...]
) -> None:
    tower = VisionReference(Gguf.open(shared / "models" / f"{file}.gguf"))
    for name in names:
        got = tower.encode(read_image(shared / "media" / f"{name}.png"), 70 if name in UNTOUCHED else 280)
        expected = np.load(shared / folder / f"vision_{name}.embd.npy")
        error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
        assert error < (1e-6 if name in UNTOUCHED else 5e-4)


@pytest.mark.parametrize("name", ["alpha_331x207.png", "palette_trns_97x61.png", "wide_3000x2.png"])
def test_pictures_are_resized_as_transformers_does(shared: Path, name: str) -> None:
    expected = json.loads((shared / "media-odd" / "expected.json").read_text())["images"][name]
    pixels = read_image(shared / "media-odd" / name)
    got = resize(on_white(pixels), *fitted(pixels.width, pixels.height, 280))
    assert (got == np.asarray(Image.open(shared / "media-odd" / expected["resized"]).convert("RGB"))).all()


def test_a_translucent_picture_becomes_the_unified_tokens_of_transformers_own_pixels(shared: Path) -> None:
    """The unified model's flat patches magnify every rounding of a resize. The golden's pixels need none."""
    tower, folder = VisionReference(Gguf.open(shared / "models" / "mmproj-tiny-12b-F16.gguf")), shared / "media-odd"
    golden = tower.encode(read_image(folder / "alpha_331x207.resized.png"))
    assert (tower.encode(read_image(folder / "alpha_331x207.png")) == golden).all()


def test_transparency_is_laid_on_white() -> None:
    pixels = Pixels(3, 1, bytes([10, 20, 30, 255, 10, 20, 30, 0, 0, 100, 255, 128]))
    assert on_white(pixels).tolist() == [[[10, 20, 30], [255, 255, 255], [127, 177, 255]]]


def test_every_shade_and_alpha_is_laid_on_white_as_pillow_does() -> None:
    """Pillow's compositing is what transformers uses."""
    alpha, shade = np.mgrid[:256, :256].astype(np.uint8)
    rgba = np.stack([shade, shade, shade, alpha], axis=-1)
    ground = Image.new("RGBA", (256, 256), (255, 255, 255, 255))
    golden = np.asarray(Image.alpha_composite(ground, Image.fromarray(rgba, "RGBA")).convert("RGB"))
    assert (on_white(Pixels(256, 256, rgba.tobytes())) == golden).all()


def test_a_resize_keeps_a_plain_colour_and_an_unchanged_size() -> None:
    plain = np.full((5, 7, 3), 77, dtype=np.uint8)
    assert (resize(plain, 48, 96) == 77).all()
    noise = np.random.default_rng(0).integers(0, 256, (9, 4, 3), dtype=np.uint8)
    assert (resample(noise, 9) == noise).all()
    assert cubic(np.array([0.0, 0.5, -1.0, 1.5, 2.0])).tolist() == [1.0, 0.5625, 0.0, -0.0625, 0.0]


def test_a_token_is_the_mean_of_its_nine_patches() -> None:
    h = np.arange(6 * 3, dtype=np.float32)[:, None].repeat(4, axis=1)  # six across, three down
    assert pool(h, 6, 3)[:, 0].tolist() == [14.0, 20.0]  # √4 · 7 and √4 · 10


def test_a_layer_norm_has_mean_and_deviation_of_its_weights() -> None:
    x = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32) * 5 + 2
    y = layer_norm(x, np.float32(3) * np.ones(512, dtype=np.float32), np.ones(512, dtype=np.float32), 1e-5)
    assert np.allclose(y.mean(axis=1), 1, atol=1e-5)
    assert np.allclose(y.std(axis=1), 3, atol=1e-4)
