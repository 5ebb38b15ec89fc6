"""Long prompts in a terminal: a line says how far they are, Ctrl-C stops them, and the figures afterwards are true."""

import io
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wgemma
from wgemma import Part, PromptProgress, Usage
from wgemma.cli import progress_line
from wgemma.cli.chat_answer import Answer, answer
from wgemma.cli.chat_render import statistics
from wgemma.cli.progress_line import describe, no_line
from wgemma.gpu.native import NativeDevice

LONG = [{"role": "user", "content": "apple " * 80}]  # two passes


class Screen(io.StringIO):
    """A terminal, or not."""

    terminal = True

    def isatty(self) -> bool:
        return self.terminal

    @property
    def line(self) -> str:
        """What stands in the last line."""
        return self.getvalue().rpartition("\r")[2]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=screen))
    monkeypatch.setattr(progress_line, "PATIENCE", 0.0)
    monkeypatch.setattr(progress_line, "PAUSE", 0.001)
    return screen


class Slow:
    """A model that tells where it is, and waits until the screen shows it, if it ever does."""

    def __init__(self, screen: Screen, *stages: PromptProgress, shown: str = "") -> None:
        self.screen, self.stages, self.shown = screen, stages, shown

    def chat(self, messages: list[Any], *, progress: Any, **options: Any) -> Iterator[Part]:
        for stage in self.stages:
            progress(stage)
        deadline = time.monotonic() + 60
        while self.shown not in self.screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.001)
        yield Part("content", "yes")
        assert self.screen.line == ""
        yield Part("content", finish_reason="stop", usage=Usage(100, 0, 1, 100, 1.0))


HALF = PromptProgress("prompt", 50, 100)


def test_a_line_says_how_far_the_prompt_is_and_is_gone_when_the_answer_starts(screen: Screen) -> None:
    model: Any = Slow(screen, HALF, shown="reading the prompt: 50 of 100 tokens")
    heard: list[Part] = []
    answer(model, [], {}, Answer(), heard.append)
    assert "50 of 100" in screen.getvalue() and screen.line == "" and "\n" not in screen.getvalue()


def test_a_finished_prompt_takes_its_line_along_even_if_no_text_comes_yet(screen: Screen) -> None:
    model: Any = Slow(screen, HALF, PromptProgress("prompt", 100, 100))
    answer(model, [], {}, Answer(), lambda part: None)
    assert screen.line == ""


def test_there_is_no_line_for_machines_or_beside_a_bar(screen: Screen) -> None:
    model: Any = Slow(screen, HALF)
    answer(model, [], {}, Answer(), lambda part: None, quiet=True)
    screen.terminal = False
    answer(model, [], {}, Answer(), lambda part: None)
    screen.terminal = True
    with no_line():
        answer(model, [], {}, Answer(), lambda part: None)
    assert screen.getvalue() == ""


def test_the_line_tells_tokens_rate_and_time_left_or_which_image() -> None:
    assert describe(None, 0, 0) == "preparing the prompt"
    assert describe(PromptProgress("prompt", 0, 9000), 0, 30) == "reading the prompt: 0 of 9000 tokens"
    told = "reading the prompt: 3000 of 9000 tokens, 100 tokens/s, 0:50 left"
    assert describe(PromptProgress("prompt", 3000, 9000), 30, 10) == told
    assert describe(PromptProgress("prompt", 3, 9), 3, 60).endswith("1.0 tokens/s, 0:00 left")
    assert describe(PromptProgress("image", 2, 16, 2, 3), 0, 0) == "encoding image 2 of 3: layer 3 of 16"
    assert describe(PromptProgress("audio", 0, 12, 1, 1), 0, 0) == "encoding the sound: layer 1 of 12"


# -- Ctrl-C, with a real model


@pytest.fixture(scope="module")
def loaded(data: Path, gpu: NativeDevice) -> wgemma.Model:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    model = wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu)
    model.backend.runner.pass_rows = 128  # several passes
    return model


class Interrupted:
    """A model whose user presses Ctrl-C so many times once a pass of the prompt is done."""

    def __init__(self, model: wgemma.Model, times: int) -> None:
        self.model, self.times = model, times
        self.reset = model.reset

    def chat(self, messages: list[Any], *, progress: Any, **options: Any) -> Iterator[Part]:
        def hear(told: PromptProgress) -> None:
            progress(told)
            if told.done:
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)

        return self.model.chat(messages, progress=hear, **options)


def test_ctrl_c_stops_a_prompt_and_the_figures_are_of_what_was_computed(loaded: wgemma.Model) -> None:
    loaded.reset()
    reply, again = Answer(), Answer()
    model: Any = Interrupted(loaded, 1)
    answer(model, LONG, {}, reply, lambda part: None)
    assert reply.finish_reason == "cancelled" and reply.usage is not None
    computed = reply.usage.computed
    assert 0 < computed < reply.usage.prompt and reply.usage.generated == 0
    timings = reply.timings()
    assert timings["prompt_tokens_per_second"] == computed / reply.usage.prompt_seconds
    assert timings["generated_tokens_per_second"] is timings["first_token_seconds"] is None
    assert f"computed     {computed} tokens\ngenerated    0 tokens\n" in statistics(reply)
    answer(loaded, LONG, {"max_tokens": 3}, again, lambda part: None)
    assert again.usage is not None and again.usage.reused >= computed
    first = again.timings()["first_token_seconds"]
    assert first is not None and 0 < first < (again.timings()["total_seconds"] or 0)


def test_a_second_ctrl_c_in_a_prompt_stops_at_once(loaded: wgemma.Model) -> None:
    loaded.reset()
    reply = Answer()
    model: Any = Interrupted(loaded, 2)
    answer(model, LONG, {}, reply, lambda part: None)
    assert (reply.finish_reason, reply.usage, reply.timings()["prompt_tokens_per_second"]) == ("cancelled", None, None)
    answer(loaded, LONG, {"max_tokens": 1}, reply, lambda part: None)
    assert reply.usage is not None and reply.usage.reused == 0
