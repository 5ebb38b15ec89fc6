"""Gemma 4 on any GPU, from Python, by hand-written WGSL over WebGPU."""

from wgemma.api import Model, Part, Piece, PromptProgress, Usage
from wgemma.engine.sampling import Sampling
from wgemma.errors import (
    AdapterError,
    BadLogits,
    ContextOverflow,
    DataError,
    DeviceError,
    DeviceLost,
    Error,
    GgufError,
    MediaError,
    ModelError,
    OutOfMemory,
    SessionError,
    SettingsError,
    SourceError,
    StoreError,
    TemplateError,
    TrainingError,
)
from wgemma.files.gguf import Gguf
from wgemma.loading import aload, load
from wgemma.text.template import render
from wgemma.text.tokenizer import Tokenizer
from wgemma.version import __version__

__all__ = [
    "AdapterError",
    "BadLogits",
    "ContextOverflow",
    "DataError",
    "DeviceError",
    "DeviceLost",
    "Error",
    "Gguf",
    "GgufError",
    "MediaError",
    "Model",
    "ModelError",
    "OutOfMemory",
    "Part",
    "Piece",
    "PromptProgress",
    "Sampling",
    "SessionError",
    "SettingsError",
    "SourceError",
    "StoreError",
    "TemplateError",
    "Tokenizer",
    "TrainingError",
    "Usage",
    "__version__",
    "aload",
    "load",
    "render",
]
