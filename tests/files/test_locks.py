"""A lock is held by one process at a time; a dead process holds nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from platform import node
from threading import Thread

import pytest

from wgemma.errors import TrainingError
from wgemma.files.locks import is_held, locked

HOLDER = """
import sys, time
from pathlib import Path
from wgemma.errors import Error
from wgemma.files.locks import locked

with locked(Path(sys.argv[1]), Error):
    print("held", flush=True)
    time.sleep(60)
"""
COUNTER = """
from pathlib import Path
from wgemma.errors import Error
from wgemma.files.locks import locked

turns = 0
while turns < 100:
    try:
        with locked(Path(folder, "x.lock"), Error):
            count = Path(folder, "count")
            count.write_text(str(int(count.read_text()) + 1))
            turns += 1
    except Error:
        pass
"""


@contextmanager
def held_by_another(lock: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("again", ["x.lock", "folder/../x.lock", "link/x.lock"])
def test_a_second_holder_is_refused_by_whatever_name(tmp_path: Path, again: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    with locked(tmp_path / "x.lock", TrainingError):
        assert is_held(tmp_path / again)
        with pytest.raises(TrainingError, match=f"^process {os.getpid()} on "), locked(tmp_path / again, TrainingError):
            pass
    assert not is_held(tmp_path / again) and not (tmp_path / "x.lock").exists()


def test_another_process_is_named_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with held_by_another(lock) as process:
        assert is_held(lock)
        expected = f"process {process.pid} on {node()}"
        with pytest.raises(TrainingError, match=f"^{expected}$"), locked(lock, TrainingError):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock.exists()
        with locked(lock, TrainingError):
            assert lock.read_text() == f"{os.getpid()} {node()}"
    assert not lock.exists()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("1 some-container")
    assert not is_held(lock) and not lock.exists()


def test_two_processes_and_two_threads_take_turns(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", f"folder = {str(tmp_path)!r}\n{COUNTER}"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    threads = [Thread(target=exec, args=(COUNTER, {"folder": tmp_path})) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0]
    assert (tmp_path / "count").read_text() == "400"


def test_a_link_in_the_locks_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "x.lock").symlink_to(tmp_path / "mine")
    with locked(tmp_path / "x.lock", TrainingError):
        assert (tmp_path / "mine").read_text() == "mine"


def test_a_pipe_in_the_locks_place_does_not_block(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    os.mkfifo(lock)
    with pytest.raises(TrainingError, match=r"process \?"), locked(lock, TrainingError):
        pass
