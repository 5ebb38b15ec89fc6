"""What the vision and audio towers share: keys, tensors, and linears that clip their inputs and outputs.

A tower is in the model's own file (keys `gemma4.vision.*`, `gemma4.audio.*`) or in a projector beside it
(`clip.vision.*`, `clip.audio.*`). As in `config`, nothing is trusted: keys and tensors are checked before use, and any
problem raises a `ModelError` that names it.
"""

import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.tape import Tape
from wgemma.model.config import MATRIX_TYPES, VECTOR_TYPES, Wanted
from wgemma.model.forms import direct_form, direct_grid, tower_tile_form
from wgemma.model.matmul import Destination
from wgemma.model.weights import Matrix, RowOrder, Uploader
from wgemma.sync import breathe

EPS = 1e-6  # for every norm in both towers; the key is wrong in some projectors
FAR = 3.4028234663852886e38  # the largest f32, i.e. no bound

# Called before part i of n of an encoding is submitted, i from 0; may wait for the GPU, and raise to end the encoding.
Step: TypeAlias = Callable[[int, int], Awaitable[None]]

BOUNDS = ("input_min", "input_max", "output_min", "output_max")
# The older format: one tensor with four bounds for each of these linears, layer by layer, then for the projector.
CLAMP_DATA = "v.clamp_data"
PACKED = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")
PROJECTOR = "mm.input_projection"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ranges a linear's inputs and outputs are clamped to."""

    input_min: float = -FAR
    input_max: float = FAR
    output_min: float = -FAR
    output_max: float = FAR


@dataclass(frozen=True, slots=True)
class Linear:
    """y = clamp(W · clamp(x) + bias)."""

    matrix: Matrix
    bounds: Bounds
    bias: Buffer | None  # [matrix.rows]


class Keys:
    """The keys of one tower, in either spelling; each is checked when read."""

    def __init__(self, metadata: Mapping[str, Any], tower: Literal["vision", "audio"]) -> None:
        self._metadata = metadata
        self._prefix = "clip" if metadata.get("general.architecture") == "clip" else "gemma4"
        self._tower = tower

    def whole(self, key: str, most: int, least: int = 1, default: int | None = None) -> int:
        name = f"{self._prefix}.{self._tower}.{key}"
        value = self._metadata.get(name, default)
        if value is None:
            raise ModelError(f"the key {name} is missing.")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{name} must be a whole number, but it is {value!r:.80}.")
        if not least <= value <= most:
            raise ModelError(f"{name} is {value!r:.80}; it must be {least} to {most}.")
        return value


# -- tensors


def linear_tensors(name: str, columns: int, rows: int, *, bias: bool = False) -> dict[str, Wanted]:
    """The tensors of linear `name` in the file: a matrix, optional bounds, and a bias if required."""
    wanted = {f"{name}.weight": Wanted((columns, rows), matrix=True)}
    wanted |= {f"{name}.{bound}": Wanted((1,), optional=True) for bound in BOUNDS}
    return wanted | {f"{name}.bias": Wanted((rows,))} if bias else wanted


def clamp_tensors(layers: int) -> dict[str, Wanted]:
    """The packed bounds of a vision tower."""
    return {CLAMP_DATA: Wanted(((layers * len(PACKED) + 1) * len(BOUNDS),), optional=True)}


def find(gguf: Gguf, wanted: Mapping[str, Wanted]) -> dict[str, Tensor]:
    """The file's tensors by their usual names, all checked; absent optional ones are omitted."""
    found: dict[str, Tensor] = {}
    for name, want in wanted.items():
        tensor = next((gguf.tensors[name] for name in (name, *want.spellings) if name in gguf.tensors), None)
        if tensor is not None:
            found[name] = _checked(tensor, want)
        elif not want.optional:
            raise ModelError(f"the tensor {name} of shape {list(want.shape)} is missing.")
    return found


def _checked(tensor: Tensor, want: Wanted) -> Tensor:
    shape, types = list(want.shape), MATRIX_TYPES if want.matrix else VECTOR_TYPES
    if tensor.shape != want.shape:
        raise ModelError(f"{tensor.name} has shape {list(tensor.shape)}, but the rest of the tower needs {shape}.")
    if tensor.type not in types:
        raise ModelError(
            f"{tensor.name} has type {tensor.type}, which wgemma does not support here; it takes {', '.join(types)}."
        )
    return tensor


def flat(tensor: Tensor, columns: int) -> Tensor:
    """A convolution kernel reshaped to a matrix; refuses quantised types, whose blocks could span two rows."""
    if tensor.type not in VECTOR_TYPES:
        raise ModelError(f"{tensor.name} has type {tensor.type}; a convolution must be F32, F16 or BF16.")
    return replace(tensor, shape=(columns, tensor.elements // columns))


# -- linears


async def load_linear(uploader: Uploader, tensors: Mapping[str, Tensor], name: str) -> Linear:
    """The linear `name` (such as "v.blk.0.attn_q") from checked tensors: its matrix, its bounds in either format, and
    its bias, if `tensors` has one."""
    bounds = await read_bounds(uploader.small, tensors, name)
    matrix = await uploader.matrix([(tensors[f"{name}.weight"], RowOrder())], ragged=True)
    bias = None
    if f"{name}.bias" in tensors:
        bias = uploader.upload((await uploader.vector(tensors[f"{name}.bias"])).tobytes(), f"{name}.bias")
    return Linear(matrix, bounds, bias)


Read: TypeAlias = Callable[[Tensor], Awaitable[bytes]]


async def read_bounds(read: Read, tensors: Mapping[str, Tensor], name: str) -> Bounds:
    """Four tensors of one number each, any of which may be absent; or four of the packed numbers, where four zeros mean
    no bounds. Otherwise a zero is a bound like any other."""
    single = {bound: tensors[f"{name}.{bound}"] for bound in BOUNDS if f"{name}.{bound}" in tensors}
    if single:
        return Bounds(**{bound: (await _numbers(read, tensor))[0] for bound, tensor in single.items()})
    at = _packed_at(name)
    if CLAMP_DATA not in tensors or at is None:
        return Bounds()
    numbers = await _numbers(read, tensors[CLAMP_DATA])
    four = numbers[4 * at : 4 * at + 4] if at >= 0 else numbers[-4:]
    return Bounds(*four) if any(four) else Bounds()


def _packed_at(name: str) -> int | None:
    """The index of this linear's packed bounds; the last ones are the projector's."""
    if name == PROJECTOR:
        return -1
    parts = name.split(".")
    if parts[:2] != ["v", "blk"] or parts[-1] not in PACKED:
        return None
    return int(parts[2]) * len(PACKED) + PACKED.index(parts[-1])


async def _numbers(read: Read, tensor: Tensor) -> list[float]:
    """Reads bounds, which, unlike weights, may be infinite; those become ±FAR."""
    if tensor.type != "F32":
        raise ModelError(f"{tensor.name} has type {tensor.type}; bounds must be F32.")
    numbers = struct.unpack(f"<{tensor.elements}f", await read(tensor))
    if any(number != number for number in numbers):
        raise ModelError(f"{tensor.name} contains a bound that is not a number; the file is damaged.")
    return [min(max(number, -FAR), FAR) for number in numbers]


def linear(tape: Tape, lin: Linear, rows: int, x: Binding, y: Binding, stride: int = 0, offset: int = 0) -> None:
    """Records the product of `rows` rows (at least 1), x contiguous, y `stride` apart (0: contiguous, too) from
    `offset` on."""
    if tape.device.compact:
        linear_direct(tape, lin, rows, x, y, stride, offset)
    else:
        form = tower_tile_form(tape.device, rows, lin.matrix.rows)
        _linear(tape, lin, rows, x, Destination(y, stride, offset), "tile", form)


def linear_direct(tape: Tape, lin: Linear, rows: int, x: Binding, y: Binding, stride: int = 0, offset: int = 0) -> None:
    """The same with direct.wgsl."""
    _linear(tape, lin, rows, x, Destination(y, stride, offset), "direct", direct_form(tape.device))


def _linear(
    tape: Tape, lin: Linear, rows: int, x: Binding, place: Destination, kernel: str, form: dict[str, Any]
) -> None:
    matrix, bounds = lin.matrix, lin.bounds
    constants = {"TYPE": matrix.planes.reader, "CLIPPED": True, "BIAS": lin.bias is not None, **form}
    limits = {"x_min": bounds.input_min, "x_max": bounds.input_max}
    limits |= {"y_min": bounds.output_min, "y_max": bounds.output_max}
    for part in matrix.parts:
        bindings: dict[str, Binding] = {**part.bindings(), "x": x, "y": place.y}
        if lin.bias is not None:
            bindings["bias"] = lin.bias
        params = {"blocks": matrix.blocks, "n": part.rows, "first": part.first, "rows": rows, **limits}
        params |= {"y_stride": place.stride or matrix.rows, "y_offset": place.offset + part.first}
        params["x_quads"] = matrix.columns // 4
        tiles = (
            [-(-part.rows // 64), -(-rows // form["ROWS"])] if kernel == "tile" else direct_grid(part.rows, rows, form)
        )
        tape.run(kernel, tiles, bindings, params, constants)


async def unwatched(part: int, parts: int) -> None:
    """The step of an encoding nobody waits for."""
    await breathe()


def submit(tape: Tape) -> None:
    """Replays a tape once and frees it."""
    try:
        tape.program().replay()
    finally:
        tape.free()
