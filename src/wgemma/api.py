"""A loaded model: chat, generate text, get logits, apply adapters, fine-tune. `loading.py` loads one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from wgemma.answering import Answering, check_cancel
from wgemma.answers import Answer, AsyncAnswer, WholeAnswer
from wgemma.checks import all_checked, called, yes_or_no
from wgemma.conversation import Conversation
from wgemma.engine.adapting import checked_scale
from wgemma.engine.continuing import Piece
from wgemma.engine.endings import TokenLogprob, Usage
from wgemma.engine.replying import Part
from wgemma.engine.request import Cancel, PromptProgress
from wgemma.engine.saved import fingerprint
from wgemma.files.adapters import AdapterFile, fitting_adapter
from wgemma.habits import refuse_unknown_options
from wgemma.loaded import prompt_style
from wgemma.many import Answers, AsyncAnswers
from wgemma.media import Perceiving
from wgemma.model.config import find_tensors
from wgemma.numbers import Computing
from wgemma.options import (
    ChatManyOptions,
    ChatOptions,
    FinetuneOptions,
    GenerateManyOptions,
    GenerateOptions,
    RunToolsOptions,
    SamplingOptions,
    TrainingOptions,
)
from wgemma.sync import pause, run
from wgemma.together import Begin
from wgemma.tool_runs import AsyncToolRun, ToolRun

if TYPE_CHECKING:
    from wgemma.train.finetune import TrainingResult
    from wgemma.train.trainer import Progress

__all__ = [
    "Answer",
    "Answers",
    "AsyncAnswer",
    "AsyncAnswers",
    "AsyncToolRun",
    "Conversation",
    "Model",
    "Part",
    "Piece",
    "PromptProgress",
    "TokenLogprob",
    "ToolRun",
    "Usage",
    "WholeAnswer",
    "prompt_style",
]

MOST_ALTERNATIVES = 64
_SAMPLING = SamplingOptions.__optional_keys__

T = TypeVar("T")


@all_checked
class Model(Answering, Perceiving, Computing):
    """A loaded model and its current chat. Close it, or use it in a `with` block. Threads and tasks may call it at the
    same time: their replies are generated together.

    `name` is what it was loaded as; `tokenizer` turns text into token ids and back.
    """

    def __init__(self, *loaded: Any) -> None:
        super().__init__(*loaded)
        self._conversation = Conversation(self)

    # -- chat

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Answer[Part]:
        """Streams the reply to `messages`, part by part; leaving the loop early cancels it. `.text` is all of it.

        A message is a dict such as `{"role": "user", "content": "Hello"}`; the roles are system, user, assistant and
        tool. Content may be a list of parts: `{"type": "text", "text": …}`, `{"type": "audio", "audio": …}` and
        `{"type": "image", "image": …, "budget": 280}`. An image is a path, the bytes of a file, a Pillow image or a
        NumPy array. If the last message is the assistant's, the reply continues it; its trailing white space is
        dropped, and there is no new thinking. A stored model's own system text and messages come first; a
        system message here replaces its system text.

        Options:
            tools: the functions the model may call: Python functions, or descriptions as in OpenAI's API.
            tool_choice: "auto" (the default), "none", "required" (the reply calls a tool), or the name of the tool to
                call.
            parallel_tool_calls: whether a reply may call several tools (the default).
            format: what the answer must look like: a JSON schema, a dataclass, a Pydantic model or another annotation,
                "json", `Regex`, `Choice` or `Grammar`. `.parsed` is then the object.
            think: whether the model thinks before it answers: True, or "low", "medium" or "high", which limit a thought
                to 512, 2048 or 8192 tokens.
            thinking_budget: the most tokens of a thought.
            max_tokens: the most tokens of the reply; by default the `num_predict` of a stored model, or as many as
                the context holds. 0 computes the prompt and generates nothing; with `logprobs`, the answer then has
                `prompt_logprobs`.
            stop: a string, or several, that end the reply. It does not contain them.
            cancel: an Event; setting it ends the reply, even while the prompt is read, and the last part says so.
            progress: called with a `PromptProgress` while the prompt is read.
            shift: whether a chat that does not fit into the context loses its oldest turns (the default), which
                `usage.dropped` tells, or is refused with `ContextOverflow`.
            adapter: the name of a loaded adapter, a dict of scales by name, or None for the base model; by default
                all adapters are active.
            n: how many alternatives to write, 1 to 64. Parts say by `index` which they belong to, and `alternatives`
                are the whole answers. `text` and the other properties are about the first.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return self._conversation.chat(messages, **options)

    def achat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> AsyncAnswer[Part]:
        """`chat`, for code that runs in an event loop: iterate with `async for`, or await the whole answer."""
        return self._conversation.achat(messages, **options)

    def chat_many(
        self, chats: Iterable[Sequence[Mapping[str, Any]]], **options: Unpack[ChatManyOptions]
    ) -> Answers[Part]:
        """Streams the replies to many chats, as (index, part) in the order in which they are written; `.texts` are all
        of them. Each of `chats` is a list of messages as in `chat`, and a conversation of its own; an endless iterable
        is fine, since only a few are begun at a time.

        Options:
            tools, tool_choice, parallel_tool_calls, format, think, thinking_budget, max_tokens, stop, cancel, progress,
                shift, adapter: as in `chat`, for all.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return Answers(self._chats(chats, options), self._at_a_time)

    def achat_many(
        self, chats: Iterable[Sequence[Mapping[str, Any]]], **options: Unpack[ChatManyOptions]
    ) -> AsyncAnswers[Part]:
        """`chat_many`, for code that runs in an event loop: iterate with `async for`, or await all whole answers."""
        return AsyncAnswers(self._chats(chats, options), self._at_a_time)

    def _chats(self, chats: Iterable[Sequence[Mapping[str, Any]]], options: ChatManyOptions) -> Iterator[Begin]:
        refuse_unknown_options("chat_many", options)
        begin = self._chat("chat_many", **options)
        return self._each("chats", chats, lambda chat: begin(Conversation(self), chat)[0], options.get("cancel"))

    def run_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        rounds: int = 8,
        **options: Unpack[RunToolsOptions],
    ) -> ToolRun:
        """Replies to `messages`, calls the Python functions in `tools` that the model asks for, tells it their results,
        and so on, until it answers without a call. Iterate over the parts and steps, or take `.text`; `.messages` is
        the whole chat.

        Signature, annotations and docstring tell the model what a function does; arguments become what the annotations
        say. An exception in a function is told to the model, and so is a call that does not fit.

        Options:
            rounds: the most replies. If the last one still calls tools, these calls are made, and the run ends with the
                finish_reason "tool".
            tool_choice: as in `chat`, for the first reply; "none" is for all.
            parallel_tool_calls, format, think, thinking_budget, max_tokens, stop, cancel, progress, shift, adapter: as
                in `chat`, for every reply.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return self._conversation.run_tools(messages, tools, rounds=rounds, **options)

    def arun_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        rounds: int = 8,
        **options: Unpack[RunToolsOptions],
    ) -> AsyncToolRun:
        """`run_tools`, for code that runs in an event loop: iterate with `async for`, or await the answer. Functions
        may be async; those of one reply run together."""
        return self._conversation.arun_tools(messages, tools, rounds=rounds, **options)

    def conversation(self) -> Conversation:
        """A chat of its own, beside this model's and others: it has `chat`, `run_tools`, `fork`, `save`, `restore` and
        `reset`."""
        self._turns.check()
        return Conversation(self)

    def save(self, path: str | Path) -> None:
        """Saves this chat to the file `path`: its tokens and their KV cache."""
        self._conversation.save(path)

    def restore(self, path: str | Path) -> None:
        """Restores a chat saved to `path` from the same model; any other file raises an error and changes nothing."""
        self._conversation.restore(path)

    def reset(self) -> None:
        """Forgets the chat, and everything that was computed: the next call begins anew."""
        run(self._forget())

    async def _forget(self) -> None:
        self._turns.check()
        async with self._turns.take():
            await self.backend.reset()
        self._conversation.reset()

    # -- plain text

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Answer[Piece]:
        """Continues `prompt` (text, or token ids, which are used unchanged), token by token; `.text` is all of it.

        Options:
            format, max_tokens, stop, cancel, progress, adapter, n: as in `chat`.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return Answer(*self._generate("generate", self._conversation, **options)(prompt), most=self._at_a_time)

    def agenerate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> AsyncAnswer[Piece]:
        """`generate`, for code that runs in an event loop: iterate with `async for`, or await the whole answer."""
        return AsyncAnswer(*self._generate("generate", self._conversation, **options)(prompt), most=self._at_a_time)

    def generate_many(
        self, prompts: Iterable[str | Sequence[int]], **options: Unpack[GenerateManyOptions]
    ) -> Answers[Piece]:
        """Continues many `prompts`, as (index, piece) in the order in which they are written; `.texts` are all of them.
        Each is one as in `generate`; an endless iterable is fine, since only a few are begun at a time.

        Options:
            format, max_tokens, stop, cancel, progress, adapter: as in `chat`, for all.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return Answers(self._texts(prompts, options), self._at_a_time)

    def agenerate_many(
        self, prompts: Iterable[str | Sequence[int]], **options: Unpack[GenerateManyOptions]
    ) -> AsyncAnswers[Piece]:
        """`generate_many`, for code that runs in an event loop: iterate with `async for`, or await all whole
        answers."""
        return AsyncAnswers(self._texts(prompts, options), self._at_a_time)

    def _texts(self, prompts: Iterable[str | Sequence[int]], options: GenerateManyOptions) -> Iterator[Begin]:
        refuse_unknown_options("generate_many", options)
        begin = self._generate("generate_many", None, **options)
        return self._each("prompts", prompts, lambda prompt: begin(prompt)[0], options.get("cancel"))

    # -- adapters

    @property
    def adapters(self) -> dict[str, float]:
        """The scale of each loaded adapter, by name."""
        return self.backend.adapters.scales

    def load_adapter(self, path: str | Path | AdapterFile, name: str | None = None, scale: float = 1.0) -> str:
        """Loads a LoRA adapter from a `path` (a PEFT folder or a .gguf file); returns its `name`, which selects it with
        `adapter=` and is the file's own by default. It is active from the next call on, at `scale`, and replaces an
        adapter of the same name. If it does not fit the model, `AdapterError` is raised and nothing changes."""
        return run(self.aload_adapter(path, name, scale))

    async def aload_adapter(self, path: Any, name: str | None = None, scale: float = 1.0) -> str:
        """`load_adapter`, for code that runs in an event loop; in a web page `path` may be a `Source`."""
        self._turns.check()
        scale = checked_scale(scale)
        file = await fitting_adapter(find_tensors(self._config, self._opened[0].tensors), path, name)
        name = name or file.name
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.having(file, name, scale))
        return name

    def unload_adapter(self, name: str) -> None:
        """Unloads the adapter of this `name` and frees its memory."""
        run(self.aunload_adapter(name))

    async def aunload_adapter(self, name: str) -> None:
        """`unload_adapter`, for code that runs in an event loop."""
        self._turns.check()
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.without(name))

    # -- training

    def finetune(self, data: Any, **options: Unpack[FinetuneOptions]) -> "TrainingResult":
        """Trains a LoRA adapter on `data` (a .jsonl file, or a list of records) and writes it to the folder `out`. The
        result holds the losses, and `adapter` for `load_adapter`. Training always starts from the base model; loaded
        adapters are ignored.

        Options:
            out: the folder for the adapter, its model card, the losses and the last checkpoints.
            resume: continue from the last checkpoint in `out`.
            skip_bad: skip bad lines instead of raising `DataError`.
            progress: called with a `Progress` after each step.
            cancel: an Event; setting it writes a checkpoint and ends training.
            rank, alpha, targets, rslora, dropout, lr, schedule, warmup, epochs, steps, batch, seq, packing, seed,
                weight_decay, clip, betas, eps, validation, save_every, checkpointing: see `TrainingSettings`.
        """
        return run(self.afinetune(data, **options))

    async def afinetune(
        self,
        data: Any,
        *,
        out: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        progress: "Callable[[Progress], None]" = lambda progress: None,
        cancel: "Cancel | None" = None,
        **settings: Unpack[TrainingOptions],
    ) -> "TrainingResult":
        """`finetune`, for code that runs in an event loop; `data` may be a prepared `Task`, which has its own folder
        and settings."""
        from wgemma.train.finetune import Task, finetune, prepare_task, refuse_adapted, refuse_types
        from wgemma.train.fitting import open_learner

        self._turns.check()
        refuse_unknown_options("finetune", settings)
        yes_or_no("resume", resume)
        yes_or_no("skip_bad", skip_bad)
        called("progress", progress, "a function that takes a Progress")
        check_cancel(cancel)
        engine = self.backend.runner.engine
        refuse_adapted(self._files)
        refuse_types(engine.gguf)
        task = data
        if not isinstance(task, Task):
            task = await prepare_task(
                data,
                out,
                {**settings},
                self.tokenizer,
                self.prompt_style,
                context=engine.context,
                system=self._prelude.system,
                resume=resume,
                skip_bad=skip_bad,
            )

        def report(step: "Progress") -> None:
            progress(step)
            self._turns.check()

        while not self.backend.idle:  # training needs the whole GPU
            self._turns.check()
            await pause(0.01)
        async with self._turns.take():
            engine = self.backend.runner.engine  # may have been rebuilt meanwhile
            learner = await open_learner(engine, task.settings)
            try:
                return await finetune(
                    task,
                    learner,
                    base=self.name,
                    model=fingerprint(engine),
                    progress=report,
                    cancel=cancel,
                    memory=lambda: engine.device.allocated,
                )
            finally:
                learner.free()
