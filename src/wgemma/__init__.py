"""Gemma 4 on any GPU, from Python, by hand-written WGSL over WebGPU."""

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
from wgemma.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wgemma.api import Model, Part, Piece, PromptProgress, Usage
    from wgemma.engine.sampling import Sampling
    from wgemma.files.gguf import Gguf
    from wgemma.loading import aload, load
    from wgemma.text.template import render
    from wgemma.text.tokenizer import Tokenizer

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

# The names that take long to import, and their modules. They are imported when first used, so that the `wgemma` command
# starts quickly.
_LATER = {
    "Gguf": "files.gguf",
    "Model": "api",
    "Part": "api",
    "Piece": "api",
    "PromptProgress": "api",
    "Sampling": "engine.sampling",
    "Tokenizer": "text.tokenizer",
    "Usage": "api",
    "aload": "loading",
    "load": "loading",
    "render": "text.template",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(f"wgemma.{_LATER[name]}"), name)
    return found
