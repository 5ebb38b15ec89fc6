"""The options of every call, by name and type, for whoever checks types before running. The calls check them, too."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from wgemma.engine.adapting import Choice
from wgemma.engine.opening import Plan
from wgemma.engine.request import Cancel, Hear
from wgemma.engine.thinking import Level
from wgemma.gpu.device import Device
from wgemma.model.matmul import Precision

if TYPE_CHECKING:
    from wgemma.train.trainer import Progress


class LoadOptions(TypedDict, total=False):
    """The options of `load`."""

    projector: str | Path | None
    adapter: str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None
    device: Device | str | int | None
    context: int | None
    kv: Literal["f16", "f32"]
    precision: Precision
    ple: Literal["auto", "gpu", "host"]
    memory: int | None
    slots: int
    arena: int | None
    announce: Callable[[Plan], None] | None
    progress: Callable[[int], None]


Tool: TypeAlias = Mapping[str, Any] | Callable[..., Any]  # a declaration, or a function


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling`, as options."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    logit_bias: Mapping[int, float]
    seed: int | None
    logprobs: int | None


class GenerateManyOptions(SamplingOptions, total=False):
    """The options of `Model.generate_many`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    cancel: Cancel | None
    progress: Hear
    adapter: Choice
    format: Any


class GenerateOptions(GenerateManyOptions, total=False):
    """The options of `Model.generate`."""

    n: int


class RunToolsOptions(GenerateManyOptions, total=False):
    """The options of `Model.run_tools`."""

    tool_choice: str | None
    parallel_tool_calls: bool
    think: bool | Level
    thinking_budget: int | None
    shift: bool


class ChatManyOptions(RunToolsOptions, total=False):
    """The options of `Model.chat_many`."""

    tools: Sequence[Tool] | None


class ChatOptions(ChatManyOptions, total=False):
    """The options of `Model.chat`."""

    n: int


class TrainingOptions(TypedDict, total=False):
    """The fields of `TrainingSettings`, as options."""

    rank: int
    alpha: float
    targets: str | Sequence[str]
    rslora: bool
    dropout: float
    lr: float
    schedule: Literal["cosine", "linear", "constant"]
    warmup: float
    epochs: int
    steps: int | None
    batch: int
    seq: int
    packing: bool
    seed: int
    weight_decay: float
    clip: float
    betas: tuple[float, float]
    eps: float
    validation: float | str | Path
    save_every: int | None
    checkpointing: bool


class FinetuneOptions(TrainingOptions, total=False):
    """The options of `Model.finetune`."""

    out: str | Path | None
    resume: bool
    skip_bad: bool
    progress: "Callable[[Progress], None]"
    cancel: Cancel | None


CALLS: dict[str, frozenset[str]] = {
    "chat": ChatOptions.__optional_keys__,
    "generate": GenerateOptions.__optional_keys__,
    "chat_many": ChatManyOptions.__optional_keys__,
    "generate_many": GenerateManyOptions.__optional_keys__,
    "run_tools": RunToolsOptions.__optional_keys__ | {"rounds"},
    "load": LoadOptions.__optional_keys__,
    "finetune": FinetuneOptions.__optional_keys__,
}
