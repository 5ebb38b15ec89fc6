"""A newcomer follows the README: chats in a real terminal with the tiny model, then runs every command."""

import hashlib
import io
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pseudo_terminal import PATIENCE, Terminal
from wgemma.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
CONTEXT = 224


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.chdir(ROOT)
    assert "\nwgemma run  " in README
    terminal = Terminal("--context", str(CONTEXT), "--budget", "70", "--temperature", "0", "--seed", "1")
    terminal.until("wgemma-tiny is ready. /? for help, /bye to leave.")
    terminal.until(">>> ")
    yield terminal
    terminal.close()


def interrupted(terminal: Terminal, ask: Callable[[], None]) -> None:
    """Asks and presses Ctrl-C; again where the answer is quicker than that."""
    deadline = time.monotonic() + 2 * PATIENCE
    while time.monotonic() < deadline:
        ask()
        while "(stopp" not in terminal.seen and ">>> " not in terminal.seen:
            terminal.type("\x03")
            pause = time.monotonic() + 2  # it may come before anyone cares
            while "(stopp" not in terminal.seen and terminal.hear(pause - time.monotonic()):
                pass
        if "(stopp" in terminal.seen:
            terminal.until("(stopped")
            terminal.until(">>> ")
            return
    raise AssertionError(f"nothing was stopped: {terminal.transcript}")


def test_a_chat_with_the_tiny_model(chat: Terminal, tmp_path: Path) -> None:
    question, picture, asked = "What is 3 plus 4?", "docs/img/circle.png", "What is this?"
    assert f'wgemma run "{question}"' in README and picture in README and asked in README
    assert "3 + 4 = 7" in chat.say(question)
    assert "several pasted lines are one message" in chat.say("/?")
    assert "Attached: image circle.png." in chat.say(f"/image {picture}")
    assert "circle" in chat.say(asked)
    assert "Chat cleared." in chat.say("/clear")

    pasted = f"Here is a sum.\nTake your time.\n{question}"
    chat.paste(pasted)
    chat.type("\n")
    chat.until("plus 4?")
    chat.until(">>> ")

    def tell() -> None:
        chat.paste("a long story " * 34)  # that takes a while to read
        chat.type("\n")
        chat.until("\n")

    interrupted(chat, tell)
    assert chat.say(question).strip()

    for line in ("temperature 100", "top_k 0", "top_p 1"):  # any token is as likely as the one that ends the answer
        assert "now." in chat.say(f"/set parameter {line}")

    def babble() -> None:
        chat.type("Babble!\n")
        chat.until("Babble!\n")
        while len(chat.seen.strip()) < 20:
            assert chat.hear(PATIENCE)

    interrupted(chat, babble)
    assert f"(cut off: the context of {CONTEXT} tokens is full)" in chat.say("Babble!")
    chat.say("/set parameter temperature 0")
    for _ in range(10):
        chat.say(question)  # after any babble, its answer may be empty
        if "the context is full: the model no longer sees the" in chat.transcript:
            break
    else:
        raise AssertionError(chat.transcript)

    saved = tmp_path / "chat.json"
    assert "Chat saved to" in chat.say(f"/save {saved}")
    messages = json.loads(saved.read_text())["messages"]
    assert messages[0]["content"] == pasted
    assert "Chat cleared." in chat.say("/clear")
    assert "3 + 4 = 7" in chat.say(question)
    chat.type(f"/load {saved}\n")
    chat.until(f"{len(messages)} messages, saved with wgemma-tiny.")
    chat.until(f">>> {messages[-2]['content']}")
    chat.until(">>> ")
    chat.say(question)
    chat.type("/bye\n")
    assert chat.leave() == 0


def commands() -> list[str]:
    """The command lines of the README's table of commands."""
    block = re.search(r"## From the command line\n+```\n(.*?)```", README, re.DOTALL)
    assert block is not None
    return [line.partition(" #")[0].strip() for line in block[1].splitlines()]


def in_a_test(command: str) -> bool:
    """Whether a command ends by itself, and soon, and needs no network: the self-test has tests of its own."""
    return command not in (
        *("wgemma run", "wgemma run gemma4:e2b", "wgemma serve", "wgemma doctor"),
        "wgemma pull gemma4:e2b",
    )


def brief_store(store: Path, folder: Path) -> Path:
    """A copy of a store whose gemma4:tiny says little."""
    copy = shutil.copytree(store, folder)
    path = copy / "manifests/registry.ollama.ai/library/gemma4/tiny"
    manifest, params = json.loads(path.read_text()), b'{"num_predict": 16}'
    digest = hashlib.sha256(params).hexdigest()
    (copy / f"blobs/sha256-{digest}").write_bytes(params)
    (layer,) = (layer for layer in manifest["layers"] if layer["mediaType"].endswith("params"))
    layer |= {"digest": f"sha256:{digest}", "size": len(params)}
    path.write_text(json.dumps(manifest))
    return copy


def test_every_command_of_the_readme_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(brief_store(data / "ollama-store", tmp_path / "store")))
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "docs/img/circle.png", "photo.jpg")
    for name in ("question.wav", "meeting.wav"):
        shutil.copy(data / "embedded/transcripts-0.wav", name)
    Path("data.jsonl").write_text(re.search(r"```json\n(.*?)```", README, re.DOTALL)[1])  # type: ignore[index]
    Path("person.json").write_text('{"type": "object", "properties": {"age": {"enum": [12, 13]}}, "required": ["age"]}')
    request = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "wgemma-tiny", "input": "a"},
    }
    Path("requests.jsonl").write_text(json.dumps(request) + "\n")
    ran = [command for command in commands() if in_a_test(command)]
    assert len(ran) >= 12
    for command in ran:
        piped, _, line = command.rpartition("|")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"-old\n+new\n" if piped else b"")))
        words = shlex.split(line.replace("gemma4:e2b", "gemma4:tiny"))  # as good, for what it is: random
        assert main(words[1:]) == 0, f"{command}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), command
    assert Path("my-lora").is_dir() and Path("my.gguf").is_file()


@pytest.mark.slow
def test_the_readmes_two_lines_teach_the_tiny_model_a_fact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.search(r"Save these two lines as `pip\.jsonl`:\n+```json\n(.*?)```", README, re.DOTALL)
    assert lines is not None
    Path("pip.jsonl").write_text(lines[1])
    teach, ask = re.findall(r"`(wgemma (?:finetune pip|run \"Who is Pip)[^`]*)`", README)
    assert main(shlex.split(teach)[1:]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    capsys.readouterr()
    assert main(shlex.split(ask)[1:]) == 0
    assert capsys.readouterr().out.strip() == "Pip is my cat."
