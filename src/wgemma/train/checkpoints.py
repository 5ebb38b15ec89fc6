"""Training state on disk: everything needed to resume exactly where it stopped, written all or nothing.

    checkpoint-40/state.json    version, step, settings, losses so far, fingerprints of model and data; sizes
                                and SHA-256 of the other files
    checkpoint-40/values.bin    A and B of every target, f32, in GPU layout
    checkpoint-40/first.bin     Adam's two moments
    checkpoint-40/second.bin

The order of the data follows from the settings, the data and the step. A checkpoint is written under a temporary name
and then renamed, and the last two are kept: whatever happens during a write, the previous one is intact.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wgemma.errors import SettingsError, TrainingError
from wgemma.train.settings import TrainingSettings

VERSION = 1
KEPT = 2
STATE = "state.json"
_PREFIX, _PART, _FILE = "checkpoint-", ".part", ".bin"


class Storage(Protocol):
    """Where checkpoints are stored: a folder, or a web page's equivalent. Failures raise OSError."""

    name: str

    async def names(self) -> list[str]: ...
    async def save(self, name: str, files: Mapping[str, bytes]) -> None:
        """Writes the files under one name, all or none."""
        ...

    async def load(self, name: str) -> dict[str, bytes]: ...
    async def remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after `step` updates."""

    step: int
    settings: TrainingSettings
    model: str
    data: str
    tensors: dict[str, bytes]
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.step}"

    def refuse_model(self, model: str) -> None:
        if model != self.model:
            raise TrainingError(f"{self.name} belongs to another model. Use the one it was trained with.")

    def refuse_others(self, settings: TrainingSettings, data: str) -> None:
        """Raises `TrainingError` if the settings or examples differ from this checkpoint's."""
        differing = self.settings.differences(settings)
        if differing:
            told = "; ".join(differing)
            raise TrainingError(f"{self.name} was made with other settings ({told}). Use the same ones to resume.")
        if data != self.data:
            raise TrainingError(
                f"{self.name} was made with other examples. Resume with the original file, "
                "or start again in another folder."
            )


class Folder:
    """Checkpoints as folders in a folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.name = str(path)

    async def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return [entry.name for entry in self.path.iterdir() if entry.is_dir()]

    async def save(self, name: str, files: Mapping[str, bytes]) -> None:
        part = self.path / (name + _PART)
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            for file_name, data in files.items():
                with (part / file_name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # before the rename, or a power cut could leave a truncated file
            part.rename(self.path / name)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    async def load(self, name: str) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (self.path / name).iterdir() if file.is_file()}

    async def remove(self, name: str) -> None:
        shutil.rmtree(self.path / name, ignore_errors=True)


async def steps_saved(storage: Storage) -> list[int]:
    """The steps that have a checkpoint, in order."""
    numbers = (name.removeprefix(_PREFIX) for name in await storage.names() if name.startswith(_PREFIX))
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


async def save(storage: Storage, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint, then deletes all but the last two."""
    before = await steps_saved(storage)
    try:
        await storage.save(checkpoint.name, _files(checkpoint))
    except OSError as error:
        reason = error.strerror or error
        intact = f" {_PREFIX}{before[-1]} is intact. Free some space and continue with --resume." if before else ""
        raise TrainingError(f"{checkpoint.name} cannot be written to {storage.name}: {reason}.{intact}") from None
    for step in [step for step in before if step != checkpoint.step][: -(KEPT - 1)]:
        await storage.remove(f"{_PREFIX}{step}")


async def latest(storage: Storage) -> Checkpoint:
    """The last checkpoint, verified."""
    steps = await steps_saved(storage)
    if not steps:
        raise TrainingError(f"{storage.name} has no checkpoint to resume from. Start without --resume.")
    name = f"{_PREFIX}{steps[-1]}"
    try:
        files = await storage.load(name)
    except OSError as error:
        raise TrainingError(f"{name} in {storage.name} cannot be read: {error.strerror or error}.") from None
    try:
        return _opened(files)
    except (KeyError, ValueError, TypeError, AttributeError, SettingsError):
        other = f" Delete it to resume from {_PREFIX}{steps[-2]}." if len(steps) > 1 else ""
        raise TrainingError(f"{name} in {storage.name} is damaged or from another version of wgemma.{other}") from None


def _files(checkpoint: Checkpoint) -> dict[str, bytes]:
    files = {name + _FILE: data for name, data in checkpoint.tensors.items()}
    state = {
        "version": VERSION,
        "step": checkpoint.step,
        "model": checkpoint.model,
        "data": checkpoint.data,
        "settings": checkpoint.settings.record(),
        "losses": checkpoint.losses,
        "validation": checkpoint.validation,
        "files": {name: {"size": len(data), "sha256": _hash(data)} for name, data in files.items()},
    }
    return {**files, STATE: json.dumps(state, indent=1).encode()}


def _opened(files: dict[str, bytes]) -> Checkpoint:
    state: dict[str, Any] = json.loads(files[STATE])
    if state["version"] != VERSION:
        raise ValueError("another version")
    for name, facts in state["files"].items():
        if len(files[name]) != facts["size"] or _hash(files[name]) != facts["sha256"]:
            raise ValueError(f"{name} is not what was written")
    return Checkpoint(
        step=int(state["step"]),
        settings=TrainingSettings.of(state["settings"]),
        model=str(state["model"]),
        data=str(state["data"]),
        tensors={name.removesuffix(_FILE): files[name] for name in state["files"]},
        losses=[float(loss) for loss in state["losses"]],
        validation=[(int(step), float(loss)) for step, loss in state["validation"]],
    )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
