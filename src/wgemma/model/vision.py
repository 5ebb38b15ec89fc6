"""Images to soft tokens: pixels in, rows of the decoder's width out, which stay on the GPU.

    vision = await load_vision(ledger, gguf)         the model's own file, or its projector
    rows = await vision.encode(pixels, budget=280)   f32 [tokens, width]; the caller frees it

Knows nothing of prompts. Weights stay until `free`; an image's scratch memory is freed when it is done.
"""

from collections.abc import Callable

from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.picture import resized
from wgemma.model.tower import PROJECTOR, Linear, Step, linear, load_linear, submit, unwatched
from wgemma.model.vision_config import BUDGETS, SIDE, VisionConfig, has_vision, read_vision
from wgemma.model.vision_tower import Tower, load_tower
from wgemma.model.vision_unified import Unified, load_unified
from wgemma.model.weights import Uploader

__all__ = ["BUDGETS", "Vision", "has_vision", "load_vision"]

BUDGET = 280


class Vision:
    """A vision tower on one device."""

    def __init__(self, ledger: Ledger, body: Tower | Unified, projector: Linear) -> None:
        self._ledger = ledger
        self._device = ledger.device
        self._body = body
        self._projector = projector

    @property
    def config(self) -> VisionConfig:
        return self._body.config

    @property
    def width(self) -> int:
        """The width of a soft token, which is the decoder's."""
        return self.config.width

    @property
    def nbytes(self) -> int:
        return self._ledger.nbytes

    def grid(self, width: int, height: int, budget: int = BUDGET) -> tuple[int, int]:
        """How many soft tokens an image of this size becomes, across and down."""
        across, down = self.config.fit(width, height, budget)
        return across // SIDE, down // SIDE

    async def encode(self, pixels: Pixels, budget: int = BUDGET, step: Step = unwatched) -> Buffer:
        """The soft tokens of an image, row by row: f32 [tokens, width]; the caller frees them. `step` is called before
        every layer."""
        across, down = self.config.fit(pixels.width, pixels.height, budget)
        tokens = across // SIDE * (down // SIDE)
        side, inner = self.config.patch, self.config.inner
        with Ledger(self._device) as scratch:
            patches = scratch.buffer(across * down // (side * side) * self.config.columns * 4, "patches")
            self._cut(pixels, across, down, patches)
            x, y = scratch.buffers((4 * tokens * width, "vision tokens") for width in (inner, self.width))
            await self._body.tokens(self._device, patches, across // side, down // side, x, step)
            tape = Tape(self._device, "projector")
            linear(tape, self._projector, tokens, x, y)
            submit(tape)
            return scratch.keep(y)

    def _cut(self, pixels: Pixels, across: int, down: int, y: Buffer) -> None:
        """The resized image in patches: f32 [patches, columns], in [−1, 1] for the transformer, otherwise in [0, 1]."""
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
        """Frees the weights."""
        self._ledger.free()


async def load_vision(ledger: Ledger, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> Vision:
    """Uploads a file's vision tower; on failure the ledger is freed. Raises `ModelError` if the file has none."""
    config, tensors = read_vision(gguf)
    uploader = Uploader(ledger, gguf, progress)
    uploader.expect(sorted(tensors.values(), key=lambda tensor: tensor.offset))
    try:
        load = load_unified if config.unified else load_tower
        body = await load(uploader, config, tensors)
        projector = await load_linear(uploader, tensors, PROJECTOR)
        return Vision(ledger, body, projector)
    except BaseException:
        ledger.free()
        raise
    finally:
        uploader.close()
