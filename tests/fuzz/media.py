"""Pictures and sounds."""

import struct
from io import BytesIO
from random import Random
from typing import Any

from PIL import Image

from fuzz.harness import Reader
from fuzz.mutation import mutate
from media_maker import extensible, mended, png, png_chunk, riff_chunk, wav, wav_format
from wgemma.files.images import read_image
from wgemma.files.sounds import read_sound

FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("GIF", {})),
    *(("WEBP", {}), ("WEBP", {"lossless": True})),
)


def _pictures() -> list[bytes]:
    made = Image.linear_gradient("L").resize((23, 17)).convert("RGB")
    found = [
        png(8, 8, [bytes(range(8 * row, 8 * row + 8)) for row in range(8)]),
        png(3, 2, [bytes([0, 1, 2])] * 2, colour=3, extra=[(b"PLTE", bytes(range(9))), (b"tRNS", bytes([0, 128]))]),
        png(2, 1, [bytes(4)], depth=16, extra=[(b"tRNS", b"\0\1"), (b"eXIf", b"II*\0\x08\0\0\0\0\0")]),
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(13)),
    ]
    for kind, options in FORMATS:
        file = BytesIO()
        made.save(file, kind, **options)
        found.append(file.getvalue())
    return found


def _sounds() -> list[bytes]:
    body = struct.pack("<200h", *range(-10_000, 10_000, 100))
    long_sizes = riff_chunk(b"ds64", struct.pack("<QQQI", 0, len(body), 0, 0))
    return [
        wav(body),
        wav(body, before=riff_chunk(b"LIST", b"INFOodd")),
        wav(struct.pack("<8f", *(i / 8 for i in range(8))), wav_format(3, 1, 44_100, 32)),
        wav(struct.pack("<8d", *(i / 8 for i in range(8))), extensible(3, 2, 8_000, 64)),
        wav(body, extensible(1, 2, 48_000, 24)),
        wav(body, wav_format(6, bits=8), size=0, riff_size=0),
        wav(body, wav_format(7, 1, 8_000, 8)),
        wav(body, before=long_sizes, size=0xFFFFFFFF, kind=b"RF64"),
    ]


def readers() -> list[Reader]:
    pictures, sounds = _pictures(), _sounds()

    def make_picture(dice: Random) -> bytes:
        data = mutate(dice.choice(pictures), dice)
        return mended(data) if data.startswith(b"\x89PNG\r\n\x1a\n") and dice.random() < 0.7 else data

    def examine_picture(data: bytes) -> str:
        pixels = read_image(data)
        assert len(pixels.rgba) == 4 * pixels.width * pixels.height
        return "read"

    def examine_sound(data: bytes) -> str:
        read_sound(data)
        return "read"

    return [
        Reader("image", 100, make_picture, examine_picture),
        Reader("sound", 70, lambda dice: mutate(dice.choice(sounds), dice), examine_sound),
    ]
