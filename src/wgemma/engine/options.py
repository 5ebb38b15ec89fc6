"""Options for running a model."""

from dataclasses import dataclass

from wgemma.checks import counted, one_of, shown, whole
from wgemma.errors import ModelError, SettingsError
from wgemma.gpu.device import Limits
from wgemma.model.cache import page_costs, token_bytes
from wgemma.model.config import Config
from wgemma.model.matmul import Precision
from wgemma.model.rotary import table_bytes
from wgemma.model.rows import PAGE, pages_of

CHUNK = 512  # the most rows per forward pass
IMAGE_ROWS = (640, 1152)  # except for images that must not be split: up to 560 and 1120 tokens
FIRST_TOKENS = 8192  # what the arena holds at first, unless the context is smaller
EACH_TOKENS = 4096  # what it may hold for every slot, or one whole context if that is more
SLACK = PAGE  # how much more than a window is kept, so that a mark serves prompts that part a little before it
SLOTS = 8
MOST_SLOTS = 64


@dataclass(frozen=True, slots=True)
class Options:
    """At most `context` tokens, a KV cache in f16 or f32, exact or fast products, the per-layer table on the GPU or
    fetched by the host, and at most `memory` bytes of the GPU (None: no limit). Up to `slots` sequences run at the same
    time, and their keys and values take up to `arena` bytes (None: one whole context, or more for many slots).
    `images`: prompts may contain some. `middle`: middle.wgsl may be used, because it computes right.
    """

    context: int | None = None
    kv: str = "f16"
    precision: Precision = "exact"
    ple: str = "auto"
    memory: int | None = None
    chunk: int = CHUNK
    images: bool = False
    slots: int = SLOTS
    arena: int | None = None
    middle: bool = True

    def __post_init__(self) -> None:
        choices = {"kv": ("f16", "f32"), "precision": ("exact", "fast"), "ple": ("auto", "gpu", "host")}
        for name, allowed in choices.items():
            one_of(name, getattr(self, name), allowed)
        for name, least in {"context": 1, "memory": 0, "chunk": 4, "arena": 0}.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), least))
        object.__setattr__(self, "slots", whole("slots", self.slots, 1, MOST_SLOTS))


def context_of(config: Config, options: Options) -> int:
    """The most tokens a sequence may have: as many as asked for, if the arena holds them."""
    asked = config.context_length if options.context is None else options.context
    if not 1 <= asked <= config.context_length:
        raise SettingsError(f"context is {shown(asked)}; this model allows 1 to {config.context_length}.")
    return asked if options.arena is None else min(asked, PAGE * max(_arena_pages(config, options, options.arena), 1))


def check_room(config: Config, options: Options, limits: Limits) -> None:
    """Refuses a context or a window too large for the GPU's buffers, and an arena too small for anything, before
    anything is computed or allocated."""
    most, context = min(limits.binding, limits.buffer), context_of(config, options)
    table = max(table_bytes(layer.rotary_pairs, context) for layer in config.layers)
    if table > most:
        raise SettingsError(
            f"a context of {context} tokens needs a buffer of {table} bytes; this GPU allows {most}. "
            "Load the model with a smaller context."
        )
    room, sliding = first_pages(config, options)[True] * PAGE, [layer for layer in config.layers if layer.sliding]
    window = max((room * token_bytes(layer, options.kv) for layer in sliding), default=0)
    if window > most:
        raise ModelError(
            f"the model's sliding window of {config.window} tokens needs a buffer of {window} bytes; this GPU allows "
            f"{most}. Use another GPU, or load the model on the device 'reference'."
        )
    costs = page_costs(config, options.kv)
    least = _windows(config, options) * costs[True] + costs[False]
    if options.arena is not None and options.arena < least:
        raise SettingsError(
            f"arena is {shown(options.arena)} bytes; with {counted(options.slots, 'slot')} this model needs at least "
            f"{least}, and more for longer texts. Load it with a larger arena or fewer slots."
        )


def first_pages(config: Config, options: Options) -> dict[bool, int]:
    """The pages an arena begins with, enough for one chat; by whether they are the sliding layers'."""
    return {False: pages_of(min(FIRST_TOKENS, context_of(config, options))), True: _first_window(config, options)}


def most_pages(config: Config, options: Options, marked: int) -> dict[bool, int]:
    """The most pages an arena may grow to, if `marked` of the sliding layers' may be kept for later."""
    full = max(pages_of(context_of(config, options)), options.slots * pages_of(EACH_TOKENS))
    if options.arena is not None:
        full = max(_arena_pages(config, options, options.arena), 1)
    return {False: full, True: _windows(config, options) + marked if config.window else 0}


def _arena_pages(config: Config, options: Options, nbytes: int) -> int:
    """The full layers' pages in an arena of so many bytes, beside the windows of all slots."""
    costs = page_costs(config, options.kv)
    return (nbytes - _windows(config, options) * costs[True]) // costs[False]


def _first_window(config: Config, options: Options) -> int:
    """The sliding layers' pages that one sequence needs while its prompt is read."""
    return pages_of(config.window + most_rows(config, options) + SLACK) + 1 if config.window else 0


def _windows(config: Config, options: Options) -> int:
    """The sliding layers' pages that as many sequences as there are slots need."""
    each = pages_of((config.window or 0) + SLACK) + 2
    return _first_window(config, options) + (options.slots - 1) * each if config.window else 0


def most_rows(config: Config, options: Options) -> int:
    """The most rows per pass: a chunk, or the largest image if it must not be split."""
    whole = options.images and config.image_attention == "both"
    return max(options.chunk, IMAGE_ROWS[-1]) if whole else options.chunk
