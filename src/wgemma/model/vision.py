"""Images into soft tokens: pixels go in, rows of the decoder's width come out and stay on the GPU.

    vision = await load_vision(device, gguf)         the model's own file, or its projector
    rows = await vision.encode(pixels, budget=280)   f32 [tokens, width]; the caller frees it

Knows nothing of prompts. Weights stay until `free`; the scratch memory of an image goes when it is done.
"""

from collections.abc import Callable

from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.tape import Tape
from wgemma.model.picture import resized
from wgemma.model.tower import PROJECTOR, Linear, Scratch, linear, load_linear, submit
from wgemma.model.vision_config import BUDGETS, SIDE, VisionConfig, has_vision, read_vision
from wgemma.model.vision_tower import Tower, load_tower
from wgemma.model.vision_unified import Unified, load_unified
from wgemma.model.weights import Uploader

__all__ = ["BUDGETS", "Vision", "has_vision", "load_vision"]

BUDGET = 280


class Vision:
    """A vision tower on one device."""

    def __init__(self, device: Device, body: Tower | Unified, projector: Linear, buffers: tuple[Buffer, ...]) -> None:
        self._device = device
        self._body = body
        self._projector = projector
        self._buffers = buffers

    @property
    def config(self) -> VisionConfig:
        return self._body.config

    @property
    def width(self) -> int:
        """Of a soft token: the decoder's."""
        return self.config.width

    @property
    def nbytes(self) -> int:
        return sum(buffer.size for buffer in self._buffers)

    def grid(self, width: int, height: int, budget: int = BUDGET) -> tuple[int, int]:
        """The soft tokens that an image of so many pixels becomes, across and down."""
        across, down = self.config.fit(width, height, budget)
        return across // SIDE, down // SIDE

    async def encode(self, pixels: Pixels, budget: int = BUDGET) -> Buffer:
        """The soft tokens of an image, row by row: f32 [tokens, width], which the caller frees."""
        across, down = self.config.fit(pixels.width, pixels.height, budget)
        tokens = across // SIDE * (down // SIDE)
        side, inner = self.config.patch, self.config.inner
        with Scratch(self._device, "vision tokens") as scratch:
            patches = scratch.buffer(across * down // (side * side) * self.config.columns * 4)
            self._cut(pixels, across, down, patches)
            x, y = scratch.buffer(4 * tokens * inner), scratch.buffer(4 * tokens * self.width)
            await self._body.tokens(self._device, patches, across // side, down // side, x)
            tape = Tape(self._device, "projector")
            linear(tape, self._projector, tokens, x, y)
            submit(tape)
            return scratch.kept(y)

    def _cut(self, pixels: Pixels, across: int, down: int, y: Buffer) -> None:
        """The resized image in squares: f32 [patches, columns], in [−1, 1] for the transformer and [0, 1] without."""
        config = self.config
        image = resized(self._device, pixels, across, down)
        try:
            tape = Tape(self._device, "patches")
            scale, shift = (1.0, 0.0) if config.unified else (2.0, -1.0)
            params = {"side": config.patch, "across": across // config.patch, "scale": scale, "shift": shift}
            grid = [-(-config.columns // 256), across * down // config.patch**2]
            tape.run("patches", grid, {"x": image, "y": y}, params)
            submit(tape)
        finally:
            self._device.free(image)

    def free(self) -> None:
        """Gives the weights' memory back."""
        for buffer in self._buffers:
            self._device.free(buffer)
        self._buffers = ()


async def load_vision(device: Device, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> Vision:
    """The tower of a file, on the GPU; nothing stays there when it fails. A file without one is a `ModelError`."""
    config, tensors = read_vision(gguf)
    uploader = Uploader(device, gguf, progress)
    uploader.expect(sorted(tensors.values(), key=lambda tensor: tensor.offset))
    try:
        load = load_unified if config.unified else load_tower
        body = await load(uploader, config, tensors)
        projector = await load_linear(uploader, tensors, PROJECTOR)
        return Vision(device, body, projector, tuple(uploader.buffers))
    except BaseException:
        for buffer in uploader.buffers:
            device.free(buffer)
        raise
    finally:
        uploader.close()
