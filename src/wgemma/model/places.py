"""A vision tower's learned position embeddings: one table for columns, one for rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wgemma.errors import ModelError
from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Binding
from wgemma.gpu.tape import Tape
from wgemma.model.vision_config import BUDGETS, PLACES, SIDE, VisionConfig
from wgemma.model.weights import Matrix, RowOrder, Uploader


@dataclass(frozen=True, slots=True)
class VisionPositions:
    table: Matrix  # [2 · count, D]: columns, then rows
    count: int


async def load_places(uploader: Uploader, config: VisionConfig, tensors: Mapping[str, Tensor]) -> VisionPositions:
    """Loads only as many rows of each table as the longest image has patches: a third of the file's."""
    tensor = tensors[PLACES]  # [D, places, 2]
    count = min(config.places, BUDGETS[-1] * SIDE // config.patch)
    half, nbytes = tensor.nbytes // 2, tensor.nbytes // 2 // config.places * count
    columns = replace(tensor, shape=(config.inner, count), nbytes=nbytes)
    rows = replace(columns, offset=tensor.offset + half)
    table = await uploader.matrix([(columns, RowOrder()), (rows, RowOrder(add=count))])
    if len(table.parts) > 1:
        raise ModelError(f"{PLACES} is too large for a binding of this GPU.")
    uploader.progress(tensor.nbytes - 2 * nbytes)
    return VisionPositions(table, count)


def add_places(tape: Tape, places: VisionPositions, patches: int, across: int, x: Binding, y: Binding) -> None:
    """y = x + the position embeddings of each patch's column and row."""
    table = places.table
    bindings: dict[str, Binding] = {**table.parts[0].bindings(), "x": x, "y": y}
    params = {"blocks": table.blocks, "across": across, "places": places.count}
    tape.run("places", [-(-table.blocks // 64), patches], bindings, params, {"TYPE": table.planes.reader})
