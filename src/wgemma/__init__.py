"""Gemma 4 on any GPU, from Python, by hand-written WGSL over WebGPU."""

from typing import TYPE_CHECKING, NoReturn

from wgemma.api import Answer, AsyncAnswer, Model, Part, Piece, TokenLogprob, Usage
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
from wgemma.habits import not_in_the_package as _not_in_the_package
from wgemma.loading import aload, load
from wgemma.options import ChatOptions, FinetuneOptions, GenerateOptions, LoadOptions
from wgemma.text.reply import ToolCall
from wgemma.text.template import render
from wgemma.text.tokenizer import Tokenizer
from wgemma.version import __version__

__all__ = [
    "AdapterError",
    "Answer",
    "AsyncAnswer",
    "BadLogits",
    "ChatOptions",
    "ContextOverflow",
    "DataError",
    "DeviceError",
    "DeviceLost",
    "Error",
    "FinetuneOptions",
    "GenerateOptions",
    "Gguf",
    "GgufError",
    "LoadOptions",
    "MediaError",
    "Model",
    "ModelError",
    "OutOfMemory",
    "Part",
    "Piece",
    "Sampling",
    "SessionError",
    "SettingsError",
    "SourceError",
    "StoreError",
    "TemplateError",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "TrainingError",
    "Usage",
    "__version__",
    "aload",
    "load",
    "render",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise _not_in_the_package(name)
