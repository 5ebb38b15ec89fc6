"""The 12B's vision: no transformer, just one linear layer over patches of 48 × 48 pixels, with norms around it."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.forms import THREADS
from wgemma.model.places import VisionPositions, add_places, load_places
from wgemma.model.tower import Linear, Step, linear, load_linear, submit
from wgemma.model.vision_config import VisionConfig
from wgemma.model.vision_tower import plain_norm
from wgemma.model.weights import Uploader

EPS = 1e-5  # of the layer norms


@dataclass(frozen=True, slots=True)
class Unified:
    config: VisionConfig
    patches: Linear
    places: VisionPositions
    norms: tuple[Buffer, ...]  # [2, columns], [2, D], [2, D]: weight, bias
    plain: Buffer  # [2, D]: zeros, ones: a norm without weights

    async def tokens(self, device: Device, x: Buffer, across: int, down: int, y: Buffer, step: Step) -> None:
        """Submits the computation from patches x [tokens, 6912] to the projector's input y [tokens, D]."""
        rows, columns, inner = across * down, self.config.columns, self.config.inner
        await step(0, 1)
        with Ledger(device) as scratch:
            normed, h = scratch.buffers((4 * rows * width, "vision scratch") for width in (columns, inner))
            tape = Tape(device, "vision")
            _layer_norm(tape, rows, columns, x, self.norms[0], normed)
            linear(tape, self.patches, rows, normed, h)
            _layer_norm(tape, rows, inner, h, self.norms[1], y)
            add_places(tape, self.places, rows, across, y, h)
            _layer_norm(tape, rows, inner, h, self.norms[2], normed)
            plain_norm(tape, inner, rows, normed, h, self.plain, y)
            submit(tape)


async def load_unified(uploader: Uploader, config: VisionConfig, tensors: Mapping[str, Tensor]) -> Unified:
    norms = []
    for which in (1, 2, 3):
        names = [f"v.patch_norm.{which}.{part}" for part in ("weight", "bias")]
        vectors = [await uploader.vector(tensors[name]) for name in names]
        norms.append(uploader.upload(b"".join(vector.tobytes() for vector in vectors), names[0]))
    plain = array("f", [0.0]) * config.inner + array("f", [1.0]) * config.inner
    return Unified(
        config=config,
        patches=await load_linear(uploader, tensors, "v.patch_embd"),
        places=await load_places(uploader, config, tensors),
        norms=tuple(norms),
        plain=uploader.upload(plain.tobytes(), "no norm"),
    )


def _layer_norm(tape: Tape, rows: int, columns: int, x: Buffer, norms: Buffer, y: Buffer) -> None:
    bindings = {"x": x, "norms": norms, "y": y}
    tape.run("layer_norm", [rows], bindings, {"quads": columns // 4, "eps": EPS}, {"THREADS": THREADS})
