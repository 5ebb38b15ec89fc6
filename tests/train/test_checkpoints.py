"""A checkpoint is all there or not at all, and only the run it belongs to can go on from it."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from full_disk import files_of_at_most
from wgemma.errors import TrainingError
from wgemma.sync import run
from wgemma.train.checkpoints import Checkpoint, Folder, latest, save, steps_saved
from wgemma.train.settings import TrainingSettings

TENSORS = {"values": b"\1" * 4000, "first": b"\2" * 4000, "second": b"\3" * 4000}


def at(step: int, **more: Any) -> Checkpoint:
    made = {"settings": TrainingSettings(rank=4), "model": "m", "data": "d", "tensors": TENSORS, "losses": [1.0] * step}
    made |= more
    return Checkpoint(step, **made)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "out")


def test_what_is_read_is_what_was_written(folder: Folder) -> None:
    written = at(2, losses=[2.5, 0.1 + 0.2], validation=[(2, 1.5)])
    run(save(folder, written))
    assert run(latest(folder)) == written


def test_the_last_two_are_kept(folder: Folder) -> None:
    for step in (5, 10, 15, 100):
        run(save(folder, at(step)))
    assert run(steps_saved(folder)) == [15, 100]
    assert run(latest(folder)).step == 100


def test_a_disk_that_is_full_leaves_the_old_one_intact_and_says_so(folder: Folder) -> None:
    run(save(folder, at(10)))
    with files_of_at_most(2000), pytest.raises(TrainingError) as caught:
        run(save(folder, at(20)))
    assert str(caught.value).startswith(f"checkpoint-20 cannot be written to {folder.path}: File too large. ")
    assert "checkpoint-10 is intact. Free some space and continue with --resume" in str(caught.value)
    assert run(latest(folder)) == at(10)
    assert [entry.name for entry in folder.path.iterdir()] == ["checkpoint-10"]
    run(save(folder, at(20)))
    assert run(latest(folder)) == at(20)


def test_the_first_one_may_fail_too(folder: Folder) -> None:
    with files_of_at_most(2000), pytest.raises(TrainingError, match=r"File too large\.$"):
        run(save(folder, at(20)))


def test_what_a_killed_run_left_half_written_is_no_checkpoint(folder: Folder) -> None:
    run(save(folder, at(10)))
    half = folder.path / "checkpoint-20.part"
    half.mkdir()
    (half / "values.bin").write_bytes(b"half")
    assert run(latest(folder)).step == 10
    run(save(folder, at(20)))
    assert not half.exists() and run(latest(folder)).step == 20


@pytest.mark.parametrize("file", ["values.bin", "first.bin", "state.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_damaged_one_is_refused(file: str, harm: str, folder: Folder) -> None:
    run(save(folder, at(10)))
    run(save(folder, at(20)))
    path = folder.path / "checkpoint-20" / file
    data = path.read_bytes()
    match harm:
        case "cut":
            path.write_bytes(data[:-1])
        case "flip":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case _:
            path.unlink()
    with pytest.raises(
        TrainingError, match=r"checkpoint-20.*(is damaged|No such).*Delete checkpoint-20 to resume from checkpoint-10"
    ):
        run(latest(folder))


DEEP = "[" * 100_000
STATES = ["[]", "{}", "null", '{"version": 2}', '{"version": 1, "files": []}', DEEP, '{"a":' * 100_000, "NaN", "\udc80"]


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_a_state_of_another_kind_is_refused(state: str, folder: Folder) -> None:
    run(save(folder, at(10)))
    (folder.path / "checkpoint-10" / "state.json").write_text(state, errors="surrogateescape")
    with pytest.raises(TrainingError, match="damaged or from another version"):
        run(latest(folder))


WRONG: list[dict[str, Any]] = [
    *({"step": step} for step in (-5, 0, 9, 11, 10.0, 1e9, 10**9, True, "10", None, [10])),
    *({"losses": losses} for losses in ([], [1.0] * 9, ["1"] * 10, [float("nan")] * 10, [10**400] * 10, 5, {})),
    *({"validation": pairs} for pairs in ([[11, 1.0]], [[0, 1.0]], [[1.5, 1.0]], [[1]], [1], [[1, 10**400]], {"a": 1})),
    *({"model": name} for name in (5, None, ["m"])),
    *({"settings": given} for given in ([], 5, {"rank": 10**400}, {"lr": 10**400}, {"none": 1}, {"targets": 5})),
    *({"files": files} for files in ([], 5, {"values.bin": 5}, {"values.bin": {"size": -1, "sha256": ""}})),
    *({"files": {name: {"size": 0, "sha256": ""}}} for name in ("../x.bin", "/etc/passwd", "state.json", "")),
    {"files": {"values.bin": {"size": 10**18, "sha256": ""}}},
]


@pytest.mark.parametrize("facts", WRONG, ids=range(len(WRONG)))
def test_a_state_with_impossible_facts_is_refused(facts: dict[str, Any], folder: Folder) -> None:
    run(save(folder, at(10)))
    path = folder.path / "checkpoint-10" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    with pytest.raises(TrainingError, match="damaged or from another version"):
        run(latest(folder))


def test_a_name_that_is_never_written_is_no_checkpoint(folder: Folder) -> None:
    run(save(folder, at(5)))
    for number in ("007", "0", "+8", "8.part", "٩", "9" * 5000, "1" * 200, ""):
        with suppress(OSError):  # a name too long for the disk
            (folder.path / f"checkpoint-{number}").mkdir()
    assert run(steps_saved(folder)) == [5]
    assert run(latest(folder)).step == 5


def test_a_checkpoint_is_read_by_its_sizes_and_never_waited_for(folder: Folder) -> None:
    run(save(folder, at(10)))
    values = folder.path / "checkpoint-10" / "values.bin"
    with values.open("ab") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(TrainingError, match=r"has 1,099,511,627,776 bytes; the limit is 4,000"):
        run(latest(folder))
    values.unlink()
    os.mkfifo(values)
    with pytest.raises(TrainingError, match="is a device or a pipe"):
        run(latest(folder))


def test_without_any_there_is_nothing_to_go_on_from(folder: Folder) -> None:
    with pytest.raises(TrainingError, match=r"has no checkpoint to resume from\. Start without --resume"):
        run(latest(folder))


def test_another_model_data_or_settings_are_refused() -> None:
    made = at(10)
    made.refuse_model("m")
    made.refuse_others(TrainingSettings(rank=4, save_every=2), "d")
    made.refuse_others(TrainingSettings(rank=4, lr=1e-5, clip=0.3), "d")  # what a run that went wrong wants lowered
    with pytest.raises(TrainingError, match="checkpoint-10 belongs to another model"):
        made.refuse_model("x")
    with pytest.raises(TrainingError, match="checkpoint-10 was made with other examples"):
        made.refuse_others(TrainingSettings(rank=4), "x")
    with pytest.raises(TrainingError, match=r"other settings \(rank 4, now 8\)"):
        made.refuse_others(TrainingSettings(rank=8), "d")
