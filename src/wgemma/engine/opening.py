"""Opens a model on a device: how much memory it needs, where its per-layer table goes, and loading within a limit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wgemma.engine.engine import Engine
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.errors import OutOfMemory
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Device
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config, find_tensors
from wgemma.model.rows import pages_of
from wgemma.model.text import TABLE

SMALL_TABLE = 64 << 20  # bytes we assume any GPU has room for


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes a model takes on the GPU. The KV cache starts at `first_kv` and grows to `kv` with a full context; the
    per-layer table is on the GPU, too, or on the host."""

    weights: int
    table: int
    table_on_gpu: bool
    first_kv: int
    kv: int
    activations: int
    context: int
    reads: int  # bytes of the file to upload

    @property
    def gpu(self) -> int:
        """Total with a full context."""
        return self.least - self.first_kv + self.kv

    @property
    def least(self) -> int:
        """Total right after loading."""
        return self.weights + self.first_kv + self.activations + (self.table if self.table_on_gpu else 0)


async def plan(device: Device, gguf: Gguf, config: Config, options: Options, *, table_on_gpu: bool) -> Plan:
    """What loading would allocate: builds the engine itself, over a planning ledger."""
    ledger = Ledger(device, plans=True)
    engine = await Engine.load(ledger, gguf, config, options, table_on_gpu=table_on_gpu)
    loaded = ledger.nbytes
    arena = Runner(engine).paging.arena
    first = arena.nbytes
    others = ledger.nbytes - loaded - first
    whole = pages_of(engine.context) - arena.pages[False]
    table, inputs = 0, engine.weights.inputs
    if inputs is not None:
        table = sum(part.buffer.size for part in inputs.table.parts) if inputs.table else inputs.tensor.nbytes
    return Plan(
        weights=engine.weight_bytes - (table if table_on_gpu else 0),
        table=table,
        table_on_gpu=table_on_gpu and table > 0,
        first_kv=first,
        kv=first + max(whole, 0) * arena.costs[False],
        activations=loaded - engine.weight_bytes + others,
        context=engine.context,
        reads=bytes_to_read(config, gguf.tensors, table_on_gpu=table_on_gpu),
    )


def bytes_to_read(config: Config, tensors: Mapping[str, Tensor], *, table_on_gpu: bool) -> int:
    """Bytes uploaded from the file; excludes a table that stays on the host."""
    found = find_tensors(config, tensors).items()
    return sum(tensor.nbytes for name, tensor in found if table_on_gpu or name != TABLE)


async def table_choices(device: Device, gguf: Gguf, config: Config, options: Options) -> list[bool]:
    """Whether to put the per-layer table on the GPU: the choices to try, in order. Raises `OutOfMemory` if `memory`
    allows none."""
    if not config.ple_dim or options.ple == "host":
        choices = [False]
    elif options.ple == "gpu":
        choices = [True]
    else:
        small = find_tensors(config, gguf.tensors)[TABLE].nbytes <= SMALL_TABLE
        choices = [True, False] if small or device.roomy or options.memory is not None else [False]
    if options.memory is None:
        return choices
    plans = [await plan(device, gguf, config, options, table_on_gpu=on_gpu) for on_gpu in choices]
    fitting = [planned.table_on_gpu for planned in plans if planned.gpu <= options.memory]
    least = plans[-1]
    if not fitting and least.least > options.memory:
        full = f" ({least.gpu} with all {least.context} tokens of its context)" if least.gpu > least.least else ""
        raise OutOfMemory(
            f"the model needs {least.least} bytes of GPU memory{full}, but memory={options.memory}. "
            "Allow more, or load it with a smaller context."
        )
    return fitting[:1] or [least.table_on_gpu]  # the context cannot grow to its full length


async def open_engine(
    ledger: Ledger,
    gguf: Gguf,
    config: Config,
    options: Options,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> Engine:
    """Loads the model on the ledger's device, with its table on the GPU if it fits."""
    choices = await table_choices(ledger.device, gguf, config, options)
    for on_gpu in choices[:-1]:
        try:
            return await Engine.load(ledger, gguf, config, options, table_on_gpu=on_gpu, progress=progress)
        except OutOfMemory:
            continue
    return await Engine.load(ledger, gguf, config, options, table_on_gpu=choices[-1], progress=progress)
