"""`wgemma finetune MODEL data.jsonl -o out/`: trains a LoRA adapter on the quantised model and writes it for wgemma,
PEFT and llama.cpp. Ctrl-C or SIGTERM finishes the step, saves a checkpoint and prints the command to resume.
"""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from wgemma.api import prompt_style
from wgemma.checks import counted, human_bytes
from wgemma.cli.chat_answer import Stop
from wgemma.cli.chat_model import Opened, open_model
from wgemma.cli.output import clean, human_count, human_seconds
from wgemma.embedded import NAME
from wgemma.errors import DeviceLost
from wgemma.files.download import readable
from wgemma.files.gguf import Gguf
from wgemma.files.locate import locate
from wgemma.model.config import Config
from wgemma.prelude import Prelude
from wgemma.sync import run
from wgemma.text.tokenizer import Tokenizer
from wgemma.train.checkpoints import steps_saved
from wgemma.train.data import SHOWN, Data
from wgemma.train.finetune import Task, TrainingResult, prepare_task, refuse_adapted, refuse_types
from wgemma.train.fitting import capacities, estimate
from wgemma.train.settings import FREE, SCHEDULES, TrainingSettings
from wgemma.train.trainer import Progress

HINT = b"\n(finishing this step, then saving; press Ctrl-C again to stop at once)\n"
LINES = 20  # progress lines per run without a terminal

Hear = Callable[[Progress], None]


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("finetune", help="train a LoRA adapter on your own examples")
    verb.add_argument("model", metavar="MODEL", nargs="?", help="a model's name, a .gguf path or an http(s) URL")
    verb.add_argument("data", metavar="DATA", help="a .jsonl file: messages, prompt and completion, or Alpaca's keys")
    verb.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="write to this folder (default: DATA-lora)")
    verb.add_argument(
        "--resume", action="store_true", help="resume from FOLDER's last checkpoint; more --steps extend the run"
    )
    verb.add_argument("--skip-bad", action="store_true", help="skip bad lines instead of stopping")
    verb.add_argument("--json", action="store_true", help="print one JSON object per line")
    default = TrainingSettings()

    def setting(group: "argparse._ArgumentGroup", flag: str, name: str, kind: Any, told: str, letter: str) -> None:
        value = getattr(default, name)
        shown = ",".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
        told = told if value is None else f"{told} (default: {shown})"
        group.add_argument(flag, dest=name, metavar=letter, type=kind, help=told)

    what = verb.add_argument_group("adapter")
    setting(what, "--rank", "rank", int, "set the rank of A and B", "N")
    setting(what, "--alpha", "alpha", float, "scale the adapter by alpha / rank", "X")
    setting(what, "--targets", "targets", str, "adapt these matrices; also ple_gate, ple_projection, all", "NAMES")
    how = verb.add_argument_group("training")
    setting(how, "--lr", "lr", float, "set the peak learning rate", "X")
    setting(how, "--epochs", "epochs", int, "go through the data N times", "N")
    setting(how, "--steps", "steps", int, "train for N steps instead of epochs", "N")
    setting(how, "--batch", "batch", int, "put N sequences in a step", "N")
    setting(how, "--seq", "seq", int, "put at most N tokens in a sequence", "N")
    setting(how, "--warmup", "warmup", float, "warm up for this many steps, or this share if below 1", "X")
    how.add_argument("--schedule", choices=SCHEDULES, help="choose how the learning rate decays (default: cosine)")
    setting(how, "--seed", "seed", int, "fix the random seed; the same seed gives the same adapter", "N")
    setting(how, "--dropout", "dropout", float, "drop this share of the adapter's inputs", "X")
    setting(how, "--weight-decay", "weight_decay", float, "decay the adapter's weights", "X")
    setting(how, "--clip", "clip", float, "clip the gradient norm; 0: never", "X")
    setting(how, "--validation", "validation", _share_or_file, "hold out this share, or validate on a file", "X")
    setting(how, "--save-every", "save_every", int, "save a checkpoint and validate every N steps", "N")
    how.add_argument("--no-packing", dest="packing", action="store_const", const=False, help="do not pack examples")
    load = verb.add_argument_group("loading")
    load.add_argument(
        "--ple", choices=("auto", "gpu", "host"), default="auto", help="keep the per-layer table there (default: auto)"
    )
    load.add_argument("--device", metavar="NAME", help="use this GPU adapter, a number or part of a name")
    verb.set_defaults(do=finetune)


def _share_or_file(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def finetune(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in TrainingSettings.__dataclass_fields__ if hasattr(options, name)}
    given = {name: value for name, value in given.items() if value is not None}
    TrainingSettings.of(given)  # reports a bad setting before anything is read
    target = options.model if options.model is not None else NAME
    out = options.output if options.output is not None else Path(f"{Path(options.data).stem}-lora")
    teller = _Json() if options.json else _Plain()
    task = _prepared(target, out, given, options)
    teller.data(task)
    options.context, options.kv, options.precision = task.settings.seq, "f16", "exact"
    opened = open_model(target, options, quiet=options.json)
    again, stop = _again(options, out), Stop(HINT, (signal.SIGINT, signal.SIGTERM))
    try:
        result = _trained(opened, task, teller, stop)
    except DeviceLost as trouble:
        raise DeviceLost(f"{trouble}.{_what_is_left(task, again)}") from None
    finally:
        opened.close()
    teller.end(result, task, target, again)
    return stop.exit_code if result.stopped else 0


def _again(options: argparse.Namespace, out: Path) -> str:
    """The command to resume. The settings are in the checkpoint, except those a resumed run may change."""
    words = ["wgemma", "finetune", *([options.model] if options.model is not None else []), options.data]
    changed = {name: getattr(options, name, None) for name in FREE if options.resume}
    words += ["-o", str(out), "--resume", *(["--skip-bad"] if options.skip_bad else [])]
    words += ["--device", options.device] if options.device else []
    words += ["--ple", options.ple] if options.ple != "auto" else []
    for name, value in changed.items():
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    return shlex.join(words)


def _what_is_left(task: Task, again: str) -> str:
    """How to resume after the device was lost, if there is a checkpoint."""
    saved = run(steps_saved(task.storage)) if task.storage else []
    return f" Step {saved[-1]} is saved; resume with: {again}" if saved else ""


def _prepared(target: str, out: Path, given: dict[str, Any], options: argparse.Namespace) -> Task:
    """The prepared data. Needs only the model's header, so mistakes surface before gigabytes are loaded."""
    files = locate(target)
    refuse_adapted(files)
    with Gguf.open(readable(files.model)) as gguf:
        refuse_types(gguf)
        context = Config.from_gguf(gguf).context_length
        tokenizer, style = Tokenizer.from_gguf(gguf), prompt_style(files, gguf)
    system = Prelude.of(files).system
    more = {"context": context, "system": system, "resume": options.resume, "skip_bad": options.skip_bad}
    return run(prepare_task(options.data, out, given, tokenizer, style, **more))


def _trained(opened: Opened, task: Task, teller: "_Plain | _Json", stop: Stop) -> TrainingResult:
    engine = opened.model.backend.runner.engine
    rows = capacities(engine, task.settings)
    teller.start(task, estimate(engine, task.settings, rows[0]).nbytes if rows else None)
    with stop, teller.progress(task) as hear:
        return opened.model.finetune(task, out=task.out, progress=hear, cancel=stop)


# -- for people


class _Plain:
    """Progress on standard error, the result on standard output."""

    def data(self, task: Task) -> None:
        data, held = task.data, sum(map(len, task.held))
        facts = [counted(len(task.examples), "example")] + ([f"{held} more for validation"] if held else [])
        facts.append(f"{human_count(data.tokens)} tokens, {human_count(data.targets)} of them trained on")
        _tell(f"{Path(data.name).name}: {', '.join(facts)}")
        for source in task.sources:
            where = Path(source.name).name
            if source.truncated:
                _tell(f"{where}: {source.truncated} cut to {task.settings.seq} tokens (--seq allows more)")
            if source.bad:
                _tell(f"{where}: {len(source.bad)} bad, skipped: lines {_bad_lines(source)}")

    def start(self, task: Task, memory: int | None) -> None:
        s, begun = task.settings, task.checkpoint.step if task.checkpoint else 0
        from_ = f", resuming after step {begun}" if begun else ""
        room = f", {human_bytes(memory)} on top of the model" if memory is not None else ""
        shape = f"rank {s.rank} on {','.join(s.targets)}"
        _tell(f"{counted(task.steps, 'step')} of {s.batch} × {s.seq} tokens{from_}, {shape}{room}")

    @contextmanager
    def progress(self, task: Task) -> Iterator[Hear]:
        if sys.stderr.isatty():
            with _bar(task) as hear:
                yield hear
        else:
            every = max(1, task.steps // LINES)

            def hear(made: Progress) -> None:
                if made.step % every == 0 or made.step == made.steps or made.validation is not None:
                    _tell(f"step {made.step}/{made.steps}: {', '.join(_figures(made).values())}")

            yield hear

    def end(self, result: TrainingResult, task: Task, target: str, again: str) -> None:
        if result.stopped:
            _tell(f"Stopped after step {result.steps} of {task.steps}; everything is saved. Resume with:\n  {again}")
            return
        change = f"loss {result.losses[0]:.4f} → {result.losses[-1]:.4f}"
        held = f", validation {result.validation[-1][1]:.4f}" if result.validation else ""
        print(f"Adapter written to {result.out}: {change}{held} in {counted(result.steps, 'step')}. Try it:")
        print(f"  {shlex.join(['wgemma', 'run', target, '--adapter', str(result.out)])}")


def _tell(text: str) -> None:
    print(clean(text), file=sys.stderr, flush=True)


def _bad_lines(data: Data) -> str:
    numbers = ", ".join(str(bad.line) for bad in data.bad[:SHOWN])
    return numbers + (", …" if len(data.bad) > SHOWN else "")


def _figures(made: Progress) -> dict[str, str]:
    figures = {"loss": f"loss {made.loss:.4f}"}
    if made.validation is not None:
        figures["validation"] = f"validation {made.validation:.4f}"
    figures["rate"] = f"{made.tokens_per_second:.0f} tokens/s"
    figures["memory"] = human_bytes(made.memory)
    figures["left"] = f"{human_seconds(made.seconds_left)} left"
    return figures


@contextmanager
def _bar(task: Task) -> Iterator[Hear]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("training"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        begun = task.checkpoint.step if task.checkpoint else 0
        shown = bars.add_task("training", total=task.steps, completed=begun, told="")
        held = ""

        def hear(made: Progress) -> None:
            nonlocal held
            figures = _figures(made)
            held = figures.pop("validation", held)
            told = " · ".join([figures.pop("loss"), *([held] if held else []), *figures.values()])
            bars.update(shown, completed=made.step, told=told)

        yield hear


# -- for machines


class _Json:
    """One object per line on standard output: start, every step, then end or stopped."""

    def data(self, task: Task) -> None:
        """Nothing: `start` reports it all."""

    def start(self, task: Task, memory: int | None) -> None:
        data = task.data
        self._print(
            "start",
            examples=len(task.examples),
            held_out=sum(map(len, task.held)),
            tokens=data.tokens,
            targets=data.targets,
            truncated=sum(source.truncated for source in task.sources),
            bad=[{"file": source.name, **asdict(bad)} for source in task.sources for bad in source.bad],
            steps=task.steps,
            done=task.checkpoint.step if task.checkpoint else 0,
            memory=memory,
            settings=task.settings.record(),
        )

    @contextmanager
    def progress(self, task: Task) -> Iterator[Hear]:
        yield lambda made: self._print("step", **asdict(made))

    def end(self, result: TrainingResult, task: Task, target: str, again: str) -> None:
        adapter = None if result.adapter is None else str(result.adapter)
        told = {"steps": result.steps, "losses": result.losses, "validation": result.validation, "adapter": adapter}
        if result.stopped:
            told["resume"] = again
        self._print("stopped" if result.stopped else "end", **told)

    def _print(self, event: str, **facts: Any) -> None:
        finite = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in facts.items()}
        print(json.dumps({"event": event, **finite}), flush=True)
