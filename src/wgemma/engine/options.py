"""Options for running a model."""

from dataclasses import dataclass

from wgemma.errors import SettingsError
from wgemma.model.config import Config
from wgemma.model.matmul import Precision

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
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(allowed)}.")
        for name in ("context", "memory", "chunk"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise SettingsError(f"{name} is {value!r}; it must be a whole number.")
        if self.chunk < 4:
            raise SettingsError(f"chunk is {self.chunk}; it must be at least 4.")


def context_of(config: Config, options: Options) -> int:
    """The most tokens a sequence may have."""
    asked = config.context_length if options.context is None else options.context
    if not 1 <= asked <= config.context_length:
        raise SettingsError(f"context is {asked}; this model allows 1 to {config.context_length}.")
    return asked


def most_rows(config: Config, options: Options) -> int:
    """The most rows per pass: a chunk, or the largest image if it must not be split."""
    whole = options.images and config.image_attention == "both"
    return max(options.chunk, IMAGE_ROWS[-1]) if whole else options.chunk
