"""Adapters and fine-tuning in a real Chromium: the engine's own training with a small model, then the view around it,
most of it with a script in the model's place (scripted_wgemma.js)."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_page import App
from face import Face
from playwright.sync_api import expect

from wgemma.files.adapters import check_fits, read_adapter
from wgemma.files.gguf import Gguf
from wgemma.model.config import Config, find_tensors

IDS = [2, 30, 31, 40]
SMALL = {"rank": 4, "seq": 32, "batch": 1, "lr": 0.01, "targets": "q,down", "warmup": 0}
LESSON = json.dumps({"prompt": "Say yes.", "completion": "yes yes"})
NAMES = {"gguf": "adapter.gguf", "config": "adapter_config.json", "safetensors": "adapter_model.safetensors"}

TRAIN = """async ([data, settings, stopAfter]) => {
  const stop = new AbortController();
  const steps = [];
  const outcome = await attempt(async () => {
    for await (const step of model.finetune(data, {...settings, signal: stop.signal})) {
      if (step.adapter) globalThis.trained = step;
      else steps.push(step);
      if (steps.length === stopAfter) stop.abort();
    }
  });
  return {...outcome, steps, losses: globalThis.trained?.losses, stopped: globalThis.trained?.stopped};
}"""


def train(face: Face, data: str, stop_after: int = 0, **settings: Any) -> Any:
    return face.run(TRAIN, [data, {**SMALL, **settings}, stop_after])


def logits(face: Face, **options: Any) -> Any:
    return face.floats("model.logits(given[0], given[1])", [IDS, options])


# -- the engine


@pytest.fixture(scope="module")
def face(face: Face, micro: str) -> Face:
    face.load(micro)
    return face


def test_a_model_learns_in_the_page_and_its_adapter_goes_anywhere(face: Face, data: Path, tmp_path: Path) -> None:
    bare = logits(face)
    told = train(face, LESSON, steps=3)
    assert "code" not in told, told
    losses = [step["loss"] for step in told["steps"]]
    assert told["losses"] == losses and not told["stopped"]
    assert losses[0] > losses[1] > losses[2]
    last = told["steps"][-1]
    assert (last["step"], last["steps"], last["secondsLeft"]) == (3, 3, 0)
    assert last["tokensPerSecond"] > 0 and last["memory"] > 0 and last["validation"] is None
    assert np.array_equal(logits(face), bare)  # the model itself is what it was

    for key, name in NAMES.items():
        text = face.run("async (key) => (await trained.adapter[key].bytes()).toBase64()", key)
        (tmp_path / name).write_bytes(base64.b64decode(text))
    peft, gguf = read_adapter(tmp_path), read_adapter(tmp_path / "adapter.gguf")
    assert peft.pairs == gguf.pairs and peft.rank == 4
    with Gguf.open(data / "ollama-store" / _blob(data)) as base:
        check_fits(gguf, find_tensors(Config.from_gguf(base), base.tensors))
    assert "| steps | 3 of 1 × 32 tokens |" in face.run("() => trained.adapter.card.text()")

    assert face.run("() => model.loadAdapter(trained.adapter.gguf, {name: 'mine'})") == "mine"
    assert face.run("() => model.adapters") == {"mine": 1}
    learnt = logits(face)
    assert np.abs(learnt - bare).max() > 0.1
    assert np.array_equal(logits(face, adapter=None), bare)
    assert np.array_equal(logits(face, adapter={"mine": 0}), bare)
    both = "[trained.adapter.safetensors, trained.adapter.config]"  # in any order
    face.run(f"() => model.loadAdapter({both}, {{name: 'peft', scale: 0.5}})")
    assert np.array_equal(logits(face, adapter={"peft": 1}), learnt)
    face.run("async () => { await model.unloadAdapter('mine'); await model.unloadAdapter('peft'); }")
    assert face.run("() => model.adapters") == {}
    assert np.array_equal(logits(face), bare)


def _blob(data: Path) -> str:
    return str(json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]["gemma4:tiny"]["model"])


def test_a_training_that_is_stopped_keeps_what_it_learnt(face: Face) -> None:
    told = train(face, LESSON, stop_after=1, steps=50)
    assert told["stopped"] and 1 <= len(told["losses"]) <= 2
    bare = logits(face)
    face.run("() => model.loadAdapter(trained.adapter.gguf)")
    assert list(face.run("() => model.adapters")) == ["adapter"]
    assert np.abs(logits(face) - bare).max() > 1e-3
    face.run("() => model.unloadAdapter('adapter')")


def test_it_trains_with_the_system_text_that_chats_begin_with(face: Face, micro: str) -> None:
    def loss(**settings: Any) -> float:
        told = train(face, LESSON, steps=1, **settings)
        assert "code" not in told, told
        return float(told["steps"][0]["loss"])

    bare, brief = loss(), loss(system="Be brief.")
    face.load(micro, system="Be brief.")
    assert (loss(), loss(system="")) == (brief, bare) and brief != bare
    face.load(micro)


def test_what_is_wrong_is_told_as_python_tells_it(face: Face) -> None:
    bad = "\n".join([LESSON, '{"prompt": "Hm?"}', "", "no JSON"])
    told = train(face, bad)
    assert told["code"] == "data" and "line 2: only the keys prompt" in told["message"]
    assert "line 4: not JSON" in told["message"]
    found = face.run("(data) => model.examine(data, {seq: 32, batch: 1, epochs: 2})", bad)
    assert [item["line"] for item in found.pop("bad")] == [2, 4]
    assert found.pop("targets") > 2 and found.pop("tokens") > 10
    assert found == {"examples": 1, "held": 0, "truncated": 0, "steps": 2}
    assert train(face, "")["code"] == "data"
    assert train(face, LESSON, rank=0) | {"losses": 0, "stopped": 0} == {
        "code": "settings",
        "message": "rank is 0; it must be a whole number from 1 to 1024.",
        "steps": [],
        "losses": 0,
        "stopped": 0,
    }
    assert "there is no setting 'rnak'" in train(face, LESSON, rnak=4)["message"]
    assert "this model's context is" in train(face, LESSON, seq=10**6)["message"]
    for source, words in (("new Blob(['GGUF? no'])", "GGUF"), ("'/models/micro.gguf'", "not an adapter")):
        told = face.run(f"() => attempt(() => model.loadAdapter({source}))")
        assert told["code"] == "adapter" and words in told["message"]
    told = face.run("() => attempt(() => model.loadAdapter('/models/nowhere.gguf'))")
    assert told["code"] == "network" and "404" in told["message"]
    told = face.chat([{"role": "user", "content": "Hello"}], adapter="nobody")
    assert told["code"] == "settings" and "no adapter called 'nobody' is loaded" in told["message"]


def test_a_gpu_that_goes_away_ends_the_training_and_not_the_model(face: Face, kill_gpu: Callable[[], None]) -> None:
    bare = logits(face)
    begun = """([data, settings]) => {
      globalThis.made = 0;
      const train = async () => { for await (const step of model.finetune(data, settings)) made = step.step; };
      globalThis.over = attempt(train);
    }"""
    face.run(begun, [LESSON, {**SMALL, "steps": 500}])
    face.page.wait_for_function("() => made > 1", timeout=120_000)
    kill_gpu()
    told = face.run("() => over")
    assert told["code"] == "training" and "start the training again" in told["message"]
    assert np.array_equal(logits(face), bare)


# -- the view


@pytest.fixture
def app(visit: Callable[..., App]) -> Iterator[App]:
    app = visit(viewport={"width": 1280, "height": 1000}).open()
    yield app
    assert app.errors == []


def give(app: App, name: str = "Pirate talk.jsonl", content: str = LESSON) -> None:
    app["finetune-file"].set_input_files({"name": name, "mimeType": "", "buffer": content.encode()})


def begin(app: App, **scripted: Any) -> None:
    app.page.evaluate("(given) => Object.assign(scripted, given)", scripted)
    app["finetune"].click()
    give(app)
    app["finetune-start"].click()


def state(app: App) -> str:
    return app.text("finetune-state")


def drawn(app: App, step: int) -> str:
    """What the curve tells, once it is drawn up to this step: that happens with the next frame."""
    expect(app["finetune-curve"]).to_have_attribute("aria-label", re.compile(f"at step {step}$"))
    return app["finetune-curve"].get_attribute("aria-label")


def test_a_training_is_begun_watched_and_tried(app):
    app["finetune"].click()
    assert app["finetune-start"].is_disabled()
    assert app.text("finetune-hint") == "Choose a file of examples first."
    give(app)
    app.page.wait_for_function("() => !document.querySelector('[data-testid=finetune-start]').disabled")
    assert app.text("finetune-summary") == "5 examples · 113 tokens, 24 of them to learn from"
    assert app.text("finetune-hint").startswith("4 steps, which is few")
    app["finetune-rank"].fill("4")
    app["finetune-more"].locator("summary").click()
    app["finetune-target-k"].uncheck()
    app["finetune-validation"].press("ArrowUp")
    app["finetune-start"].click()
    app["finetune-use"].wait_for()
    (tuned,) = app.page.evaluate("() => scripted.tuned")
    assert tuned["data"] == "Pirate talk.jsonl"
    assert tuned["settings"] | {"rank": 4, "validation": 0.05, "batch": 2} == tuned["settings"]
    assert tuned["settings"]["targets"] == ["q", "v", "o", "gate", "up", "down"]
    assert state(app) == "Done: 4 steps"
    assert app.text("finetune-loss") and app.text("finetune-step") == "4 of 4"
    curve = app["finetune-curve"]
    assert curve.get_attribute("role") == "img"
    drawn(app, 4)
    assert len(curve.locator("polyline").first.get_attribute("points").split()) == 4
    with app.page.expect_download() as download:
        app["finetune-download"].click()
    assert download.value.suggested_filename == "adapter.gguf"
    assert download.value.path().read_text() == "adapter.gguf of 4 steps"
    for key in ("config", "safetensors"):
        with app.page.expect_download() as download:
            app[f"finetune-download-{key}"].click()
        assert download.value.suggested_filename == NAMES[key]

    app["finetune-use"].click()
    app["adapter"].wait_for()
    assert app.text("finetune-use") == "In use"
    app["finetune-chat"].click()
    app.ask("Who are you?")
    app["adapter-scale"].fill("0.5")
    app.ask("And now?")
    app["adapter-on"].click()
    app.ask("And now?")
    app["adapter-remove"].click()
    app["adapter"].wait_for(state="detached")
    app.ask("And now?")
    asked = [turn["options"].get("adapter", "all") for turn in app.asked()]
    assert asked == [{"pirate-talk": 1}, {"pirate-talk": 0.5}, {}, "all"]
    assert app.page.evaluate("() => scripted.adapters") == {}


def test_bad_lines_are_named_and_can_be_left_out(app):
    bad = [{"line": 7, "reason": "not JSON"}, {"line": 31, "reason": "no <b>reply</b>"}]
    app.page.evaluate("(bad) => Object.assign(scripted.examined, {bad})", bad)
    app["finetune"].click()
    give(app)
    app["finetune-skip"].wait_for()
    assert "line 7: not JSON" in app.text("finetune-bad") and "line 31: no <b>reply</b>" in app.text("finetune-bad")
    assert app["finetune-start"].is_disabled()
    app["finetune-skip"].check()
    app["finetune-start"].click()
    app["finetune-use"].wait_for()
    assert app.page.evaluate("() => scripted.tuned[0].settings.skipBad") is True
    app.page.evaluate("() => { scripted.unreadable = 'the data contains no example.' }")
    give(app, "empty.jsonl")
    app["finetune-error"].wait_for()
    assert app.text("finetune-error") == "the data contains no example."
    assert app["finetune-start"].is_disabled() and app.text("finetune-bad") == ""


def test_a_training_can_be_stopped_and_its_adapter_used(app):
    begin(app, steps=500, pause=10)
    app.page.wait_for_function("() => /^[2-9]/.test(document.querySelector('[data-testid=finetune-step]').textContent)")
    assert app.text("status") == "training" and app.text("finetune-share").endswith(" %")
    assert app["finetune-rank"].is_disabled()
    app["finetune-stop"].click()
    app["finetune-use"].wait_for()
    assert state(app).startswith("Stopped after ")
    assert app["finetune-start"].is_visible() and app["finetune-stop"].is_hidden()
    assert app.text("status") == "ready" and app.text("finetune-share") == ""
    app["finetune-use"].click()
    app["adapter"].wait_for()
    app["finetune-use"].click()
    assert app.text("finetune-use") == "Use it now" and not app["adapter-on"].is_checked()


def test_while_it_learns_nothing_is_lost(app):
    """The view can be left, messages wait in their box, and the end is told wherever one is."""
    begin(app, steps=60, pause=30)
    app["finetune-close"].click()
    app["prompt"].fill("Are you there?")
    app["prompt"].press("Enter")
    app.page.get_by_text("The model is training.").wait_for()
    assert app["prompt"].input_value() == "Are you there?" and app["message-user"].count() == 0
    app["toast-action"].filter(has_text="Show").click()
    assert state(app) == "Done: 60 steps"
    app.page.keyboard.press("Escape")
    assert app["finetune-view"].is_hidden()
    app["prompt"].press("Enter")
    assert app.answered() == "You said it."


def test_a_training_that_fails_gives_what_it_learnt_before(app):
    begin(app, trouble="the loss became nan at step 5, caused by the example in line 3. Fix it or remove it.")
    app["finetune-error"].wait_for()
    assert "line 3" in app.text("finetune-error")
    assert app["finetune-use"].is_visible() and app.text("status") == "ready"


def test_settings_that_make_no_sense_do_not_start(app):
    app["finetune"].click()
    give(app)
    app["finetune-rank"].fill("0")
    app.page.get_by_text("Rank must be a whole number, from 1 to 1024.").wait_for()
    assert app["finetune-start"].is_disabled()
    app["finetune-rank"].fill("")
    app.page.wait_for_function("() => !document.querySelector('[data-testid=finetune-start]').disabled")


def test_examples_that_are_dropped_open_the_view(app):
    script = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["{}"], "lessons.jsonl"));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    app.page.evaluate(script)
    app.page.wait_for_function("() => !document.querySelector('[data-testid=finetune-start]').disabled")
    assert "lessons.jsonl" in app.text("finetune-view")
    app["new-chat"].click()
    assert app["finetune-view"].is_hidden() and app["prompt"].is_visible()


def test_adapter_files_are_opened_beside_the_model(app):
    def pick(*names: str) -> None:
        files = [{"name": name, "mimeType": "", "buffer": b"numbers"} for name in names]
        app["adapter-file"].set_input_files(files)

    assert app["adapter-list"].is_hidden()
    pick("pirate.gguf")
    pick("adapter_config.json", "adapter_model.safetensors")
    app["adapter"].nth(1).wait_for()
    assert [name.strip() for name in app["adapter-list"].locator(".name").all_inner_texts()] == ["pirate", "adapter"]
    pick("bad.gguf")
    app.page.get_by_text("bad.gguf does not fit this model.").wait_for()
    pick("adapter_config.json")
    app.page.get_by_text("is two files").wait_for()
    assert app["adapter"].count() == 2
    app.ask("Hello")
    assert app.asked()[0]["options"]["adapter"] == {"pirate": 1, "adapter": 1}
    app["model-select"].select_option("gemma4:e2b")
    app["load"].click()
    app["adapter-list"].wait_for(state="hidden")  # they belonged to the other one


def test_the_view_fits_a_phone(visit):
    app = visit(viewport={"width": 360, "height": 740}).open()
    app.page.get_by_label("Show the list of chats").click()
    begin(app)
    app["finetune-use"].wait_for()
    assert app.page.evaluate("() => document.querySelector('#finetune').scrollWidth <= innerWidth")
    assert app["finetune-curve"].bounding_box()["width"] > 250
    assert app.errors == []


def test_the_real_app_learns_and_answers_otherwise(visit, micro, server, tmp_path):
    long = 120_000  # milliseconds: WebGPU in software, on a busy machine
    model = {"name": "micro", "url": "models/micro.gguf", "size": 465_696, "embedded": True}
    app = visit(script=False, models=[model])
    app.page.set_default_timeout(long)
    app.page.goto(app.url)
    app.ready(long)
    app["finetune"].click()
    app["finetune-more"].locator("summary").click()
    for name in ("k", "v", "o", "gate", "up"):
        app[f"finetune-target-{name}"].uncheck()
    for name, value in {"rank": 4, "seq": 32, "batch": 1, "steps": 3, "lr": 0.01}.items():
        app[f"finetune-{name}"].fill(str(value))
    give(app, "yes.jsonl", f"{LESSON}\nno JSON\n")
    app["finetune-skip"].check()
    assert "line 2: not JSON" in app.text("finetune-bad")
    app["finetune-start"].click()
    app["finetune-use"].wait_for()
    assert app["finetune-error"].is_hidden() and state(app) == "Done: 3 steps"
    first, last = map(float, re.findall(r"([\d.]+) at step", drawn(app, 3)))
    assert first > last > 0
    with app.page.expect_download() as download:
        app["finetune-download"].click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    adapter = read_adapter(path)
    assert {name.split(".")[2] for name in adapter.pairs} == {"attn_q", "ffn_down"} and adapter.rank == 4

    app["finetune-use"].click()
    app["adapter"].wait_for()
    app["finetune-chat"].click()
    app["settings"].click()
    app["setting-maxTokens"].fill("4")
    app["setting-temperature"].fill("0")
    app["settings-close"].click()
    app.say("Say yes.")
    app.ready(long)
    learnt = app.text("message-model")
    app["adapter-on"].click()
    app["regenerate"].click()
    app.ready(long)
    assert app.text("message-model") != learnt
    assert app.errors == []
