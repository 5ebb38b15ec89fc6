"""A lock is held by one process at a time; a dead process holds nothing."""

import os
import subprocess
import sys
from pathlib import Path
from platform import node

import pytest

from wgemma.errors import TrainingError
from wgemma.files.locks import break_if_stale, is_held, locked


def gone_pid() -> int:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize("again", ["x.lock", "folder/../x.lock", "link/x.lock"])
def test_a_second_holder_is_refused_by_whatever_name(tmp_path: Path, again: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    with locked(tmp_path / "x.lock", TrainingError):
        assert is_held(tmp_path / again)
        with pytest.raises(TrainingError, match=f"^process {os.getpid()} on "), locked(tmp_path / again, TrainingError):
            pass
    assert not is_held(tmp_path / again) and not (tmp_path / "x.lock").exists()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(f"{gone_pid()} {node()}")
    assert not is_held(lock)
    with locked(lock, TrainingError):
        assert is_held(lock) and lock.read_text() == f"{os.getpid()} {node()}"


def test_the_lock_of_another_host_counts(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(f"12 not-{node()}")
    with pytest.raises(TrainingError, match="process 12 on not-"), locked(lock, TrainingError):
        pass


def test_a_pipe_in_the_locks_place_does_not_block(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    os.mkfifo(lock)
    with pytest.raises(TrainingError, match=r"process \?"), locked(lock, TrainingError):
        pass


def test_a_process_killed_while_it_breaks_a_lock_blocks_nobody(tmp_path: Path) -> None:
    lock, dead = tmp_path / "x.lock", f"{gone_pid()} {node()}"
    for name in ("x.lock", "x.lock.guard"):
        (tmp_path / name).write_text(dead)
    with locked(lock, TrainingError):
        assert is_held(lock)
    (tmp_path / "x.lock").write_text(dead)
    break_if_stale(lock)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_in_use_is_not_broken(tmp_path: Path) -> None:
    with locked(tmp_path / "x.lock", TrainingError):
        break_if_stale(tmp_path / "x.lock")
        assert is_held(tmp_path / "x.lock")
