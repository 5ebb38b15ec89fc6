"""`wgemma batch --ray` on a real Ray: no request is lost or answered twice, also when a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batch_files import chat, records, sums, texts, write
from processes import descendants
from wgemma.cli import main, parser

REQUESTS, RESULTS = "requests.jsonl", "results.jsonl"
BATCH = ["batch", REQUESTS, "-o", RESULTS, "--context", "256", "--slots", "8"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own-store"))


def test_an_address_follows_ray_or_not() -> None:
    def asked(*words: str) -> tuple[str, str | None]:
        options = parser().parse_args(["batch", "-o", "x", *words])
        return options.requests, options.ray

    assert asked("a.jsonl") == ("a.jsonl", None)
    assert asked("--ray", "a.jsonl") == asked("a.jsonl", "--ray") == ("a.jsonl", "local")
    assert asked("--ray", "head:6379", "a.jsonl") == ("a.jsonl", "head:6379")
    assert asked("a.jsonl", "--ray", "auto") == ("a.jsonl", "auto")


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    write(Path(REQUESTS), sums(1))
    assert main([*BATCH, "--ray"]) == 1
    assert "pip install 'wgemma[ray]'" in capsys.readouterr().err


def test_workers_are_rays(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path(REQUESTS), sums(1))
    assert main([*BATCH, "--workers", "2"]) == 1
    assert "add --ray" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_a_killed_worker_costs_no_answer(workers: int, ray_folder: Path) -> None:
    write(Path(REQUESTS), [*sums(500), "nonsense"])
    with _batch("--ray", "--workers", str(workers)) as process:
        _wait_for(process, 60)
        engines = _engines(process.pid)
        assert len(engines) == workers
        os.kill(engines[0], signal.SIGKILL)
        _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    found = records(Path(RESULTS))
    assert len(found) == 501 and len({one["id"] for one in found}) == 501
    assert [one["error"]["code"] for one in found if one["error"]] == ["invalid_json_line"]
    answers = {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in found
        if one["response"] is not None
    }
    write(Path(REQUESTS), sums(500))
    assert main([*BATCH[:3], "alone.jsonl", *BATCH[4:]]) == 0
    assert answers == texts(Path("alone.jsonl"))


@pytest.mark.slow
def test_a_killed_job_goes_on_and_nothing_is_done_twice(ray_folder: Path) -> None:
    write(Path(REQUESTS), sums(120))
    with _batch("--ray") as process:
        _wait_for(process, 10)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert "--resume" in said and "--ray local" in said
    kept = Path(RESULTS).read_bytes()
    with _batch("--ray", "--resume") as process:
        told, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert Path(RESULTS).read_bytes().startswith(kept)
    assert texts(Path(RESULTS)).keys() == {f"sum-{i}" for i in range(120)}
    assert f"{kept.count(10)} done before" in told


@pytest.mark.slow
def test_a_worker_that_cannot_work_says_why(ray_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path(REQUESTS), sums(20))
    Path("broken.gguf").write_bytes(b"GGUF" + bytes(100))
    for more, why in (
        (["-m", "broken.gguf"], "broken.gguf"),
        (["-m", "gemma4:nowhere"], "gemma4:nowhere is not on this computer"),
        (["--device", "No Such GPU"], "no adapter is called"),
    ):
        with _batch("--ray", *more) as process:
            _, said = process.communicate(timeout=200)
        assert process.returncode == 1 and "Traceback" not in said, said
        assert "The worker on " in said and why in said, (more, said)
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")  # a machine without a GPU
    with _batch("--ray") as process:
        _, said = process.communicate(timeout=200)
    assert process.returncode == 1 and "no WebGPU adapter was found" in said, said


@pytest.mark.slow
def test_what_is_done_stays_when_a_worker_cannot_go_on(ray_folder: Path) -> None:
    """The model of the last rows cannot be read: the others' answers are kept, and a second run needs only those."""
    Path("own-store").mkdir()
    Path("broken.gguf").write_bytes(b"GGUF" + bytes(100))
    write(Path(REQUESTS), sums(60))
    with _batch("--ray") as process:
        assert process.wait(300) == 0
    write(Path(REQUESTS), [*sums(60), chat("late", "x")])
    with _batch("--ray", "--resume", "-m", "broken.gguf") as process:
        _, said = process.communicate(timeout=200)
    assert process.returncode == 1 and "broken.gguf" in said
    assert len(texts(Path(RESULTS))) == 60


@pytest.mark.slow
def test_a_wrong_address_is_a_sentence(ray_folder: Path) -> None:
    write(Path(REQUESTS), sums(1))
    with _batch("--ray", "127.0.0.1:1") as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in said
    assert "No Ray cluster answers at 127.0.0.1:1" in said


def _engines(driver: int) -> list[int]:
    return [pid for pid, command in descendants(driver) if command.startswith("ray::MapWorker")]


@contextmanager
def _batch(*more: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "wgemma", *BATCH, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(process: "subprocess.Popen[str]", count: int) -> None:
    """Until there are so many results."""
    until = time.monotonic() + 200
    while not Path(RESULTS).exists() or Path(RESULTS).read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.05)
