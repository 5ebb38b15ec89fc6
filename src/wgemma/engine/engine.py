"""One model on one device: its weights, the scratch memory of a step, and the per-layer rows the host must fetch.

Sessions share an engine and take turns. The engine can be rebuilt on a fresh device after the old one was lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wgemma.engine.adapting import Adapters, Setting
from wgemma.errors import ModelError, OutOfMemory, SettingsError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Buffer, Device
from wgemma.model.adapters import Lows, load_adapters
from wgemma.model.cache import PAGE, ring_places
from wgemma.model.config import Config, find_tensors
from wgemma.model.decoder import PAD, SOFT, Decoder
from wgemma.model.matmul import Precision
from wgemma.model.planes import PLANES
from wgemma.model.text import TABLE, TextWeights, load_text

if TYPE_CHECKING:
    from wgemma.engine.senses import Senses

CHUNK = 512  # the most rows of one forward pass
IMAGE_ROWS = (640, 1152)  # but an image whose rows see each other is never split: up to 560 and 1120 tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What will take memory where, in bytes, before anything is loaded. `kv` is what a full context would take."""

    weights: int
    table: int
    table_on_gpu: bool
    kv: int
    activations: int

    @property
    def gpu(self) -> int:
        return self.weights + self.kv + self.activations + (self.table if self.table_on_gpu else 0)


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a model: `context` tokens at most, keys and values in f16 or f32, products exact or fast, the
    per-layer table on the GPU or fetched by the host, and `memory` bytes of the GPU to stay within (None: as much as
    there is). `images` tells that there may be some."""

    context: int | None = None
    kv: str = "f16"
    precision: Precision = "exact"
    ple: str = "auto"
    memory: int | None = None
    chunk: int = CHUNK
    images: bool = False

    def __post_init__(self) -> None:
        choices = {"kv": ("f16", "f32"), "precision": ("exact", "fast"), "ple": ("auto", "gpu", "host")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(allowed)}.")
        for name in ("context", "memory", "chunk"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise SettingsError(f"{name} is {value!r}; it must be a whole number.")
        if self.chunk < 4:
            raise SettingsError(f"chunk is {self.chunk}; it must be at least 4.")


def most_rows(config: Config, options: Options) -> int:
    """The most rows a pass may have: a chunk, or the largest image where it must not be split."""
    whole = options.images and config.image_attention == "both"
    return max(options.chunk, IMAGE_ROWS[-1]) if whole else options.chunk


def plan(config: Config, tensors: dict[str, Tensor], options: Options, context: int, table_on_gpu: bool) -> Plan:
    """The memory a model will take, from its header alone."""
    weights = table = 0
    for name, tensor in find_tensors(config, tensors).items():
        columns = tensor.shape[0]
        rows = tensor.elements // columns
        quantised = tensor.type in PLANES and columns % 32 == 0
        size = PLANES[tensor.type].nbytes(rows, columns) if quantised else 4 * tensor.elements
        if name == TABLE:
            table = size
        else:
            weights += size
    number = 2 if options.kv == "f16" else 4
    kv = 0
    for layer in config.layers:
        if layer.donor is None:
            ring = ring_places(config, most_rows(config, options))
            places = ring if layer.sliding else -(-context // PAGE) * PAGE
            kv += 2 * places * layer.kv_heads * layer.head_dim * number
    return Plan(weights, table, table_on_gpu, kv, _activations(config, options))


def _activations(config: Config, options: Options) -> int:
    heads = max(layer.heads * layer.head_dim for layer in config.layers)
    wide = max(layer.ffn_width for layer in config.layers)
    columns = config.ple_dim * len(config.layers)
    experts = config.experts_used * (config.width + 3 * config.expert_width)
    longest = max(config.width, wide, config.experts_used * config.expert_width)
    rounded = longest * 12 // 32 if options.precision == "fast" else 0
    return 4 * options.chunk * (5 * config.width + 3 * heads + 3 * wide + 3 * columns + experts + rounded)


class Engine:
    """A loaded text model."""

    def __init__(self, device: Device, gguf: Gguf, config: Config, options: Options, weights: TextWeights) -> None:
        self.device = device
        self.gguf = gguf
        self.config = config
        self.options = options
        self.weights = weights
        self.context = context_of(config, options)
        self.most_rows = most_rows(config, options)
        self.senses: Senses[Buffer] | None = None  # what stands behind soft rows
        self.decoder = Decoder(device, weights, options.chunk, options.precision)
        self.sample = b""  # a few weights, to know the model by
        self.adapters = Adapters()
        self.lows: Lows | None = None  # the adapters on the GPU
        self.adapted = 0  # how often they changed: recordings that use them are good for one of these
        self._weighed: Setting | None = None  # the scales they have there

    @classmethod
    async def load(
        cls,
        device: Device,
        gguf: Gguf,
        options: Options,
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> "Engine":
        config = Config.from_gguf(gguf)
        context = context_of(config, options)
        for on_gpu in table_choices(device, gguf, config, options):
            try:
                weights = await load_text(device, gguf, config, context, ple_on_gpu=on_gpu, progress=progress)
                return await cls._with(device, gguf, config, options, weights)
            except OutOfMemory:
                if not on_gpu or options.ple == "gpu":
                    raise
        raise ModelError("the model was not loaded")  # unreachable: the last choice loads or raises

    @classmethod
    async def _with(
        cls, device: Device, gguf: Gguf, config: Config, options: Options, weights: TextWeights
    ) -> "Engine":
        """The engine around weights that are loaded; they go when it cannot be made."""
        try:
            engine = cls(device, gguf, config, options, weights)
            await device.confirm()
        except BaseException:
            for buffer in weights.buffers:
                device.free(buffer)
            raise
        norm = gguf.tensor("output_norm.weight")
        engine.sample = bytes(await gguf.source.read(norm.offset, norm.nbytes))
        return engine

    @property
    def fetches_rows(self) -> bool:
        """Whether each token's row of the per-layer table comes from the host."""
        return self.weights.inputs is not None and self.weights.inputs.table is None

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU; sessions have theirs besides."""
        buffers = (*self.weights.buffers, *self.decoder.buffers())
        return sum(buffer.size for buffer in buffers) + (self.lows.nbytes if self.lows else 0)

    async def fetch_rows(self, tokens: Sequence[int], decoder: Decoder | None = None) -> None:
        """Brings the raw per-layer rows of these tokens to the GPU, for this decoder or another; a soft row gets
        PAD's."""
        target = (decoder or self.decoder).raw_rows
        assert target is not None
        self.device.write(target, 0, await self.gguf.source.rows(*self._rows_of(tokens)))

    def expect_rows(self, tokens: Sequence[int]) -> None:
        """Says which tokens' rows will be fetched soon."""
        if self.fetches_rows:
            self.gguf.source.expect_rows(*self._rows_of(tokens))

    def _rows_of(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Where in the file the tokens' rows of the per-layer table begin, and how long they are."""
        assert self.weights.inputs is not None
        tensor = self.weights.inputs.tensor
        size = tensor.format.row_nbytes(tensor.shape[0])
        return [tensor.offset + (PAD if token >= SOFT else token) * size for token in tokens], size

    async def adapt(self, adapters: Adapters) -> None:
        """Puts these adapters beside the weights in place of those before; when that fails, nothing has changed."""
        lows: Lows | None = None
        if adapters:
            lows = await load_adapters(self.device, self.weights, adapters.files)
            try:
                await self.decoder.make_room_for_adapters(lows)
            except BaseException:
                lows.free(self.device)
                raise
        if self.lows is not None:
            self.lows.free(self.device)
        self.lows, self.adapters, self._weighed = lows, adapters, None
        self.adapted += 1

    def weigh(self, setting: Setting) -> None:
        """From now on what is replayed with adapters has these scales."""
        if self.lows is not None and setting != self._weighed:
            self.lows.set_scales(self.device, setting.by_name())
            self._weighed = setting

    def free(self) -> None:
        if self.lows is not None:
            self.lows.free(self.device)
        for buffer in (*self.weights.buffers, *self.decoder.buffers()):
            self.device.free(buffer)


def context_of(config: Config, options: Options) -> int:
    """The most tokens a sequence may have."""
    asked = config.context_length if options.context is None else options.context
    if not 1 <= asked <= config.context_length:
        raise SettingsError(f"context is {asked}; this model allows 1 to {config.context_length}.")
    return asked


def table_choices(device: Device, gguf: Gguf, config: Config, options: Options) -> list[bool]:
    """Whether to put the per-layer table on the GPU: what to try, in order."""
    if not config.ple_dim or options.ple == "host":
        return [False]
    if options.ple == "gpu":
        return [True]
    if options.memory is not None:
        context = context_of(config, options)
        return [plan(config, gguf.tensors, options, context, True).gpu <= options.memory]
    small = find_tensors(config, gguf.tensors)[TABLE].nbytes <= 64 << 20
    return [True, False] if small or device.roomy else [False]
