"""Pictures and sounds."""

import struct
from io import BytesIO
from random import Random

from PIL import Image

from fuzz.harness import Reader
from fuzz.mutation import mutate
from media_maker import extensible, mended, png, riff_chunk, wav, wav_format
from wgemma.files.images import read_image
from wgemma.files.sounds import read_sound

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def _pictures() -> list[bytes]:
    made = Image.linear_gradient("L").resize((23, 17)).convert("RGB")
    found = [png(8, 8, [bytes(range(8 * row, 8 * row + 8)) for row in range(8)])]
    for kind in FORMATS:
        file = BytesIO()
        made.save(file, kind)
        found.append(file.getvalue())
    return found


def _sounds() -> list[bytes]:
    body = struct.pack("<200h", *range(-10_000, 10_000, 100))
    return [
        wav(body),
        wav(body, wav_format(3, 1, 44_100, 32)),
        wav(body, extensible(1, 2, 48_000, 16), before=riff_chunk(b"LIST", b"x" * 20)),
        wav(body, wav_format(7, 1, 8_000, 8)),
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
        Reader("image", 110, make_picture, examine_picture),
        Reader("sound", 70, lambda dice: mutate(dice.choice(sounds), dice), examine_sound),
    ]
