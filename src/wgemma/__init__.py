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
    GrammarError,
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
    from wgemma.api import (
        Answer,
        Answers,
        AsyncAnswer,
        AsyncAnswers,
        AsyncToolRun,
        Conversation,
        Model,
        Part,
        Piece,
        PromptProgress,
        TokenLogprob,
        ToolRun,
        Usage,
        WholeAnswer,
    )
    from wgemma.engine.sampling import Sampling
    from wgemma.files.gguf import Gguf
    from wgemma.formats import Choice, Grammar, Regex
    from wgemma.functions import ToolStep
    from wgemma.loading import aload, load
    from wgemma.options import (
        ChatManyOptions,
        ChatOptions,
        FinetuneOptions,
        GenerateManyOptions,
        GenerateOptions,
        LoadOptions,
        RunToolsOptions,
    )
    from wgemma.text.reply import ToolCall
    from wgemma.text.template import render
    from wgemma.text.tokenizer import Tokenizer

__all__ = [
    "AdapterError",
    "Answer",
    "Answers",
    "AsyncAnswer",
    "AsyncAnswers",
    "AsyncToolRun",
    "BadLogits",
    "ChatManyOptions",
    "ChatOptions",
    "Choice",
    "ContextOverflow",
    "Conversation",
    "DataError",
    "DeviceError",
    "DeviceLost",
    "Error",
    "FinetuneOptions",
    "GenerateManyOptions",
    "GenerateOptions",
    "Gguf",
    "GgufError",
    "Grammar",
    "GrammarError",
    "LoadOptions",
    "MediaError",
    "Model",
    "ModelError",
    "OutOfMemory",
    "Part",
    "Piece",
    "PromptProgress",
    "Regex",
    "RunToolsOptions",
    "Sampling",
    "SessionError",
    "SettingsError",
    "SourceError",
    "StoreError",
    "TemplateError",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "ToolRun",
    "ToolStep",
    "TrainingError",
    "Usage",
    "WholeAnswer",
    "__version__",
    "aload",
    "load",
    "render",
]

# The names that take long to import, and their modules. They are imported when first used, so that the `wgemma` command
# starts quickly.
_LATER = {
    "Answer": "api",
    "Answers": "api",
    "AsyncAnswer": "api",
    "AsyncAnswers": "api",
    "AsyncToolRun": "api",
    "ChatManyOptions": "options",
    "ChatOptions": "options",
    "Choice": "formats",
    "Conversation": "api",
    "FinetuneOptions": "options",
    "GenerateManyOptions": "options",
    "GenerateOptions": "options",
    "Gguf": "files.gguf",
    "Grammar": "formats",
    "LoadOptions": "options",
    "Model": "api",
    "Part": "api",
    "Piece": "api",
    "PromptProgress": "api",
    "Regex": "formats",
    "RunToolsOptions": "options",
    "Sampling": "engine.sampling",
    "TokenLogprob": "api",
    "Tokenizer": "text.tokenizer",
    "ToolCall": "text.reply",
    "ToolRun": "api",
    "ToolStep": "functions",
    "Usage": "api",
    "WholeAnswer": "api",
    "aload": "loading",
    "load": "loading",
    "render": "text.template",
}

if not TYPE_CHECKING:

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            from wgemma.habits import not_in_the_package

            raise not_in_the_package(name)
        from importlib import import_module

        globals()[name] = found = getattr(import_module(f"wgemma.{_LATER[name]}"), name)
        return found
