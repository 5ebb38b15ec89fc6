"""Training state on disk: everything needed to resume exactly where it stopped, written all or nothing.

    checkpoint-40/state.json    version, step, settings, losses so far, fingerprints of model and data; sizes
                                and SHA-256 of the other files
    checkpoint-40/values.bin    A and B of every target, f32, in GPU layout
    checkpoint-40/first.bin     Adam's two moments
    checkpoint-40/second.bin
    checkpoint-40/adapter_*     the same A and B as a PEFT adapter, to try and to compare

The order of the data follows from the settings, the data and the step. A checkpoint is written under a temporary name
and then renamed, and the last two are kept: whatever happens during a write, the previous one is intact.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wgemma.errors import SettingsError, TrainingError
from wgemma.files.adapters import AdapterFile, peft_files
from wgemma.files.json_text import parse_json
from wgemma.files.paths import user_path
from wgemma.files.reading import regular_file
from wgemma.files.writing import settle, settle_folder
from wgemma.train.settings import TrainingSettings

VERSION = 1
KEPT = 2
STATE = "state.json"
MAX_STATE = 256 << 20  # bytes of state.json: some 10 million steps
MAX_TENSOR = 64 << 30
_PREFIX, _PART, _FILE = "checkpoint-", ".part", ".bin"
_NAME = re.compile(_PREFIX + "([1-9][0-9]{0,11})")  # as `Checkpoint.name` writes it: checkpoint-007 is something else
_FILE_NAME = re.compile(r"[a-z]+\.bin")


class Storage(Protocol):
    """Where checkpoints are stored: a folder, or a web page's equivalent. Failures raise OSError or TrainingError."""

    name: str

    async def names(self) -> list[str]: ...
    async def save(self, name: str, files: Mapping[str, bytes]) -> None:
        """Writes the files under one name, all or none."""
        ...

    async def load(self, name: str, file: str, most: int) -> bytes:
        """One of the files; more than `most` bytes raise an error."""
        ...

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
    adapter: AdapterFile | None = None  # written for others; never read back

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
        self.path = user_path(path, TrainingError)
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
                    settle(file)
            settle_folder(part)
            part.rename(self.path / name)
            settle_folder(self.path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    async def load(self, name: str, file: str, most: int) -> bytes:
        with regular_file(self.path / name / file, most, TrainingError) as opened:
            return opened.read(most)

    async def remove(self, name: str) -> None:
        shutil.rmtree(self.path / name, ignore_errors=True)


async def steps_saved(storage: Storage) -> list[int]:
    """The steps that have a checkpoint, in order."""
    try:
        names = [_NAME.fullmatch(name) for name in await storage.names()]
    except OSError as error:
        raise TrainingError(f"{storage.name} cannot be read: {error.strerror or error}.") from None
    return sorted(int(name[1]) for name in names if name)


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
        return await _opened(storage, name, steps[-1])
    except OSError as error:
        raise TrainingError(f"{name} in {storage.name} cannot be read: {error.strerror or error}.") from None
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, SettingsError):
        reason = f"{name} in {storage.name} is damaged or from another version of wgemma."
    except TrainingError as error:
        reason = str(error)
    other = f" Delete {name} to resume from {_PREFIX}{steps[-2]}." if len(steps) > 1 else ""
    raise TrainingError(reason + other)


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
    adapter = peft_files(checkpoint.adapter) if checkpoint.adapter else {}
    return {**files, **adapter, STATE: json.dumps(state, indent=1).encode()}


async def _opened(storage: Storage, name: str, step: int) -> Checkpoint:
    """A checkpoint, of which nothing is believed: sizes before contents, types before values."""
    state: dict[str, Any] = parse_json(await storage.load(name, STATE, MAX_STATE))
    losses, validation = state["losses"], state["validation"]
    numbers = [*losses, *(loss for _, loss in validation)]
    steps = [state["step"], *(at for at, _ in validation)]
    _expect(state["version"] == VERSION and state["step"] == step == len(losses))
    _expect(all(type(at) is int and 0 < at <= step for at in steps))
    _expect(all(type(loss) in (int, float) for loss in numbers))
    _expect(all(isinstance(state[key], str) for key in ("model", "data")))
    tensors = {}
    for file, facts in state["files"].items():
        size = facts["size"]
        _expect(_FILE_NAME.fullmatch(file) is not None and type(size) is int and 0 <= size <= MAX_TENSOR)
        data = await storage.load(name, file, size)
        _expect(len(data) == size and _hash(data) == facts["sha256"])
        tensors[file.removesuffix(_FILE)] = data
    return Checkpoint(
        step=step,
        settings=TrainingSettings.of(state["settings"]),
        model=state["model"],
        data=state["data"],
        tensors=tensors,
        losses=[float(loss) for loss in losses],
        validation=[(at, float(loss)) for at, loss in validation],
    )


def _expect(true: bool) -> None:
    if not true:
        raise ValueError("not a checkpoint of this version")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
