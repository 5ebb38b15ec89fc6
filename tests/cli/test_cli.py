"""The command as a whole: exit codes, help, and one-sentence errors."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from wgemma import __version__
from wgemma.cli import main, parser
from wgemma.errors import Error


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


def wgemma(*arguments: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "wgemma", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **environment}, timeout=60)


def test_the_module_is_the_command() -> None:
    done = wgemma("list", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gemma4:tiny" in done.stdout


def test_a_mistake_is_one_sentence_and_exit_code_1() -> None:
    done = wgemma("show", "gemma4:tinny")
    assert (done.returncode, done.stdout) == (1, b"")
    message = done.stderr.decode()
    assert message.startswith("wgemma: gemma4:tinny is not on this computer. Did you mean gemma4:tiny")
    assert message.count("\n") == 1


def test_output_in_a_narrow_encoding_does_not_fail() -> None:
    done = wgemma("tokenize", "gemma4:tiny", stdin="a 🦙 b".encode(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2581" in done.stdout


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "wgemma", "show", "gemma4:tiny", "--tensors", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "list", "show", "verify", "tokenize", "bench", "doctor"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: wgemma {name}" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"wgemma {__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["merge"], ["list", "--nonsense"], ["verify", "a", "b"]])
def test_a_wrong_option_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: wgemma" in capsys.readouterr().err


def test_an_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wgemma.files.ollama.Store.find", interrupted)
    assert main(["list"]) == 130


NONSENSE = [
    "", ".", "/dev/zero", "~nobody-of-that-name", "a" * 5000, "h" * 300 + "/n/m:t", "//[x", "http://[x.gguf", "a\0b",
    "\udcff", "\x1b[31mred", "\x1b[31mred.gguf", "nowhere.gguf", "gemma4:broken", "gemma4:hostile", "gemma4:hostile2",
    "gemma4:missing", "gemma4:noconfig",
]  # fmt: skip


@pytest.mark.parametrize("verb", ["show", "verify", "tokenize"])
@pytest.mark.parametrize("target", NONSENSE, ids=lambda target: ascii(target)[:20])
def test_nonsense_is_answered_in_a_sentence(verb: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [verb, "-m", target, "text"] if verb == "tokenize" else [verb, target]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("wgemma: ")
    assert "Traceback" not in printed.err
    assert "\x1b" not in printed.err


@pytest.mark.parametrize("target", ["gemma4:nomodel", "gemma4:mlx"])
def test_a_model_that_cannot_be_run_says_why(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["show", target], ["tokenize", target, "text"]):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith(f"wgemma: {target} ")


def test_a_hostile_file_cannot_speak_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.gguf"
    good = write_gguf(tensors={"\x1b[31mred\n\x9b2J": ("F32", (3,), None)})
    path.write_bytes(good[:-4])
    assert main(["show", str(path)]) == 1
    message = capsys.readouterr().err
    assert "\x1b" not in message
    assert "\x9b" not in message
    assert message.count("\n") == 1


LONG = "9" * 5000
ODD = (
    "",
    "x",
    "-1",
    "0",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "-inf",
    LONG,
    f"-{LONG}",
    "\0",
    "a\0b",
    "\ud800",
    "\x1b[31m",
    "=",
    ",",
)
# Only that, because some values are good enough to begin with, or to ask a server.
PARSED = {"app", "doctor", "finetune", "list", "ls", "ps", "pull", "serve", "stop"}


def verbs() -> dict[str, argparse.ArgumentParser]:
    subparsers = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_odd_values_of_every_option_are_sentences(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    built = parser()
    monkeypatch.setattr("wgemma.cli.parser", lambda: built)
    actions = verbs()[verb]._actions
    positional = [action for action in actions if not action.option_strings]
    needed = [
        "nowhere.gguf"
        for action in positional
        if action.nargs not in ("*", "?") or (positional == [action] and action.nargs == "?")
    ]
    needed += [f"{action.option_strings[-1]}=out" for action in actions if action.required and action.option_strings]
    valued = [action.option_strings[-1] for action in actions if action.option_strings and action.nargs != 0]
    tries = [[*needed, f"{option}={odd}"] for option in valued for odd in ODD]
    tries += [[*needed[:i], odd, *needed[i + 1 :]] for i in range(len(needed)) for odd in ODD]
    for arguments in tries:
        try:
            code = built.parse_args([verb, *arguments]) and 1 if verb in PARSED else main([verb, *arguments])
        except SystemExit as exit:
            code = exit.code
        except Error:
            code = 1
        told = capsys.readouterr().err
        assert code in (1, 2) and "Traceback" not in told and "\x1b" not in told, arguments
        assert max(map(len, told.split("\n")), default=0) < 1000, arguments


@pytest.mark.parametrize("value", ["5", "x", "-70", "1120.0"])
def test_a_budget_names_its_five_values(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "Hello", f"--budget={value}"])
    assert f"argument --budget: '{value}' is not a budget; use 70, 140, 280, 560 or 1120" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max-tokens", "-1"),
        ("context", "-1"),
        ("context", "0"),
        ("seed", str(1 << 64)),
        ("temperature", "1e400"),
        ("top-k", "-1"),
    ],
)
def test_a_number_out_of_range_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", "-m", "nowhere.gguf", "Hello", f"--{option}={value}"]) == 1
    assert f"wgemma: {option.replace('-', '_')} is " in capsys.readouterr().err
