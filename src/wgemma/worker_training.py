"""Training in a web page: handles web/wgemma.js's training messages, which worker.py passes on.

The page keeps no checkpoints. Training that is stopped or fails returns what it has learnt so far.
"""

import re
import tempfile
from asyncio import Event
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wgemma.api import Model
from wgemma.errors import DeviceLost, TrainingError
from wgemma.train.finetune import Task, prepare_task
from wgemma.train.trainer import Progress


async def examined(model: Model, order: Any) -> dict[str, Any]:
    """Summarises a file of examples, and how many steps training on it takes."""
    task = await _task(model, order, "", skip_bad=True)
    return {
        "examples": len(task.examples),
        "held": sum(map(len, task.held)),
        "tokens": task.data.tokens,
        "targets": task.data.targets,
        "truncated": task.data.truncated,
        "bad": [asdict(bad) for bad in task.data.bad],
        "steps": task.steps,
    }


async def trained(model: Model, order: Any, tell: Callable[[str, Any], None], stop: Event) -> None:
    """Reports every step, and finally the folder with the adapter, which is read before `tell` returns."""
    losses: list[float] = []
    validation: list[tuple[int, float]] = []

    def made(progress: Progress) -> None:
        losses.append(progress.loss)
        if progress.validation is not None:
            validation.append((progress.step, progress.validation))
        tell("part", {_camel(name): value for name, value in asdict(progress).items()})

    with tempfile.TemporaryDirectory() as out:
        task = await _task(model, order, out)
        try:
            await model.afinetune(task, out=out, progress=made, cancel=stop)
        except DeviceLost as lost:
            await model.backend.rebuild()  # so the model stays usable
            raise TrainingError(f"{lost} What it had learnt is lost; start the training again.") from None
        finally:
            if any(Path(out).iterdir()):
                told = {"losses": losses, "validation": validation, "steps": task.steps}
                tell("files", {"folder": out, "stopped": len(losses) < task.steps, **told})


async def _task(model: Model, order: Any, out: str, skip_bad: bool = False) -> Task:
    """The training task a message describes; its data are the bytes of a file."""
    given = {_snake(name): value for name, value in order.settings.to_py().items()}
    system, skip_bad = given.pop("system", model._prelude.system), given.pop("skip_bad", False) or skip_bad
    task = await prepare_task(
        order.data.to_bytes(),
        out,
        given,
        model.tokenizer,
        model.prompt_style,
        context=model.backend.context,
        checkpoints=False,
        system=system,
        skip_bad=skip_bad,
    )
    return replace(task, data=replace(task.data, name=str(order.name)))


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), name)
