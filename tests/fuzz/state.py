"""What wgemma itself saved, after someone else had it: sessions and training checkpoints."""

import hashlib
import json
import shutil
import struct
import tempfile
from pathlib import Path
from random import Random

import wgemma
from fuzz.harness import Reader
from fuzz.mutation import json_bytes, mutate
from wgemma.engine.saved import MAGIC
from wgemma.sync import run
from wgemma.train.checkpoints import STATE, Checkpoint, Folder, latest, save
from wgemma.train.settings import TrainingSettings

PROMPT = [2, *range(30, 90)]


def session_reader(model: wgemma.Model, scratch: Path) -> Reader:
    """Most headers are changed and signed again, as an attacker would."""
    list(model.generate(PROMPT, max_tokens=2, temperature=0))
    path = scratch / "session"
    model.save(path)
    good = path.read_bytes()
    (length,) = struct.unpack_from("<I", good, len(MAGIC))
    start = len(MAGIC) + 4
    header, body = json.loads(good[start : start + length]), good[start + length : -32]

    def make(dice: Random) -> bytes:
        if dice.random() < 0.2:
            return mutate(good, dice)
        changed = json_bytes(header, dice)
        claimed = dice.choice((len(changed), len(changed), len(changed), len(changed) + 1, 2**32 - 1))
        data = MAGIC + struct.pack("<I", claimed) + changed + (body if dice.random() < 0.9 else mutate(body, dice))
        return data + hashlib.sha256(data).digest()

    def examine(data: bytes) -> str:
        path.write_bytes(data)
        model.restore(path)
        return "restored"

    return Reader("session", 40, make, examine)


def checkpoint_reader(scratch: Path) -> Reader:
    tensors = {"values": b"\1" * 400, "first": b"\2" * 400, "second": b"\3" * 400}
    written = Checkpoint(2, TrainingSettings(rank=4), "m", "d", tensors, [2.5, 0.5], [(2, 1.5)])
    folder = scratch / "training"
    run(save(Folder(folder), written))
    files = {file.name: file.read_bytes() for file in (folder / written.name).iterdir()}
    state = json.loads(files[STATE])

    def make(dice: Random) -> tuple[str, dict[str, bytes]]:
        changed = dict(files)
        if dice.random() < 0.8:
            changed[STATE] = json_bytes(state, dice)
        else:
            name = dice.choice(list(files))
            changed[name] = mutate(files[name], dice)
        names = ("checkpoint-2", "checkpoint-2", "checkpoint-2", "checkpoint-02", "checkpoint-99999999999999999999")
        return dice.choice(names), changed

    def examine(case: tuple[str, dict[str, bytes]]) -> str:
        shutil.rmtree(folder)
        (folder / case[0]).mkdir(parents=True)
        for name, data in case[1].items():
            (folder / case[0] / name).write_bytes(data)
        found = run(latest(Folder(folder)))
        assert found.step > 0, f"step {found.step}"
        return "resumed"

    return Reader("checkpoint", 50, make, examine)


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """In memory if there is such a place: every input is written to a file."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
