"""Fine-tuning, from data and settings to adapter files.

`prepare_task` does everything that can fail before a model is loaded; `finetune` trains, and writes to the folder

    adapter_config.json, adapter_model.safetensors    for PEFT and transformers
    adapter.gguf                                      for llama.cpp and Ollama
    README.md, loss.svg, losses.json                  how it was trained, and the losses
    checkpoint-N/                                     the last two, for `resume`; an adapter for PEFT each, too
    training.lock                                     while it trains: the process and host
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Literal

from wgemma.checks import counted
from wgemma.engine.request import Cancel
from wgemma.errors import ModelError, SettingsError, TrainingError
from wgemma.files.adapters import write_gguf_adapter, write_peft
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.files.locks import is_held, locked, owner
from wgemma.files.paths import mode, user_path
from wgemma.files.writing import replacing
from wgemma.model.planes import PLANES, TRAINABLE
from wgemma.text.tokenizer import Tokenizer
from wgemma.train.batches import Batches, Pack, pack, split
from wgemma.train.card import card
from wgemma.train.checkpoints import Checkpoint, Folder, Storage, latest, steps_saved
from wgemma.train.curve import curve
from wgemma.train.data import BadLine, Data, Example, Source, read_data
from wgemma.train.settings import TrainingSettings
from wgemma.train.trainer import Progress, Teachable, Trainer

GGUF = "adapter.gguf"
LOCK = "training.lock"
UNTRAINED = ("v.", "a.", "mm.", "per_layer_token_embd.")  # tensors that no gradient goes through: towers and a table


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of training. `adapter` is the folder to load it from, or None if training was stopped early and can
    resume from a checkpoint."""

    out: Path
    adapter: Path | None
    steps: int
    losses: list[float]  # one per step
    validation: list[tuple[int, float]]  # (step, loss)
    truncated: int = 0  # truncated examples
    bad: list[BadLine] = field(default_factory=list)  # skipped lines
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Everything decided before the model is loaded."""

    settings: TrainingSettings
    out: Path
    storage: Storage | None  # for checkpoints; without it, an adapter is written whenever training ends
    data: Data
    examples: list[Example]  # for training
    held: list[Pack]  # for validation
    fingerprint: str
    batches: Batches
    steps: int
    others: Data | None = None  # the validation file
    checkpoint: Checkpoint | None = None

    @property
    def sources(self) -> list[Data]:
        """All data read."""
        return [self.data, self.others] if self.others else [self.data]

    @property
    def counts(self) -> list[tuple[str, str]]:
        """Statistics about the data."""
        return [
            ("file", Path(self.data.name).name),
            ("examples", str(len(self.examples))),
            ("held out for validation", str(sum(map(len, self.held)))),
            ("tokens, of them learnt", f"{self.data.tokens}, {self.data.targets}"),
            ("truncated to the sequence length", str(sum(data.truncated for data in self.sources))),
            ("bad lines skipped", str(sum(len(data.bad) for data in self.sources))),
        ]


def refuse_adapted(files: ModelFiles) -> None:
    """Refuses a model with its own adapter: an adapter is trained on the base weights and would not fit beside it."""
    if files.adapters:
        base = files.stored.parent if files.stored and files.stored.parent else "its base model"
        raise ModelError(f"{files.name} already includes an adapter; train one for {base} instead.")


def refuse_types(gguf: Gguf) -> None:
    """Refuses weights of a type that the backward pass cannot read."""
    for tensor in gguf.tensors.values():
        if tensor.type in PLANES and tensor.type not in TRAINABLE and not tensor.name.startswith(UNTRAINED):
            raise ModelError(
                f"{tensor.name} has type {tensor.type}, which wgemma runs but cannot train on. Train on a file in "
                "another type, such as Q4_K_M or Q8_0; the adapter works with this one, too."
            )


async def prepare_task(
    source: Source,
    out: str | Path | None,
    given: Mapping[str, Any],
    tokenizer: Tokenizer,
    style: Literal["small", "large"],
    *,
    context: int,
    checkpoints: bool = True,
    system: str | None = None,
    resume: bool = False,
    skip_bad: bool = False,
) -> Task:
    """Reads the data and fixes its order. With `resume`, settings not `given` are the checkpoint's; other steps or
    epochs than its own extend the run, whose schedule then follows the new length."""
    if out is None:
        raise SettingsError("out is missing. Name the folder to write the adapter to.")
    folder = user_path(out, SettingsError)
    if is_held(folder / LOCK):
        raise _busy(folder, owner(folder / LOCK))
    storage = Folder(folder) if checkpoints else None
    checkpoint = await latest(storage) if storage and resume else None
    settings = _settings(checkpoint, given)
    if settings.seq > context:
        raise SettingsError(f"seq is {settings.seq}; this model's context is {context} tokens.")
    if not resume:
        await _refuse_full(folder, storage)
    data, others = read_data(source, tokenizer, style, settings.seq, system=system, skip_bad=skip_bad), None
    if isinstance(settings.validation, str):
        others = read_data(settings.validation, tokenizer, style, settings.seq, system=system, skip_bad=skip_bad)
        examples, held = data.examples, others.examples
        fingerprint = f"{data.fingerprint} {others.fingerprint}"
    else:
        examples, held = split(data.examples, settings.validation, settings.seed)
        fingerprint = data.fingerprint
    if checkpoint is not None:
        checkpoint.refuse_others(settings, fingerprint)
    batches = Batches(examples, settings.batch, settings.seq, settings.seed, settings.packing)
    steps = settings.steps or batches.count(settings.epochs)
    if checkpoint is not None and checkpoint.step > steps:
        raise TrainingError(
            f"{checkpoint.name} is beyond the {counted(steps, 'step')} of this training. Ask for more steps to go on, "
            "or start again in another folder."
        )
    packs = pack(held, settings.seq) if settings.packing else [Pack((example,)) for example in held]
    return Task(settings, folder, storage, data, examples, packs, fingerprint, batches, steps, others, checkpoint)


def _settings(checkpoint: Checkpoint | None, given: Mapping[str, Any]) -> TrainingSettings:
    """The given settings, and the checkpoint's for the rest; epochs replace its steps."""
    before = checkpoint.settings.record() if checkpoint else {}
    if "epochs" in given:
        before.pop("steps", None)
    return TrainingSettings.of({**before, **given})


async def _refuse_full(folder: Path, storage: Storage | None) -> None:
    """Refuses to overwrite a run or an adapter."""
    if mode(folder) and not S_ISDIR(mode(folder)):
        raise TrainingError(f"{folder} is a file. Name a folder to write to.")
    saved = await steps_saved(storage) if storage else []
    if storage and saved:
        raise TrainingError(
            f"{storage.name} contains a training run that reached step {saved[-1]}. Continue it with --resume "
            "(resume=True), or use another folder."
        )
    if mode(folder / "adapter_config.json") or mode(folder / GGUF):
        raise TrainingError(f"{folder} already contains an adapter. Use another folder.")


async def _refuse_changed(task: Task) -> None:
    """Refuses a folder that another run has changed since the task was prepared."""
    if task.checkpoint is None:
        await _refuse_full(task.out, task.storage)
    elif task.storage and (await steps_saved(task.storage))[-1:] != [task.checkpoint.step]:
        raise TrainingError(f"{task.out} was changed by another training. Start again with --resume (resume=True).")


def _busy(folder: Path, owner: str) -> TrainingError:
    return TrainingError(f"{owner} is training into {folder}. Wait until it is done, or use another folder.")


async def finetune(
    task: Task,
    learner: Teachable,
    *,
    base: str,
    model: str,
    progress: Callable[[Progress], None] = lambda progress: None,
    cancel: Cancel | None = None,
    memory: Callable[[], int] = lambda: 0,
) -> TrainingResult:
    """Trains to the end and writes all files, or stops at `cancel` and leaves a checkpoint. Without checkpoints the
    files are written then, too, and also before an error unless the weights are corrupt. `base` is the model's name,
    `model` its fingerprint."""
    trainer = Trainer(
        learner,
        task.batches,
        task.settings,
        task.storage,
        held=task.held,
        model=model,
        data=task.fingerprint,
        cancel=cancel,
        memory=memory,
    )
    with ExitStack() as stack:
        try:  # now, to fail before training rather than after
            task.out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(task.out / LOCK, lambda owner: _busy(task.out, owner)))
        except OSError as error:
            reason = error.strerror or error
            raise TrainingError(f"{task.out} cannot be created: {reason}. Use another folder.") from None
        await _refuse_changed(task)
        if task.checkpoint is not None:
            await trainer.resume(task.checkpoint)
        return await _trained(task, trainer, base, progress)


async def _trained(task: Task, trainer: Trainer, base: str, progress: Callable[[Progress], None]) -> TrainingResult:
    try:
        async for made in trainer.run():
            progress(made)
    except TrainingError:
        if task.storage is None and trainer.step and await trainer.is_sound():
            await _export(task, trainer, base)
        raise
    goes_on = trainer.stopped and task.storage is not None
    if not goes_on:
        await _export(task, trainer, base)
    return TrainingResult(
        out=task.out,
        adapter=None if goes_on else task.out,
        steps=trainer.step,
        losses=trainer.losses,
        validation=trainer.validation,
        truncated=sum(data.truncated for data in task.sources),
        bad=[bad for data in task.sources for bad in data.bad],
        stopped=trainer.stopped,
    )


async def _export(task: Task, trainer: Trainer, base: str) -> None:
    out, settings = task.out, task.settings
    adapter = await trainer.learner.adapter()
    write_peft(adapter, out, base=base, settings={"lora_dropout": settings.dropout})
    write_gguf_adapter(adapter, out / GGUF, base=base)
    losses = {"losses": trainer.losses, "validation": trainer.validation, "settings": settings.record()}
    texts = {
        "losses.json": json.dumps(losses, indent=1),
        "loss.svg": curve(trainer.losses, trainer.validation, f"loss of {Path(out).resolve().name}"),
        "README.md": card(
            base=base,
            settings=settings,
            counts=task.counts,
            steps=trainer.step,
            losses=trainer.losses,
            validation=trainer.validation,
            gguf=GGUF,
        ),
    }
    for name, text in texts.items():
        try:
            with replacing(out / name) as file:
                file.write(text.encode())
        except OSError as error:
            raise TrainingError(f"{out / name} cannot be written: {error.strerror or error}.") from None
