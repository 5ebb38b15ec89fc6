"""Images as the vision tower wants them (upright, 8 bit, straight alpha), from any file, base64 text or array.

Pillow decodes PNG, JPEG, WebP and GIF (the first frame). A page has no Pillow: there the browser decodes. Files are
treated as hostile: the size is checked by the header before decoding, and truncated files are refused. Anything wrong
raises a `MediaError`.
"""

import binascii
import os
import re
import sys
import threading
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from wgemma.checks import kind_of
from wgemma.errors import MediaError, SourceError
from wgemma.files.reading import ViewFile
from wgemma.files.sources import FileSource, is_url
from wgemma.sync import run

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_PIXELS = 100_000_000  # at 8 to 20 bytes each while decoding
MAX_SIDE = 65_535  # as in JPEG and GIF
MAX_BYTES = 256 << 20
MAX_FILE = 2 << 30  # of any kind, sounds included
_HEAD = 4096

# Anything that names or holds the bytes of a file.
FileLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview"
ImageSource: TypeAlias = "Pixels | FileLike | Image | np.ndarray[Any, Any]"

# EXIF orientation → the member of Pillow's Transpose that undoes it.
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ORIENTATION = 0x0112
_MAX_EXIF = 64  # blocks; Pillow joins them in quadratic time
_STRIP = 1 << 20  # pixels converted to RGBA at a time
_SHORT = 512  # longer text is base64, not a path
_alone = threading.Lock()  # Python's warning filters are global to the process


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image: `rgba` is [height, width, 4], top row first, alpha not premultiplied."""

    width: int
    height: int
    rgba: bytes

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or len(self.rgba) != 4 * self.width * self.height:
            raise MediaError(
                f"{len(self.rgba)} bytes are not a picture of {self.width}×{self.height}: pass four for each pixel."
            )

    @property
    def nbytes(self) -> int:
        return 4 * self.width * self.height

    @property
    def key(self) -> bytes | str:
        """Identifies the image among others of its size."""
        return self.rgba

    def rows(self, first: int, last: int) -> Any:
        """Rows first … last − 1, in a form a device's `write` takes."""
        row_bytes = 4 * self.width
        return memoryview(self.rgba)[first * row_bytes : last * row_bytes]


def read_image(source: ImageSource) -> Pixels:
    """The image from a path, a file's bytes, base64 text, a data: URL, a Pillow image or a NumPy array."""
    if isinstance(source, Pixels):
        _check_size("the picture", source.width, source.height)
        return source
    if is_a(source, "numpy", "ndarray"):
        return _from_array(source)
    if is_a(source, "PIL.Image", "Image"):
        with _pillow("the picture"):
            return _pixels("the picture", source)
    name, data = contents(source, "picture", image_format)
    return _decode(name, data)


def image_size(source: ImageSource) -> tuple[int, int]:
    """Width and height of what `read_image` takes, from its header: nothing is decoded."""
    if isinstance(source, Pixels):
        size = source.width, source.height
    elif is_a(source, "numpy", "ndarray"):
        size = _array_size(source)
    elif is_a(source, "PIL.Image", "Image"):
        size = source.size
    else:
        name, data = contents(source, "picture", image_format)
        if check_picture(name, data) == "WEBP":
            size = _webp_size(data)
        else:
            with _opened(name, data) as picture:
                size = picture.size
    _check_size("the picture", *size)
    return size


def image_format(data: bytes | memoryview) -> str | None:
    """PNG, JPEG, GIF or WEBP by the first bytes; None for everything else."""
    head = bytes(data[:16])
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    return "WEBP" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


# -- where media come from


def is_a(thing: object, module: str, name: str) -> TypeGuard[Any]:
    """isinstance without importing: if nobody imported the module, `thing` cannot be one of its objects."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def contents(
    source: object, kind: str, recognise: Callable[[bytes | memoryview], str | None]
) -> tuple[str, bytes | memoryview]:
    """A name for `source` in error messages, and its bytes. A string is a data: URL, a path, or base64 of a `kind`."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"the {kind}", source if isinstance(source, bytes) else memoryview(source).cast("B")
    if not isinstance(source, str | os.PathLike):
        raise MediaError(f"{kind_of(source)} is not a {kind}. Pass a path, a file's bytes, or an array.")
    if not isinstance(source, str):
        path = os.fsdecode(source)
        return path, _file(path, recognise)
    if not source.strip():
        raise MediaError(f"the text given for a {kind} is empty. Pass a path, or the file in base64.")
    if source[:5].lower() == "data:":
        return f"the {kind}", from_base64(source, kind)
    if is_url(source):
        raise MediaError(
            f"{_shown(source)}: wgemma does not fetch a {kind} from the web. Download it and pass its path."
        )
    if _exists(source):
        return source, _file(source, recognise)
    try:
        data = from_base64(source, kind)
    except MediaError:
        if len(source) > _SHORT:
            raise
        raise MediaError(f"{_shown(source)}: no such file.") from None
    if recognise(data) or len(source) > _SHORT:
        return f"the {kind}", data
    raise MediaError(f"{_shown(source)}: no such file, and not a {kind} in base64 either.")


def from_base64(text: str, kind: str) -> bytes:
    """The bytes of base64 text or a base64 data: URL. Never reads a path, so it is safe for text from the network."""
    if text[:5].lower() == "data:":
        header, comma, text = text.partition(",")
        if not comma or not header.lower().rstrip().endswith(";base64"):
            raise MediaError(f"the data: URL of a {kind} must have the form data:…;base64,… with the file in base64.")
    text = "".join(text.split()).translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
    try:
        data = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: non-ASCII characters
        raise MediaError(f"the text given for a {kind} is neither a path nor valid base64: {_shown(text)}.") from None
    if not data:
        raise MediaError(f"the base64 text of a {kind} is empty.")
    return data


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # name too long, folder not readable, unknown user after "~", NUL
        return False


def _file(name: str, recognise: Callable[[bytes | memoryview], str | None]) -> bytes | memoryview:
    """The file's bytes; only the first of them if these are not the right kind, so refusing a file costs nothing."""
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise MediaError(f"{name} is a folder; name a file in it.")
        source = FileSource(path)
        head = run(source.read(0, min(source.size, _HEAD)))
        if recognise(head) is None:
            return head
        if source.size > MAX_FILE:
            raise MediaError(f"{name} has {source.size >> 20} MiB; the limit is {MAX_FILE >> 20}.")
        return run(source.read(0, source.size))
    except OSError as error:
        raise MediaError(f"{_shown(name)} cannot be read: {error.strerror or error}.") from None
    except (SourceError, RuntimeError, ValueError) as error:
        raise MediaError(str(error)) from None


def _shown(text: str) -> str:
    """A source for an error message; a long one keeps both ends, because a path ends in its name."""
    text = text if len(text) <= 80 else text[:40] + "…" + text[-39:]
    return text if text.isprintable() else repr(text)


# -- files


def check_picture(name: str, data: bytes | memoryview) -> str:
    """The format of an image file; refuses it by its first bytes and size, before the rest is read."""
    kind = image_format(data)
    if not data:
        raise MediaError(f"{name} is empty (0 bytes).")
    if kind is None:
        what = f"a {other} file" if (other := _other_format(data)) else "not a picture wgemma can read"
        raise MediaError(f"{name} is {what}. Use a PNG, JPEG, WebP or GIF.")
    if len(data) > MAX_BYTES:
        raise MediaError(f"{name} has {len(data) >> 20} MiB; the limit is {MAX_BYTES >> 20}. Save it smaller.")
    return kind


def _decode(name: str, data: bytes | memoryview) -> Pixels:
    with _opened(name, data) as picture:
        return _pixels(name, picture, depth=data[24] if picture.format == "PNG" else 8)


@contextmanager
def _opened(name: str, data: bytes | memoryview) -> "Iterator[Image]":
    """A file whose header was read; a WebP is decoded already."""
    kind = check_picture(name, data)
    if kind == "WEBP":
        _check_size(name, *_webp_size(data))  # its decoder allocates the whole canvas on opening
    if kind == "PNG" and _png_needs(data) > len(data):  # Pillow would pad a forged one
        raise MediaError(f"{name} is truncated: {len(data)} bytes cannot hold its pixels. Save or download it again.")
    if sum(1 for _ in re.finditer(rb"Exif\0\0", data)) > _MAX_EXIF:
        raise MediaError(f"{name} has its EXIF data in too many pieces. Save it without metadata.")
    with _pillow(name):
        from PIL import Image

        file = _Patient(name, data, 1_000_000 if kind == "PNG" else 20_000)
        yield Image.open(file, formats=(kind,))  # type: ignore[arg-type]


class _Patient(ViewFile):
    """A file that allows a limited number of reads: Pillow would read a forged header byte by byte, for minutes."""

    def __init__(self, name: str, data: bytes | memoryview, reads: int) -> None:
        super().__init__(data)
        self._name = name
        self._reads_left = reads

    def read(self, size: int | None = -1) -> bytes:
        self._reads_left -= 1
        if self._reads_left < 0:
            raise MediaError(f"{self._name} has too many small pieces in its header. Save it without metadata.")
        return super().read(size)


def _other_format(data: bytes | memoryview) -> str | None:
    """The name of an unsupported format people commonly try."""
    head = bytes(data[:32])
    if head[4:8] == b"ftyp":
        return "HEIC" if head[8:10] in (b"he", b"mi", b"ms") else "AVIF" if head[8:11] == b"avi" else "video"
    signs = {b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"%PDF": "PDF", b"<svg": "SVG", b"\0\0\1\0": "ICO"}
    return next((name for sign, name in signs.items() if head.startswith(sign)), None)


def _png_needs(data: bytes | memoryview) -> int:
    """The fewest bytes that could hold the header's pixels: deflate expands a byte to at most 1032."""
    head = bytes(data[16:26]).ljust(10, b"\0")
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    bits = head[8] * {2: 3, 4: 2, 6: 4}.get(head[9], 1)
    return 0 if width * height > MAX_PIXELS else height * ((width * bits + 7) // 8) // 1032


def _webp_size(data: bytes | memoryview) -> tuple[int, int]:
    """Width and height from the first chunk; 0 if there is none, which the decoder refuses."""
    head = bytes(data[12:30])
    if len(head) < 18:
        return 0, 0
    if head[:4] == b"VP8X":
        return 1 + int.from_bytes(head[12:15], "little"), 1 + int.from_bytes(head[15:18], "little")
    if head[:4] == b"VP8L":
        bits = int.from_bytes(head[9:13], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[14:16], "little") & 0x3FFF, int.from_bytes(head[16:18], "little") & 0x3FFF


def _check_size(name: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise MediaError(
            f"{name} is {width}×{height}, {width * height / 1e6:.0f} million pixels; the limit is "
            f"{MAX_PIXELS // 10**6} million. Scale it down first."
        )
    if max(width, height) > MAX_SIDE:
        raise MediaError(f"{name} is {width}×{height}; the limit for a side is {MAX_SIDE} pixels. Cut it into pieces.")


@contextmanager
def _pillow(name: str) -> Iterator[None]:
    """Turns whatever Pillow raises into a `MediaError`, and suppresses its warnings."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MediaError("pictures need Pillow, which is not installed: pip install pillow.") from None
    try:
        with _alone, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MediaError:
        raise
    except Image.DecompressionBombError:
        raise MediaError(f"{name} has more than {MAX_PIXELS // 10**6} million pixels. Scale it down first.") from None
    except MemoryError:
        raise MediaError(f"there is not enough memory for {name}. Scale it down first.") from None
    except UnidentifiedImageError:  # its message is only an object's address
        raise MediaError(f"{name} is truncated or damaged in its header. Save or download it again.") from None
    except Exception as error:  # decoders raise almost anything for broken files
        reason = str(error).rstrip(".") or type(error).__name__
        if "MAX_TEXT" in reason:  # Pillow's limits for text and colour profiles in PNG
            raise MediaError(
                f"{name} has too much text or too large a colour profile. Save it without metadata."
            ) from None
        raise MediaError(f"{name} is truncated or damaged ({reason}). Save or download it again.") from None


# -- Pillow images


def _pixels(name: str, picture: "Image", depth: int = 8) -> Pixels:
    """Upright RGBA of any Pillow image; `depth` is the file's bit depth, in which PNG gives its transparent colour."""
    from PIL.Image import Transpose

    _check_size(name, *picture.size)
    if not all(picture.size):
        raise MediaError(f"{name} has no pixels ({picture.width}×{picture.height}).")
    picture.load()
    turn = _UPRIGHT.get(_orientation(picture))
    if turn is not None:
        picture = picture.transpose(Transpose[turn])
    rgba = BytesIO()  # returns its bytes without a copy
    rows = max(1, _STRIP // picture.width)
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        rgba.write(_rgba(name, strip, depth).tobytes())
    return Pixels(*picture.size, rgba.getvalue())


def _orientation(picture: "Image") -> int:
    """The EXIF orientation; broken EXIF is ignored."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _rgba(name: str, picture: "Image", depth: int) -> "Image":
    if picture.mode in ("I", "F"):
        raise MediaError(f"{name} has Pillow mode {picture.mode}, which has no defined white. Convert it to RGB first.")
    if picture.mode.startswith("I;16"):
        return _grey16(picture)
    if picture.mode in ("1", "L", "RGB") and isinstance(clear := picture.info.get("transparency"), int | tuple):
        return _keyed(picture, clear if isinstance(clear, tuple) else (clear,), depth)
    if picture.mode == "RGBA":
        return picture
    if picture.mode == "La":
        picture = picture.convert("LA")
    direct = ("1", "L", "LA", "P", "PA", "RGB", "RGBa", "RGBX")  # the others (CMYK, YCbCr …) go through RGB
    return (picture if picture.mode in direct else picture.convert("RGB")).convert("RGBA")


def _keyed(picture: "Image", clear: tuple[int, ...], depth: int) -> "Image":
    """Makes one colour transparent. It is given in the file's depth, but the pixels are already 8 bit."""
    if picture.mode == "1":
        picture, depth = picture.convert("L"), 1
    most = (1 << depth) - 1
    wanted = [(value & most) >> 8 if depth == 16 else (value & most) * 255 // most for value in clear]
    return _cut_out(picture, list(zip(picture.split(), wanted, strict=True)))


def _grey16(picture: "Image") -> "Image":
    """The upper byte of each sample, as Pillow does for 16-bit colour."""
    from PIL import Image

    data = picture.tobytes()
    high, low = (data[0::2], data[1::2]) if picture.mode.endswith("B") else (data[1::2], data[0::2])
    grey = Image.frombytes("L", picture.size, high)
    clear = picture.info.get("transparency")
    if not isinstance(clear, int):
        return grey.convert("RGBA")
    return _cut_out(grey, [(grey, clear >> 8), (Image.frombytes("L", picture.size, low), clear & 0xFF)])


def _cut_out(picture: "Image", wanted: "list[tuple[Image, int]]") -> "Image":
    """`picture` with alpha 0 where every band equals its paired value, and 255 elsewhere."""
    from functools import reduce

    from PIL import ImageChops

    equal = [band.point([255 * (value == key) for value in range(256)]) for band, key in wanted]
    result = picture.convert("RGB").convert("RGBA")
    result.putalpha(ImageChops.invert(reduce(ImageChops.darker, equal)))
    return result


# -- arrays


def _array_size(array: "np.ndarray[Any, Any]") -> tuple[int, int]:
    shape = "×".join(map(str, array.shape))
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise MediaError(f"an array of {shape} is not a picture: use height×width, height×width×3 or height×width×4.")
    if array.size == 0:
        raise MediaError(f"an array of {shape} has no pixels.")
    return int(array.shape[1]), int(array.shape[0])


def _from_array(array: "np.ndarray[Any, Any]") -> Pixels:
    """[height, width], [height, width, 3] or [height, width, 4], uint8 or floats from 0 to 1."""
    import numpy as np

    width, height = _array_size(array)
    _check_size("the array", width, height)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-3 and high <= 1 + 1e-3):  # a NaN fails too
            raise MediaError(f"the array's values are {low:g} … {high:g}; float pictures must be from 0 to 1.")
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise MediaError(f"an array of {array.dtype} is not a picture: use uint8, or floats from 0 to 1.")
    rgba = np.full((height, width, 4), 255, np.uint8)
    rgba[:, :, : array.shape[2] if array.ndim == 3 else 3] = array if array.ndim == 3 else array[:, :, None]
    return Pixels(width, height, rgba.tobytes())
