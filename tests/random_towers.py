"""Towers that encode without looking, for the tests of what sequences do with images and sounds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.files.images import Pixels
from wgemma.files.sounds import Sound
from wgemma.gpu.device import Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.model.tower import Step, unwatched

Floats = NDArray[np.float32]


class RandomTowers:
    """Encodes a picture into as many random rows as its budget says, always the same ones."""

    def require(self, kind: str) -> None:
        pass

    def __init__(self, device: NativeDevice, width: int) -> None:
        self.device, self.width = device, width
        self.encoded = 0

    def image_tokens(self, width: int, height: int, budget: int) -> int:
        return budget

    def sound_tokens(self, samples: int) -> int:
        return samples // 640

    def values(self, count: int) -> Floats:
        return np.random.default_rng(count).standard_normal((count, self.width)).astype(np.float32)

    async def see(self, pixels: Pixels, budget: int, step: Step = unwatched) -> Buffer:
        return self._upload(self.values(budget))

    async def hear(self, samples: Any, step: Step = unwatched) -> Buffer:
        return self._upload(self.values(len(samples) // 640))

    async def resample(self, sound: Sound) -> Any:
        return sound.samples

    def _upload(self, rows: Floats) -> Buffer:
        self.encoded += 1
        buffer = self.device.buffer(rows.nbytes, "rows")
        self.device.write(buffer, 0, rows.tobytes())
        return buffer

    def drop(self, rows: Any) -> None:
        self.device.free(rows)

    def release(self) -> None:
        pass
