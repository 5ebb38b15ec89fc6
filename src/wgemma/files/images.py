"""Pictures as the vision tower wants them: upright, 8 bit, straight alpha, whatever file, text or array they come in.

Pillow decodes PNG, JPEG, WebP and GIF (the first frame). A page has no Pillow: there the browser decodes, and `Pixels`
are made from what it gives. Files are hostile: the size is judged by the header, and what was cut off is refused.
Everything that can be wrong with one is a `MediaError`.
"""

import binascii
import os
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

from wgemma.errors import MediaError, SourceError
from wgemma.files.sources import FileSource, is_url
from wgemma.sync import run

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_PIXELS = 100_000_000  # of 8 to 20 bytes while they are decoded
MAX_BYTES = 256 << 20

# Anything that names or holds the bytes of a file.
FileLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview"
ImageSource: TypeAlias = "Pixels | FileLike | Image | np.ndarray[Any, Any]"

# Orientation as EXIF counts it → the member of Pillow's Transpose that undoes it.
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
_STRIP = 1 << 20  # pixels turned into RGBA at a time
_SHORT = 512  # a longer text is meant as base64, not as a path
_alone = threading.Lock()  # Python's warning filters belong to the whole process


@dataclass(frozen=True, slots=True)
class Pixels:
    """A picture: `rgba` is [height, width, 4], row by row from the top, alpha not multiplied in."""

    width: int
    height: int
    rgba: bytes

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or len(self.rgba) != 4 * self.width * self.height:
            raise MediaError(
                f"{len(self.rgba)} bytes are no picture of {self.width}×{self.height}: four for each pixel, please."
            )

    @property
    def nbytes(self) -> int:
        return 4 * self.width * self.height

    @property
    def key(self) -> bytes | str:
        """What tells it from other pictures of its size."""
        return self.rgba

    def rows(self, first: int, last: int) -> Any:
        """Rows first … last − 1, as something that a device's `write` takes."""
        row_bytes = 4 * self.width
        return memoryview(self.rgba)[first * row_bytes : last * row_bytes]


def read_image(source: ImageSource) -> Pixels:
    """The picture in a file, in its bytes, in base64 text or a data: URL, in a Pillow image or in a NumPy array."""
    if isinstance(source, Pixels):
        return source
    if is_a(source, "numpy", "ndarray"):
        return _from_array(source)
    if is_a(source, "PIL.Image", "Image"):
        with _pillow("the picture"):
            return _pixels("the picture", source)
    name, data = contents(source, "picture", image_format)
    return _decode(name, data)


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
    """isinstance without the import: what a module nobody imported would make cannot be here."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def contents(
    source: object, kind: str, recognise: Callable[[bytes | memoryview], str | None]
) -> tuple[str, bytes | memoryview]:
    """What to call `source` in a sentence, and its bytes. A text is a data: URL, a path, or base64 of a `kind`."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"the {kind}", source if isinstance(source, bytes) else memoryview(source).cast("B")
    if not isinstance(source, str | os.PathLike):
        raise MediaError(f"a {type(source).__name__} is no {kind}. Give a path, the bytes of a file, or an array.")
    if not isinstance(source, str):
        path = os.fsdecode(source)
        return path, _file(path)
    if not source.strip():
        raise MediaError(f"an empty text names no {kind}. Give a path, or the file in base64.")
    if source[:5].lower() == "data:":
        return f"the {kind}", from_base64(source, kind)
    if is_url(source):
        raise MediaError(f"{_shown(source)}: a {kind} is not fetched from the web. Download it and give its path.")
    if _exists(source):
        return source, _file(source)
    try:
        data = from_base64(source, kind)
    except MediaError:
        if len(source) > _SHORT:
            raise
        raise MediaError(f"{_shown(source)}: no such file.") from None
    if recognise(data) or len(source) > _SHORT:
        return f"the {kind}", data
    raise MediaError(f"{_shown(source)}: no such file, and no {kind} in base64 either.")


def from_base64(text: str, kind: str) -> bytes:
    """The bytes in base64 text or a base64 data: URL; never a path, so it is safe for texts from the network."""
    if text[:5].lower() == "data:":
        header, comma, text = text.partition(",")
        if not comma or not header.lower().rstrip().endswith(";base64"):
            raise MediaError(f"the data: URL of a {kind} must read data:…;base64,… with the file in base64.")
    text = "".join(text.split()).translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
    try:
        data = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: letters beyond ASCII
        raise MediaError(f"the text given for a {kind} is neither a path nor good base64 ({error}).") from None
    if not data:
        raise MediaError(f"the base64 text of a {kind} is empty.")
    return data


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long a name, a closed folder, an unknown user behind "~", a NUL
        return False


def _file(name: str) -> bytes | memoryview:
    """The file's bytes, mapped rather than read: what is refused by its header costs nothing."""
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise MediaError(f"{name} is a folder; give a file in it.")
        source = FileSource(path)
        return run(source.read(0, source.size))
    except (SourceError, OSError, RuntimeError, ValueError) as error:
        raise MediaError(str(error)) from None


def _shown(text: str) -> str:
    """A source for a message; of a long one both ends, because a path's name is the last of it."""
    text = text if len(text) <= 80 else text[:40] + "…" + text[-39:]
    return text if text.isprintable() else repr(text)


# -- files


def check_picture(name: str, data: bytes | memoryview) -> str:
    """The format of a picture's file, by its first bytes and its size: what is refused here was not read yet."""
    kind = image_format(data)
    if not data:
        raise MediaError(f"{name} is empty (0 bytes).")
    if kind is None:
        what = f"a {other} file" if (other := _other_format(data)) else "no picture of a kind that is read"
        raise MediaError(f"{name} is {what}. Give a PNG, JPEG, WebP or GIF.")
    if len(data) > MAX_BYTES:
        raise MediaError(f"{name} has {len(data) >> 20} MiB; up to {MAX_BYTES >> 20} are read. Save it smaller.")
    return kind


def _decode(name: str, data: bytes | memoryview) -> Pixels:
    kind = check_picture(name, data)
    if kind == "WEBP":
        _check_size(name, *_webp_size(data))  # its decoder reserves the whole canvas on opening
    if kind == "PNG" and _png_needs(data) > len(data):  # Pillow would fill up what a forged one lacks
        raise MediaError(f"{name} is cut off: {len(data)} bytes cannot hold its pixels. Save or fetch it again.")
    data = bytes(data)
    if data.count(b"Exif\0\0") > _MAX_EXIF:
        raise MediaError(f"{name} has its EXIF data in too many pieces. Save it without them.")
    with _pillow(name):
        from PIL import Image

        with _Patient(name, data, 1_000_000 if kind == "PNG" else 20_000) as file:
            picture = Image.open(file, formats=(kind,))
            return _pixels(name, picture, depth=data[24] if kind == "PNG" else 8)


class _Patient(BytesIO):
    """A file whose patience ends: Pillow would go through a forged header byte by byte, for minutes."""

    def __init__(self, name: str, data: bytes, reads: int) -> None:
        super().__init__(data)
        self._name = name
        self._reads_left = reads

    def read(self, size: int | None = -1) -> bytes:
        self._reads_left -= 1
        if self._reads_left < 0:
            raise MediaError(f"{self._name} has too many small pieces in its header. Save it without metadata.")
        return super().read(size)


def _other_format(data: bytes | memoryview) -> str | None:
    """The name of a format that people do hand over."""
    head = bytes(data[:32])
    if head[4:8] == b"ftyp":
        return "HEIC" if head[8:10] in (b"he", b"mi", b"ms") else "AVIF" if head[8:11] == b"avi" else "video"
    signs = {b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"%PDF": "PDF", b"<svg": "SVG", b"\0\0\1\0": "ICO"}
    return next((name for sign, name in signs.items() if head.startswith(sign)), None)


def _png_needs(data: bytes | memoryview) -> int:
    """The fewest bytes that could hold the pixels of its header: deflate makes at most 1032 bytes out of one."""
    head = bytes(data[16:26]).ljust(10, b"\0")
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    bits = head[8] * {2: 3, 4: 2, 6: 4}.get(head[9], 1)
    return 0 if width * height > MAX_PIXELS else height * ((width * bits + 7) // 8) // 1032


def _webp_size(data: bytes | memoryview) -> tuple[int, int]:
    """Width and height by the first chunk; 0 where there is none, which the decoder will refuse."""
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
            f"{name} is {width}×{height}, {width * height / 1e6:.0f} million pixels; up to "
            f"{MAX_PIXELS // 10**6} million are read. Scale it down first."
        )


@contextmanager
def _pillow(name: str) -> Iterator[None]:
    """Turns whatever Pillow raises into one sentence, and keeps its warnings to ourselves."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MediaError("pictures are decoded by Pillow, which is not installed: pip install pillow.") from None
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
    except UnidentifiedImageError:  # its text holds nothing but an address
        raise MediaError(f"{name} is cut off or damaged in its header. Save or fetch it again.") from None
    except Exception as error:  # decoders of broken files raise nearly everything
        reason = str(error).rstrip(".") or type(error).__name__
        if "MAX_TEXT" in reason:  # Pillow's limits for text and colour profiles in PNG
            raise MediaError(f"{name} has too much text or colour profile in it. Save it without metadata.") from None
        raise MediaError(f"{name} is cut off or damaged ({reason}). Save or fetch it again.") from None


# -- Pillow images


def _pixels(name: str, picture: "Image", depth: int = 8) -> Pixels:
    """Upright RGBA of any Pillow image; `depth` is the file's, in which PNG gives its transparent colour."""
    from PIL.Image import Transpose

    _check_size(name, *picture.size)
    if not all(picture.size):
        raise MediaError(f"{name} has no pixels ({picture.width}×{picture.height}).")
    picture.load()
    turn = _UPRIGHT.get(_orientation(picture))
    if turn is not None:
        picture = picture.transpose(Transpose[turn])
    rgba = BytesIO()  # gives its bytes away without a copy
    rows = max(1, _STRIP // picture.width)
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        rgba.write(_rgba(name, strip, depth).tobytes())
    return Pixels(*picture.size, rgba.getvalue())


def _orientation(picture: "Image") -> int:
    """What EXIF says; broken EXIF is no reason to refuse a picture."""
    try:
        return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _rgba(name: str, picture: "Image", depth: int) -> "Image":
    if picture.mode in ("I", "F"):
        raise MediaError(f"{name} has Pillow's mode {picture.mode}, whose white is not known. Convert it to RGB first.")
    if picture.mode.startswith("I;16"):
        return _grey16(picture)
    if picture.mode in ("1", "L", "RGB") and isinstance(clear := picture.info.get("transparency"), int | tuple):
        return _keyed(picture, clear if isinstance(clear, tuple) else (clear,), depth)
    if picture.mode == "RGBA":
        return picture
    if picture.mode == "La":
        picture = picture.convert("LA")
    direct = ("1", "L", "LA", "P", "PA", "RGB", "RGBa", "RGBX")  # the others (CMYK, YCbCr …) go by way of RGB
    return (picture if picture.mode in direct else picture.convert("RGB")).convert("RGBA")


def _keyed(picture: "Image", clear: tuple[int, ...], depth: int) -> "Image":
    """One colour of the picture is transparent. It is told in the file's depth; the pixels are of 8 bits by now."""
    if picture.mode == "1":
        picture, depth = picture.convert("L"), 1
    most = (1 << depth) - 1
    wanted = [(value & most) >> 8 if depth == 16 else (value & most) * 255 // most for value in clear]
    return _cut_out(picture, list(zip(picture.split(), wanted, strict=True)))


def _grey16(picture: "Image") -> "Image":
    """The upper byte of each sample, as Pillow itself does for 16-bit colour."""
    from PIL import Image

    data = picture.tobytes()
    high, low = (data[0::2], data[1::2]) if picture.mode.endswith("B") else (data[1::2], data[0::2])
    grey = Image.frombytes("L", picture.size, high)
    clear = picture.info.get("transparency")
    if not isinstance(clear, int):
        return grey.convert("RGBA")
    return _cut_out(grey, [(grey, clear >> 8), (Image.frombytes("L", picture.size, low), clear & 0xFF)])


def _cut_out(picture: "Image", wanted: "list[tuple[Image, int]]") -> "Image":
    """`picture` with alpha 0 where each of these bands has the value beside it, and 255 elsewhere."""
    from functools import reduce

    from PIL import ImageChops

    equal = [band.point([255 * (value == key) for value in range(256)]) for band, key in wanted]
    result = picture.convert("RGB").convert("RGBA")
    result.putalpha(ImageChops.invert(reduce(ImageChops.darker, equal)))
    return result


# -- arrays


def _from_array(array: "np.ndarray[Any, Any]") -> Pixels:
    """[height, width], [height, width, 3] or [height, width, 4], uint8 or floats from 0 to 1."""
    import numpy as np

    shape = "×".join(map(str, array.shape))
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise MediaError(f"an array of {shape} is no picture: height×width, height×width×3 or height×width×4, please.")
    if array.size == 0:
        raise MediaError(f"an array of {shape} has no pixels.")
    height, width = array.shape[:2]
    _check_size("the array", width, height)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-3 and high <= 1 + 1e-3):  # a NaN fails too
            raise MediaError(f"the array's values are {low:g} … {high:g}; a picture of floats goes from 0 to 1.")
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise MediaError(f"an array of {array.dtype} is no picture: uint8, or floats from 0 to 1, please.")
    rgba = np.full((height, width, 4), 255, np.uint8)
    rgba[:, :, : array.shape[2] if array.ndim == 3 else 3] = array if array.ndim == 3 else array[:, :, None]
    return Pixels(width, height, rgba.tobytes())
