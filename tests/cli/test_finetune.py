"""`wgemma finetune` on a tiny model of random weights: it trains for real, on whatever adapter this machine has."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wgemma.cli import main, parser
from wgemma.files.adapters import read_adapter
from wgemma.train.batches import Step
from wgemma.train.trainer import Trainer

TINY = "gemma4:tiny"
SMALL = ("--rank", "2", "--targets", "q,v", "--batch", "1", "--seq", "32")
RECORDS: list[dict[str, Any]] = [{"prompt": f"Say {word}.", "completion": word} for word in ("yes", "no", "cat")]
RECORDS += [{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I am here."}]}]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    printed = capsys.readouterr()
    assert printed.err == ""
    return [json.loads(line) for line in printed.out.splitlines()]


# -- training


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_finish_the_step_save_and_say_how_to_go_on(
    here: Path, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    with (here / "data.jsonl").open("a") as file:
        file.write("\nnonsense")
    arguments = ["finetune", TINY, "data.jsonl", "-o", "out", "--skip-bad", "--steps", "100000", *SMALL]
    ended, shown = interrupted(arguments, number)
    assert ended == code and "Traceback" not in shown
    assert "training" in shown and "loss" in shown and "left" in shown  # the bar
    (step,) = (folder.name.removeprefix("checkpoint-") for folder in newest(here / "out"))
    assert f"Stopped after step {step} of 100000; everything is saved. Resume with:" in shown
    (again,) = [line.strip() for line in shown.splitlines() if line.strip().startswith("wgemma finetune")]
    assert shlex.split(again) == ["wgemma", "finetune", TINY, "data.jsonl", "-o", "out", "--resume", "--skip-bad"]
    assert main([*shlex.split(again)[1:], "--rank", "3"]) == 1
    assert "was made with other settings (rank 2, now 3)" in capsys.readouterr().err


def test_a_device_that_goes_leaves_what_is_saved_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Trainer._advance

    async def losing(self: Trainer, step: Step, rate: float) -> tuple[float, float]:
        if self.step == 2:
            self.learner.device.close()  # type: ignore[attr-defined]
        return await sound(self, step, rate)

    monkeypatch.setattr(Trainer, "_advance", losing)
    arguments = ["finetune", TINY, "data.jsonl", "-o", "out", "--steps", "4", "--save-every", "1", *SMALL]
    assert main(arguments) == 1
    shown = capsys.readouterr().err
    assert "was lost" in shown and "Step 2 is saved; resume with: wgemma finetune gemma4:tiny data.jsonl" in shown


def newest(out: Path) -> list[Path]:
    return sorted(out.glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2]))[-1:]


def interrupted(arguments: list[str], number: int) -> tuple[int, str]:
    """What a run prints to a terminal when a signal comes after the first steps."""
    fd, theirs = pty.openpty()
    command = [sys.executable, "-m", "wgemma", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown, pressed, end = b"", False, time.monotonic() + 60
    while time.monotonic() < end:
        try:
            shown += os.read(fd, 65536)
        except OSError:  # the child has closed its side
            break
        if not pressed and b"tokens/s" in shown:
            child.send_signal(number)
            pressed = True
    os.close(fd)
    return child.wait(30), shown.decode(errors="replace")


def test_json_is_an_object_per_line_and_a_run_that_is_over_stays_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["finetune", TINY, "data.jsonl", "-o", "out", "--json"]
    assert main([*arguments, "--steps", "3", "--validation", "0.25", *SMALL]) == 0
    start, *steps, end = told(capsys)
    assert (start["event"], start["examples"], start["held_out"], start["done"]) == ("start", 3, 1, 0)
    assert start["memory"] > 0 and start["settings"]["targets"] == ["q", "v"]
    assert [(step["event"], step["step"], step["steps"]) for step in steps] == [("step", i, 3) for i in (1, 2, 3)]
    assert all(step["memory"] > 0 and step["tokens_per_second"] > 0 for step in steps)
    assert (end["event"], end["adapter"], end["losses"]) == ("end", "out", [step["loss"] for step in steps])
    assert read_adapter("out").pairs == read_adapter("out/adapter.gguf").pairs
    assert all((here / "out" / name).exists() for name in ("README.md", "loss.svg", "losses.json"))
    assert main([*arguments, "--resume"]) == 0
    start, again = told(capsys)
    assert start["done"] == 3 and again == end


def test_more_steps_extend_a_run_that_is_over_and_its_checkpoints_are_adapters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["finetune", TINY, "data.jsonl", "-o", "out", "--json"]
    assert main([*arguments, "--steps", "2", *SMALL]) == 0
    first = told(capsys)[-1]["losses"]
    assert main([*arguments, "--steps", "3", "--resume"]) == 0
    start, step, end = told(capsys)
    assert (start["done"], start["steps"], step["step"], end["losses"][:2]) == (2, 3, 3, first)
    assert read_adapter("out/checkpoint-3").pairs == read_adapter("out").pairs
    assert read_adapter("out/checkpoint-2").pairs != read_adapter("out").pairs
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", TINY, "Who?", "--adapter", "out/checkpoint-2", "--max-tokens", "1"]) == 0
    assert "with the adapter checkpoint-2: rank 2" in capsys.readouterr().err
    assert main([*arguments, "--steps", "1", "--resume"]) == 1
    assert "checkpoint-3 is beyond the 1 step of this training. Ask for more steps" in capsys.readouterr().err


def test_where_nobody_watches_a_line_now_and_then_is_enough(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (here / "data.jsonl").open("a") as file:
        long = {"prompt": "Say it all.", "completion": "word " * 60}
        file.write("\nnot JSON\n" + json.dumps(long) + "\n")
    arguments = ["finetune", TINY, "-o", "out", "data.jsonl", "--steps", "2", "--skip-bad", *SMALL]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "data.jsonl: 5 examples, " in printed.err and " of them trained on" in printed.err
    assert "data.jsonl: 1 cut to 32 tokens (--seq allows more)" in printed.err
    assert "data.jsonl: 1 bad, skipped: lines 5\n" in printed.err
    assert "2 steps of 1 × 32 tokens, rank 2 on q,v, " in printed.err and " on top of the model" in printed.err
    assert "step 1/2: loss " in printed.err and "step 2/2: loss " in printed.err
    assert printed.out.startswith("Adapter written to out: loss ")
    assert printed.out.endswith("\n  wgemma run gemma4:tiny --adapter out\n")
    assert main(arguments) == 1
    assert "out contains a training run that reached step 2. Continue it with --resume" in capsys.readouterr().err


# -- mistakes

MISTAKES = [
    (["none.jsonl"], "none.jsonl cannot be read: No such file"),
    ([TINY, "bad.jsonl"], "bad.jsonl has 2 bad lines:\n  line 1: not JSON"),
    ([TINY, "empty.jsonl"], "empty.jsonl contains no example"),
    (["someone/mygemma:v1", "data.jsonl"], "already includes an adapter; train one for "),
    (["gemma4:tini", "data.jsonl"], "Did you mean gemma4:tiny"),
    ([TINY, "data.jsonl", "--rank", "0"], "rank is 0; it must be a whole number from 1 to 1024"),
    ([TINY, "data.jsonl", "--targets", "q,x"], "targets has 'x'"),
    ([TINY, "data.jsonl", "--seq", "1000000"], "seq is 1000000; this model's context is"),
    ([TINY, "data.jsonl", "--resume"], "data-lora has no checkpoint to resume from. Start without --resume"),
    ([TINY, "data.jsonl", "-o", "data.jsonl"], "data.jsonl is a file. Name a folder"),
    ([TINY, "data.jsonl", "--validation", "none.jsonl"], "none.jsonl cannot be read"),
    ([TINY, "data.jsonl", "--device", "reference"], "need a GPU, but the model runs on NumPy"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=str)
def test_a_mistake_is_a_sentence_and_nothing_is_written(
    arguments: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.jsonl").write_text('nope\n{"text": "x"}\n')
    (here / "empty.jsonl").write_text("\n")
    before = sorted(here.iterdir())
    assert main(["finetune", *arguments]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and "Traceback" not in printed.err and printed.out == ""
    assert sorted(here.iterdir()) == before


def test_without_a_model_the_embedded_one_is_meant() -> None:
    alone = parser().parse_args(["finetune", "data.jsonl"])
    assert (alone.model, alone.data, alone.output) == (None, "data.jsonl", None)
    mixed = parser().parse_args(["finetune", TINY, "--lr", "1e-3", "data.jsonl", "--no-packing"])
    assert (mixed.model, mixed.data, mixed.lr, mixed.packing) == (TINY, "data.jsonl", 1e-3, False)
