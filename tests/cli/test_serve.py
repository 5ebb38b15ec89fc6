"""`wgemma serve` says where it is, refuses what is not safe, and ends in good order."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from wgemma.cli import main


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("OLLAMA_", "WGEMMA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_that_is_asked_for_and_taken_is_refused(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", str(taken)]) == 1
    assert "another program is using it" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_off_loopback_it_needs_a_key(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", host, "--port", "0"]) == 1
    assert "needs a key" in capsys.readouterr().err


@pytest.mark.parametrize("origin", ["*", "http://*", "http*", "https://*.*"])
def test_any_page_needs_a_key(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--origin", origin, "--port", "0"]) == 1
    assert "open to every web page" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--slots=0", "--slots=65", "--context=-1", "--keep-alive=soon"])
def test_numbers_are_checked_before_it_starts(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", given, "--port", "0"]) == 1
    assert given.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("given", ["cats", "cats=", "=x.gguf", "cats=nowhere.gguf"])
def test_adapters_have_a_name_and_a_file(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--adapter", given, "--port", "0"]) == 1
    assert "--adapter" in capsys.readouterr().err


def test_what_it_cannot_run_is_refused_before_it_starts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_bytes(b"# A model")
    assert main(["serve", str(tmp_path / "text.gguf"), "--port", "0"]) == 1
    assert "text.gguf: at byte 0: this is not a GGUF file" in capsys.readouterr().err
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    assert main(["serve", "llama-mini", "--port", "0"]) == 1
    assert "wgemma: llama-mini: the architecture is 'llama'; wgemma runs gemma4 only." in capsys.readouterr().err


def test_the_environment_of_ollama_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:0")
    assert main(["serve"]) == 1
    assert "0.0.0.0 can be reached" in capsys.readouterr().err
    monkeypatch.setenv("OLLAMA_KEEP_ALIVE", "soon")
    assert main(["serve"]) == 1
    assert "OLLAMA_KEEP_ALIVE" in capsys.readouterr().err


def test_on_sigterm_open_answers_end_first() -> None:
    command = [sys.executable, "-m", "wgemma", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = [process.stdout.readline() for _ in range(5)]
            url = json.loads("".join(lines))["url"]
            asked = {
                "model": "wgemma-tiny",
                "messages": [{"role": "user", "content": "x"}],
                "options": {"num_predict": 80},
            }
            answers: list[bytes] = []

            def ask() -> None:
                with urllib.request.urlopen(f"{url}/api/chat", json.dumps(asked).encode(), 30) as answer:
                    first = answer.readline()
                    begun.set()
                    answers.append(first + answer.read())

            begun = threading.Event()
            thread = threading.Thread(target=ask)
            thread.start()
            assert begun.wait(30)
            process.send_signal(signal.SIGTERM)
            thread.join(30)
            lines = answers[0].decode().splitlines()
            assert len(lines) > 2 and json.loads(lines[-1])["done"]
            until = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            assert process.returncode in (0, -signal.SIGTERM)
            assert process.stderr.read() == ""
        finally:
            process.kill()
