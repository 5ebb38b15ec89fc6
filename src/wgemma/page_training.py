"""Training in a web page: the orders of web/wgemma.js that page.py passes on, answered by the trainer itself.

Nothing of it is kept in the page. A training that is stopped, or that cannot go on, gives what was learnt so far.
"""

import re
import tempfile
from asyncio import Event
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wgemma.api import Model
from wgemma.engine.backend import GpuBackend
from wgemma.errors import DeviceLost, TrainingError
from wgemma.train.finetune import Task, prepare_task
from wgemma.train.trainer import Progress


async def examined(model: Model, order: Any) -> dict[str, Any]:
    """What is in a file of examples, and how many steps a training with them would have."""
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
    """Tells of every step, and at last of the folder with the adapter: it is read before `tell` returns."""
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
            assert isinstance(model.backend, GpuBackend)
            await model.backend.rebuild()  # for what comes next
            raise TrainingError(f"{lost} What was learnt is lost with it: begin the training again.") from None
        finally:
            if any(Path(out).iterdir()):
                told = {"losses": losses, "validation": validation, "steps": task.steps}
                tell("files", {"folder": out, "stopped": len(losses) < task.steps, **told})


async def _task(model: Model, order: Any, out: str, skip_bad: bool = False) -> Task:
    """A training by the settings of an order; its data are the bytes of a file."""
    given = {_snake(name): value for name, value in order.settings.to_py().items()}
    system, skip_bad = given.pop("system", None), given.pop("skip_bad", False) or skip_bad
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
