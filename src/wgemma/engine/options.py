"""Options for running a model."""

from dataclasses import dataclass

from wgemma.checks import one_of, shown, whole
from wgemma.errors import ModelError, SettingsError
from wgemma.gpu.device import Limits
from wgemma.model.cache import ring_places, token_bytes
from wgemma.model.config import Config
from wgemma.model.matmul import Precision
from wgemma.model.rotary import table_bytes

CHUNK = 512  # the most rows per forward pass
IMAGE_ROWS = (640, 1152)  # except for images that must not be split: up to 560 and 1120 tokens


@dataclass(frozen=True, slots=True)
class Options:
    """At most `context` tokens, a KV cache in f16 or f32, exact or fast products, the per-layer table on the GPU or
    fetched by the host, and at most `memory` bytes of the GPU (None: no limit). `images`: prompts may contain some.
    """

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
            one_of(name, getattr(self, name), allowed)
        for name, least in {"context": 1, "memory": 0, "chunk": 4}.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), least))


def context_of(config: Config, options: Options) -> int:
    """The most tokens a sequence may have."""
    asked = config.context_length if options.context is None else options.context
    if not 1 <= asked <= config.context_length:
        raise SettingsError(f"context is {shown(asked)}; this model allows 1 to {config.context_length}.")
    return asked


def check_room(config: Config, options: Options, limits: Limits) -> None:
    """Refuses a context or a window too large for the GPU's buffers, before anything is computed or allocated."""
    most, context = min(limits.binding, limits.buffer), context_of(config, options)
    table = max(table_bytes(layer.rotary_pairs, context) for layer in config.layers)
    if table > most:
        raise SettingsError(
            f"a context of {context} tokens needs a buffer of {table} bytes; this GPU allows {most}. "
            "Load the model with a smaller context."
        )
    places, sliding = (
        ring_places(config, most_rows(config, options)),
        [layer for layer in config.layers if layer.sliding],
    )
    ring = max((places * token_bytes(layer, options.kv) for layer in sliding), default=0)
    if ring > most:
        raise ModelError(
            f"the model's sliding window of {config.window} tokens needs a buffer of {ring} bytes; this GPU allows "
            f"{most}. Use another GPU, or load the model on the device 'reference'."
        )


def most_rows(config: Config, options: Options) -> int:
    """The most rows per pass: a chunk, or the largest image if it must not be split."""
    whole = options.images and config.image_attention == "both"
    return max(options.chunk, IMAGE_ROWS[-1]) if whole else options.chunk
