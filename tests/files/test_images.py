"""Every image becomes upright, 8-bit, straight-alpha pixels, or one clear error."""

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from media_maker import png
from wgemma import Error, MediaError
from wgemma.files.images import MAX_PIXELS, Pixels, from_base64, image_size, read_image

RED, BLUE = (200, 30, 40), (10, 60, 220)


def pixels(picture: Pixels) -> np.ndarray:
    return np.frombuffer(picture.rgba, np.uint8).reshape(picture.height, picture.width, 4)


def on_white(picture: Pixels) -> np.ndarray:
    rgba = pixels(picture).astype(np.int32)
    alpha = rgba[:, :, 3:]
    return ((rgba[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def halves(mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    picture = Image.new("RGB", (24, 16), RED)
    picture.paste(BLUE, (12, 0, 24, 16))
    return picture.convert(mode)


def refusal(source: Any) -> str:
    with pytest.raises(MediaError) as caught:
        read_image(source)
    return str(caught.value)


GOOD = {
    "png": saved(halves(), "PNG"),
    "jpeg": saved(halves(), "JPEG", quality=95),
    "progressive": saved(halves(), "JPEG", quality=95, progressive=True),
    "gif": saved(halves(), "GIF"),
    "webp": saved(halves(), "WEBP"),
    "lossless webp": saved(halves(), "WEBP", lossless=True),
}


# -- goldens


def test_the_odd_pictures_are_what_they_should_be(shared: Path) -> None:
    folder = shared / "media-odd"
    expected = json.loads((folder / "expected.json").read_text())["images"]
    for name, golden in expected.items():
        picture = read_image(folder / name)
        assert [picture.width, picture.height] == golden["upright_wh"], name
        if name.endswith(".png"):
            digest = hashlib.sha256(on_white(picture).tobytes()).hexdigest()
            assert digest == golden["rgb_sha256_before_resize"], name


def test_a_jpeg_on_its_side_is_set_upright(shared: Path) -> None:
    folder = shared / "media-odd"
    ours = pixels(read_image(folder / "exif6_120x80.jpg"))[:, :, :3].astype(int)
    golden = pixels(read_image(folder / "exif6_120x80.upright.png"))[:, :, :3].astype(int)
    assert np.abs(ours - golden).max() <= 3


# -- what a picture may come in


@pytest.mark.parametrize("kind", GOOD)
def test_each_format_gives_the_picture(kind: str) -> None:
    picture = read_image(GOOD[kind])
    assert (picture.width, picture.height) == (24, 16)
    for x, colour in ((2, RED), (21, BLUE)):
        assert np.abs(pixels(picture)[8, x].astype(int) - (*colour, 255)).max() <= 6


def test_a_picture_is_the_same_from_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "halves.png"
    path.write_bytes(GOOD["png"])
    text = b64encode(GOOD["png"]).decode()
    sources = [
        str(path),
        path,
        GOOD["png"],
        bytearray(GOOD["png"]),
        memoryview(GOOD["png"]),
        text,
        "\n".join(text[i : i + 76] for i in range(0, len(text), 76)),
        text.rstrip("="),
        f"data:image/png;base64,{text}",
        f"DATA:;base64,{text}",
        halves(),
        np.asarray(halves()),
    ]
    expected = read_image(GOOD["png"])
    assert all(read_image(source) == expected for source in sources)
    assert read_image(expected) is expected


def test_base64_longer_than_any_path_is_read() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (80, 80, 3), np.uint8)
    data = saved(Image.fromarray(noise), "PNG")
    assert len(data) > 16_000
    for encode in (b64encode, urlsafe_b64encode):
        assert (pixels(read_image(encode(data).decode()))[:, :, :3] == noise).all()


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (4, 6, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_arrays_are_pictures(shape: tuple[int, ...], dtype: type) -> None:
    codes = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    array = codes if dtype is np.uint8 else (codes / 255).astype(dtype)
    result = pixels(read_image(array))
    assert result.shape == (4, 6, 4)
    if len(shape) == 2:
        codes = codes[:, :, None]
    assert (result[:, :, : max(codes.shape[2], 3)] == codes).all()
    assert codes.shape[2] == 4 or (result[:, :, 3] == 255).all()


def test_a_view_of_an_array_is_read_as_it_is_seen() -> None:
    array = np.random.default_rng(1).integers(0, 256, (8, 6, 3), np.uint8)
    assert (pixels(read_image(array[::-2, ::3]))[:, :, :3] == array[::-2, ::3]).all()


# -- alpha, depth and colour


@pytest.mark.parametrize(
    ("depth", "row", "clear", "greys", "alphas"),
    [
        (1, [0b01000000], 1, [0, 255], [255, 0]),
        (2, [0b01100000], 2, [85, 170], [255, 0]),
        (4, [0x5A], 5, [85, 170], [0, 255]),
        (8, [5, 6], 5, [5, 6], [0, 255]),
        (16, [0x12, 0x34, 0x12, 0xFF], 0x1234, [0x12, 0x12], [0, 255]),
    ],
)
def test_grey_of_any_depth_may_have_a_transparent_shade(
    depth: int, row: list[int], clear: int, greys: list[int], alphas: list[int]
) -> None:
    opaque = pixels(read_image(png(2, 1, [bytes(row)], depth=depth)))
    assert opaque[0].tolist() == [[grey] * 3 + [255] for grey in greys]
    keyed = png(2, 1, [bytes(row)], depth=depth, extra=[(b"tRNS", struct.pack(">H", clear))])
    assert pixels(read_image(keyed))[0].tolist() == [[g] * 3 + [a] for g, a in zip(greys, alphas, strict=True)]


@pytest.mark.parametrize(("depth", "pack"), [(8, ">6B"), (16, ">6H")])
def test_colour_may_have_a_transparent_shade(depth: int, pack: str) -> None:
    unit = 1 if depth == 8 else 257
    row = struct.pack(pack, *(unit * value for value in (1, 2, 3, 1, 2, 4)))
    key = struct.pack(">3H", unit * 1, unit * 2, unit * 3)
    picture = read_image(png(2, 1, [row], depth=depth, colour=2, extra=[(b"tRNS", key)]))
    assert pixels(picture)[0].tolist() == [[1, 2, 3, 0], [1, 2, 4, 255]]


def test_a_palette_keeps_each_entrys_alpha() -> None:
    palette = [(b"PLTE", bytes([1, 2, 3, 4, 5, 6, 7, 8, 9])), (b"tRNS", bytes([0, 128]))]
    picture = read_image(png(3, 1, [bytes([0, 1, 2])], colour=3, extra=palette))
    assert pixels(picture)[0].tolist() == [[1, 2, 3, 0], [4, 5, 6, 128], [7, 8, 9, 255]]


@pytest.mark.parametrize("depth", [8, 16])
def test_alpha_is_straight(depth: int) -> None:
    pack, unit = (">4B", 1) if depth == 8 else (">4H", 256)
    rgba = png(1, 1, [struct.pack(pack, *(unit * v for v in (200, 100, 50, 3)))], depth=depth, colour=6)
    grey = png(1, 1, [struct.pack(pack, *(unit * v for v in (200, 3, 0, 0)))[: depth // 4]], depth=depth, colour=4)
    assert pixels(read_image(rgba)).tolist() == [[[200, 100, 50, 3]]]
    assert pixels(read_image(grey)).tolist() == [[[200, 200, 200, 3]]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"])
def test_every_mode_of_pillow_is_read(mode: str) -> None:
    white = Image.new("RGB", (2, 1), "white").convert("L" if mode == "1" else "RGBA" if mode == "RGBa" else "RGB")
    result = pixels(read_image(white.convert(mode)))
    assert (result[:, :, :3] >= 253).all() and (result[:, :, 3] == 255).all()


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B"])
def test_sixteen_bit_grey_in_either_order_keeps_its_upper_byte(mode: str) -> None:
    values = np.array([[0, 0x1234, 0xFFFF]], ">u2" if mode == "I;16B" else "<u2")
    picture = Image.frombytes(mode, (3, 1), values.tobytes())
    assert pixels(read_image(picture))[0, :, 0].tolist() == [0, 0x12, 0xFF]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_mode_without_a_white_is_refused(mode: str) -> None:
    assert "Convert it to RGB" in refusal(Image.new(mode, (2, 2)))


def test_a_cmyk_jpeg_is_not_inverted() -> None:
    picture = read_image(saved(halves("CMYK"), "JPEG", quality=95))
    assert np.abs(pixels(picture)[8, 2].astype(int) - (*RED, 255)).max() <= 8


# -- upright


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_all_eight_orientations_end_upright(orientation: int, kind: str) -> None:
    upright = np.kron(np.arange(1, 7).reshape(2, 3), np.ones((8, 8))).astype(np.uint8) * 40
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright[::-1, ::-1].T,
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = Image.fromarray(np.ascontiguousarray(stored)).convert("RGB")
    result = pixels(read_image(saved(picture, kind, exif=exif, **options)))[:, :, 0]
    assert result.shape == upright.shape
    assert np.abs(result.astype(int) - upright).max() <= (4 if kind == "JPEG" else 0)


def test_a_pillow_image_is_set_upright_and_not_changed() -> None:
    picture = halves()
    picture.getexif()[0x0112] = 6
    before = picture.tobytes()
    assert (read_image(picture).width, read_image(picture).height) == (16, 24)
    assert picture.size == (24, 16) and picture.tobytes() == before


@pytest.mark.parametrize("value", [b"II*\0\xff\xff\xff\xff" + b"z" * 5000, b"", b"MM", b"II*\0\x08\0\0\0\xff\xff"])
def test_broken_exif_is_passed_over(value: bytes) -> None:
    assert read_image(png(2, 1, [b"ab"], extra=[(b"eXIf", value)])).width == 2


# -- the first frame


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_seen(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, lossless=True)
    assert (pixels(read_image(data)) == (255, 0, 0, 255)).all()


def test_a_gif_keeps_its_transparent_index() -> None:
    head = b"GIF89a\x04\0\x04\0\x80\0\0" + bytes([1, 2, 3, 4, 5, 6])
    frame = b",\1\0\1\0\1\0\1\0\0\2\2D\1\0;"  # one pixel of index 0 at (1, 1)
    picture = pixels(read_image(head + b"!\xf9\4\1\0\0\1\0" + frame))
    assert picture[1, 1].tolist() == [1, 2, 3, 255]
    assert picture[:, :, 3].sum() == 255


# -- hostile files


@pytest.mark.parametrize("kind", GOOD)
def test_a_cut_file_is_refused_or_whole(kind: str) -> None:
    data = GOOD[kind]
    whole = read_image(data)
    refused = 0
    for length in range(0, len(data), 1 if len(data) < 400 else 3):
        try:
            assert read_image(data[:length]) == whole, length
        except MediaError:
            refused += 1
    assert refused > 0
    assert "truncated or damaged" in refusal(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", r"empty \(0 bytes\)"),
        (b"This is no picture at all.\n", "Use a PNG, JPEG, WebP or GIF"),
        (b"%PDF-1.7", "is a PDF file. Use a PNG"),
        (b"\0\0\0\x18ftypheic", "is a HEIC file. Use a PNG"),
        (b"<svg xmlns=", "is a SVG file. Use a PNG"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "Use a PNG"),
        (b"\x89PNG\r\n\x1a\n", "truncated or damaged"),
        (b"\xff\xd8\xff", "truncated or damaged"),
        (b"GIF89a", "truncated or damaged"),
        (b"RIFF\x24\0\0\0WEBP", "truncated or damaged"),
        (png(0, 5, []), "damaged"),
        (png(8_000, 8_000, [bytes(8_000)]), "bytes cannot hold its pixels"),
        (png(2, 1, [b"ab"], extra=[(b"zTXt", b"k\0\0" + zlib.compress(bytes(50 << 20)))]), "without metadata"),
        (png(2, 1, [b"ab"], extra=[(b"iCCP", b"k\0\0" + zlib.compress(bytes(50 << 20)))]), "without metadata"),
        (png(2, 1, [b"ab"], extra=[(b"tEXt", b"k\0" + b"x" * (70 << 20))]), "without metadata"),
        (GOOD["jpeg"][:3] + b"\xe0\0\2" + b"\0" * 10**6 + GOOD["jpeg"][2:], "too many small pieces"),
        (b"GIF89a\x04\0\x04\0\0\0\0" + b"!\xfe" + b"\1x" * 10**6 + b"\0;", "too many small pieces"),
        (GOOD["jpeg"][:2] + b"\xff\xff" * 10**6 + GOOD["jpeg"][2:], "too many small pieces"),
    ],
)
def test_one_sentence_says_what_is_wrong(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(MediaError, match=sentence) as caught:
            read_image(source)
        message = str(caught.value)
        assert message.endswith(".") and "\n" not in message and len(message) < 300
        assert source is data or message.startswith(str(path))


@pytest.mark.parametrize("piece", [b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"ICC_PROFILE\0\1\1"])
def test_mountains_of_metadata_take_no_time(piece: bytes) -> None:
    segment = piece.ljust(65_533, b"a")
    file = GOOD["jpeg"][:2] + (b"\xff\xe1" + b"\xff\xff" + segment) * 500 + GOOD["jpeg"][2:]
    if piece.startswith(b"Exif"):
        assert "EXIF data in too many pieces" in refusal(file)
    else:
        assert read_image(file) == read_image(GOOD["jpeg"])


def test_text_of_some_megabytes_is_ordinary() -> None:
    assert read_image(png(2, 1, [b"ab"], extra=[(b"tEXt", b"workflow\0" + b"x" * (4 << 20))])).width == 2


LARGE = {
    "png": png(50_000, 50_000, [], colour=2),
    "largest png": png(2**31 - 1, 2**31 - 1, [], colour=2),
    "png just too large": png(10_000, MAX_PIXELS // 10_000 + 1, []),
    "gif": b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;",
    "gif frame": b"GIF89a\4\0\4\0\x80\0\0" + bytes(6) + b",\xff\xff\xff\xff\xff\xff\xff\xff\0\2\2D\1\0;",
    "webp canvas": b"RIFF\x30\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\x3f\0" * 2 + bytes(50),
    "lossless webp": b"RIFF\x30\0\0\0WEBPVP8L\x40\0\0\0\x2f\xff\xff\xff\x0f" + bytes(50),
    "jpeg": GOOD["jpeg"].replace(struct.pack(">HH", 16, 24), b"\xff\xff\xff\xff", 1),
}


@pytest.mark.parametrize("kind", LARGE)
def test_too_many_pixels_are_refused(kind: str) -> None:
    assert ("16384×16384, 268 million" if "webp" in kind else "million") in refusal(LARGE[kind])


def test_headers_alone_cost_no_memory(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    for i, data in enumerate(LARGE.values()):
        (tmp_path / f"{i}.bin").write_bytes(data)
    script = """
import io, resource, sys
from pathlib import Path
from PIL import Image
from wgemma import MediaError
from wgemma.files.images import read_image
for kind in ("PNG", "JPEG", "GIF", "WEBP"):
    Image.new("RGB", (8, 8)).save(file := io.BytesIO(), kind)
    read_image(file.getvalue())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_image(path)
    except MediaError:
        continue
    sys.exit(f"{path} was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 * 1024  # KiB


@pytest.mark.parametrize("kind", GOOD)
def test_the_size_is_in_the_header(kind: str) -> None:
    assert image_size(GOOD[kind]) == (24, 16)
    assert image_size(GOOD[kind][:-10]) == (24, 16)  # nothing is decoded


def test_the_size_of_what_is_no_file_is_its_own() -> None:
    assert image_size(halves()) == image_size(np.zeros((16, 24, 3), np.uint8)) == (24, 16)
    assert image_size(Pixels(24, 16, bytes(4 * 24 * 16))) == (24, 16)
    with pytest.raises(MediaError, match="121 million pixels"):
        image_size(np.broadcast_to(np.uint8(0), (11_000, 11_000)))


def test_a_side_too_long_is_refused() -> None:
    for source in (np.zeros((1, 65_536), np.uint8), Pixels(1, 65_536, bytes(4 * 65_536))):
        assert "the limit for a side is 65535 pixels" in refusal(source)
        with pytest.raises(MediaError, match="the limit for a side is 65535 pixels"):
            image_size(source)


def test_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)
    assert "is a folder" in refusal(str(tmp_path))
    assert "nowhere.png: no such file" in refusal(tmp_path / "nowhere.png")
    assert "nowhere.png: no such file" in refusal(str(tmp_path / "nowhere.png"))
    assert "not a regular file" in refusal("/dev/null" if Path("/dev/null").exists() else tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("cat.png", "cat.png: no such file."),
        ("nothinghere", "no such file, and not a picture in base64 either"),
        (b64encode(b"plain text, not a picture").decode(), "no such file, and not a picture in base64 either"),
        (b64encode(b"plain text" * 500).decode(), "Use a PNG"),
        ("?" * 5000, "neither a path nor valid base64"),
        ("ж" * 5000, "neither a path nor valid base64"),
        ("cat\0.png", "no such file"),
        ("~nobody-of-that-name/cat.png", "no such file"),
        ("https://example.org/cat.png", "Download it and pass its path"),
        ("data:image/png,abc", "must have the form data:…;base64"),
        ("data:image/png;base64", "must have the form data:…;base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,%%%%", "nor valid base64"),
        ("data:image/png;base64," + b64encode(GOOD["png"][:60]).decode(), "truncated or damaged"),
    ],
)
def test_a_text_that_is_no_picture_says_why(text: str, sentence: str) -> None:
    message = refusal(text)
    assert sentence in message
    assert len(message) < 200


def test_base64_from_the_network_never_names_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(GOOD["png"])
    with pytest.raises(MediaError):
        from_base64(str(path), "picture")
    assert from_base64(b64encode(GOOD["png"]).decode(), "picture") == GOOD["png"]


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.full((2, 2), np.nan), "from 0 to 1"),
        (np.array([[0.0, np.inf]]), "from 0 to 1"),
        (np.full((2, 2, 3), 255.0), "from 0 to 1"),
        (np.full((2, 2, 3), -1.0), "from 0 to 1"),
        (np.zeros((2, 2), np.int64), "array of int64"),
        (np.zeros((2, 2), np.uint16), "array of uint16"),
        (np.zeros((2, 2), bool), "array of bool"),
        (np.zeros((2, 2), complex), "array of complex128"),
        (np.zeros((2, 2), object), "array of object"),
        (np.zeros((3, 8, 8), np.uint8), "array of 3×8×8"),
        (np.zeros((1, 8, 8, 3), np.uint8), "array of 1×8×8×3"),
        (np.zeros(8, np.uint8), "array of 8"),
        (np.uint8(5) * np.ones((), np.uint8), "array of"),
        (np.zeros((0, 8, 3), np.uint8), "no pixels"),
        (np.broadcast_to(np.uint8(0), (50_000, 50_000)), "million pixels"),
    ],
)
def test_an_array_that_is_no_picture_says_why(array: np.ndarray, sentence: str) -> None:
    assert sentence in refusal(np.asarray(array))


@pytest.mark.parametrize("thing", [None, 5, ["cat.png"], {"image": 1}, object()])
def test_other_things_are_no_pictures(thing: object) -> None:
    assert "is not a picture. Pass a path" in refusal(thing)


def test_pixels_must_fit_their_size() -> None:
    for width, height, data in ((2, 2, b"abc"), (0, 0, b""), (-1, -1, bytes(4))):
        with pytest.raises(MediaError, match="four for each pixel"):
            Pixels(width, height, data)


def test_pillows_warnings_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # 24×16 lies between this, where Pillow warns, and its double
    exif = png(2, 1, [b"ab"], extra=[(b"eXIf", b"II*\0\x08\0\0\0\x05\0\x12\x01")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Image.DecompressionBombWarning):
            Image.open(io.BytesIO(GOOD["png"]))
        assert read_image(GOOD["png"]).width == 24
        assert read_image(exif).width == 2
        assert warnings.filters[0][0] == "error"


def test_many_threads_read_at_once() -> None:
    expected = read_image(GOOD["png"])
    results: list[bool] = []

    def work() -> None:
        results.extend(read_image(GOOD["png"]) == expected for _ in range(20))

    filters = list(warnings.filters)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(results)
    assert warnings.filters == filters


def test_without_pillow_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" in refusal(GOOD["png"])


def test_media_errors_are_wgemmas() -> None:
    assert issubclass(MediaError, Error)


# -- any bytes


@given(st.binary(max_size=300), st.sampled_from([b"", *(data[:16] for data in GOOD.values())]))
def test_random_bytes_are_refused(tail: bytes, head: bytes) -> None:
    refusal(head + tail)


def test_a_huge_file_is_refused_by_its_first_bytes_or_its_size(tmp_path: Path) -> None:
    for head, reason in ((b"nonsense", "not a picture wgemma can read"), (GOOD["png"], "the limit is 2048")):
        path = tmp_path / "huge.png"
        path.write_bytes(head)
        os.truncate(path, 100 << 30)
        with pytest.raises(MediaError, match=reason):
            read_image(path)
