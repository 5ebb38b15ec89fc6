"""What people who know other libraries try first, and what to type here instead."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from wgemma.checks import refuse_unknown
from wgemma.errors import SettingsError
from wgemma.options import CALLS

# Our options, and what Ollama, llama-cpp-python, transformers, PEFT or OpenAI call them.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "max_tokens": ("num_predict", "n_predict", "max_new_tokens", "max_completion_tokens", "max_length"),
    "stop": ("stop_sequences", "stop_strings"),
    "think": ("thinking", "enable_thinking", "reasoning_effort"),
    "repeat_penalty": ("repetition_penalty",),
    "logprobs": ("top_logprobs",),
    "n": ("num_return_sequences",),
    "format": ("response_format", "json_schema", "guided_json", "response_model", "output_type"),
    "rounds": ("max_rounds", "max_steps", "max_turns", "max_iterations"),
    "context": ("num_ctx", "n_ctx"),
    "slots": ("num_parallel", "n_parallel", "n_seq_max", "max_num_seqs"),
    "adapter": ("lora_path", "lora_adapter"),
    "projector": ("mmproj", "clip_model_path"),
    "kv": ("type_k", "type_v", "kv_cache_type"),
    "precision": ("dtype", "torch_dtype"),
    "out": ("output_dir",),
    "resume": ("resume_from_checkpoint",),
    "rank": ("r", "lora_r"),
    "alpha": ("lora_alpha",),
    "dropout": ("lora_dropout",),
    "targets": ("target_modules",),
    "rslora": ("use_rslora",),
    "lr": ("learning_rate", "rate"),
    "schedule": ("lr_scheduler_type",),
    "warmup": ("warmup_ratio", "warmup_steps"),
    "epochs": ("num_train_epochs",),
    "steps": ("max_steps",),
    "batch": ("batch_size", "per_device_train_batch_size"),
    "seq": ("max_seq_length", "max_length"),
    "clip": ("max_grad_norm",),
    "eps": ("adam_epsilon",),
    "save_every": ("save_steps",),
    "checkpointing": ("gradient_checkpointing",),
}

_FIRST = 'the model is the first argument of load(), as in load("gemma4:e2b"). Leave {name} out.'
_WHOLE = "every layer runs on the GPU, and device='reference' runs without one. Leave {name} out."
_THREADS = "there is nothing to tune about threads or batches. Leave {name} out."
# Options that have no counterpart.
NEEDLESS: dict[str, str] = {
    "stream": "every answer streams: iterate over it, or take all of it with .text. Leave stream out.",
    "options": "options are arguments here: write temperature=0 instead of options={{'temperature': 0}}.",
    "do_sample": "temperature=0 is what do_sample=False is elsewhere. Leave do_sample out.",
    "model": _FIRST,
    "model_path": _FIRST,
    "n_gpu_layers": _WHOLE,
    "num_gpu": _WHOLE,
    "device_map": _WHOLE,
    "grammar": "a grammar is a format: write format=wgemma.Grammar(text).",
    "functions": "functions are tools: write tools=[function].",
    "function_call": 'a call is asked for by tool_choice: write tool_choice="required", or the name of a tool.',
    "num_thread": _THREADS,
    "n_threads": _THREADS,
    "n_batch": _THREADS,
    "num_batch": _THREADS,
    "keep_alive": "a model stays loaded until its close(). Leave keep_alive out.",
    "verbose": "loading prints nothing. Leave verbose out.",
    "system": 'the system prompt is a message: {{"role": "system", "content": "…"}} comes first.',
    "images": 'images are part of a message: {{"role": "user", "content": "…", "images": ["photo.jpg"]}}.',
}


_TWINS = ("chat_many", "generate_many", "run_tools")  # their options are mostly those of chat and generate


def refuse_unknown_options(call: str, given: Iterable[str]) -> None:
    """Raises for the first option that this call does not have; the message says what to write instead."""
    known = CALLS[call]
    for name in sorted(set(given) - known):
        ours = [own for own, others in ELSEWHERE.items() if name in others]
        here = [own for own in ours if own in known]
        if here:
            raise SettingsError(f"{name} is {here[0]} here.")
        if name in NEEDLESS:
            raise SettingsError(NEEDLESS[name].format(name=name))
        own = ours[0] if ours else name
        owners = [f"{other}()" for other, names in CALLS.items() if own in names and other not in _TWINS]
        if owners:
            what = f"{name} is {own} here, an option" if ours else f"{name} is an option"
            raise SettingsError(f"{what} of {' and '.join(owners)}, not of {call}().")
    refuse_unknown(given, known)


class WrongCall(SettingsError, TypeError):
    """Something was used in a way it does not support. Also a `TypeError`, for code that tries and catches."""


def dead_end(sentence: str) -> Callable[..., NoReturn]:
    """A method that always raises: the sentence says what to type instead. Hide it from type checkers, which then
    find the mistake themselves."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise WrongCall(sentence)

    return refuse


# Names that models and libraries have elsewhere: what to write here.
_OF_A_MODEL = {
    "create_chat_completion": "model.chat(messages)",
    "create_completion": "model.generate(prompt)",
    "completion": "model.generate(prompt)",
    "complete": "model.generate(prompt)",
    "invoke": "model.chat(messages)",
    "prompt": "model.chat(messages)",
    "stream": "model.chat(messages)",
    "create_embedding": "model.embed(texts)",
    "embeddings": "model.embed(texts)",
    **dict.fromkeys(("batch", "generate_batch", "abatch"), "model.chat_many(chats)"),
    "with_structured_output": "model.chat(messages, format=…)",
    "bind_tools": "model.chat(messages, tools=[…])",
    "run": "model.run_tools(messages, tools)",
    "apply_chat_template": "wgemma.render(messages)",
    "tokenize": "model.tokenizer.encode(text)",
    "encode": "model.tokenizer.encode(text)",
    "detokenize": "model.tokenizer.decode(ids)",
    "decode": "model.tokenizer.decode(ids)",
    "train": "model.finetune(data, out=folder)",
    "to": "wgemma.load(name, device=…)",
    "unload": "model.close()",
}
_OF_THE_PACKAGE = {
    **dict.fromkeys(("chat", "Client", "AsyncClient"), 'wgemma.load("gemma4:e2b").chat(messages)'),
    **dict.fromkeys(("generate", "pipeline"), 'wgemma.load("gemma4:e2b").generate(prompt)'),
    "embed": 'wgemma.load("gemma4:e2b").embed(texts)',
    **dict.fromkeys(("Llama", "get_model", "AutoModelForCausalLM"), 'wgemma.load("gemma4:e2b")'),
    "list": "`wgemma list` on the command line",
    "pull": "`wgemma pull gemma4:e2b` on the command line",
}


def not_in_the_package(name: str) -> AttributeError:
    """The error for `wgemma.name`."""
    hint = f": write {_OF_THE_PACKAGE[name]}." if name in _OF_THE_PACKAGE else ""
    return AttributeError(f"module 'wgemma' has no attribute {name!r}{hint}")


class Habitual:
    """A model, for those who treat it as one of another library: sentences instead of Python's own errors."""

    if not TYPE_CHECKING:
        __call__ = dead_end(
            'a model cannot be called: write model.chat([{"role": "user", "content": "…"}]) or model.generate("…").'
        )
        __iter__ = __getitem__ = dead_end(
            "a model is no list: iterate over model.chat(messages) or model.generate(prompt)."
        )
        __len__ = dead_end(
            "a model has no length: model.backend.context is the size of its context, len(model.tokenizer) that of "
            "its vocabulary."
        )
        __reduce_ex__ = dead_end(
            "a model is on a GPU and cannot be copied or pickled: call wgemma.load() where it is needed. "
            "model.save(path) writes its chat to a file."
        )

        def __bool__(self) -> bool:
            return True

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": write {_OF_A_MODEL[name]}." if name in _OF_A_MODEL else ""
            raise AttributeError(f"a model has no attribute {name!r}{hint}", name=name, obj=self)
