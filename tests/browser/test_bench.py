"""The benchmark: on a page of its own, in the app's settings, and as a module.

Most tests put a script in the model's place (scripted_wgemma.js), whose rates are known. The last one runs a real one.
"""

import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from app_page import App

from app_server import plain_server
from wgemma.web.export import export
from wgemma.web.site import CSP, Site

WEB = Path(__file__).resolve().parent.parent.parent / "src/wgemma/web"
LONG = 120_000  # milliseconds: WebGPU in software, on a busy machine


def telling(words: int, **more: Any) -> str:
    """A script for a model that tells a story of so many words."""
    return f"globalThis.scripted = {json.dumps({'answers': [['word '] * words], **more})}"


def ended(app: App, timeout: float = 10_000) -> str:
    """Waits for the benchmark of the page; how it ended."""
    app.page.wait_for_selector("html[data-bench]", timeout=timeout)
    return str(app.page.evaluate("document.documentElement.dataset.bench"))


def listed(app: App) -> App:
    """The page, once it knows its models."""
    app.page.wait_for_function("() => !document.querySelector('[data-testid=bench-run]').disabled")
    return app


def run(app: App) -> str:
    app.page.evaluate("() => { delete document.documentElement.dataset.bench }")
    app["bench-run"].click()
    return ended(app)


def result(app: App) -> Any:
    return app.page.evaluate("benchResult")


def table(text: str) -> dict[str, str]:
    """A report's rows by their names."""
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name.strip(): value.strip() for name, value in rows}


# -- the page


@pytest.fixture
def page(visit: Callable[..., App]) -> Iterator[Callable[..., App]]:
    """Opens the page of benchmarks, at an address and with a script; it must not complain."""
    opened = []

    def page(address: str = "", init: str = telling(8), **how: Any) -> App:
        app = visit(init=init, **how)
        opened.append(app)
        app.page.goto(f"{app.url}/bench.html{address}")
        return app

    yield page
    assert [app.errors for app in opened] == [[]] * len(opened)


def test_an_address_with_a_model_is_all_it_takes(page):
    app = page("?model=models/e2b.gguf&ple=gpu&precision=exact&save=0", telling(300, rate=98.27))
    assert ended(app) == "done"
    (load,) = app.page.evaluate("scripted.loads")
    assert load == {
        "source": "models/e2b.gguf",
        "name": "gemma4:e2b",
        "ple": "gpu",
        "precision": "exact",
        "save": False,
    }
    found = result(app)
    assert found["model"]["name"] == "gemma4:e2b"
    assert found["settings"] == {"ple": "gpu", "precision": "exact"}
    assert found["decode"] == {"tokens": 200, "tokensPerSecond": 98.27}
    short, long = found["prompts"]
    assert 480 <= short["tokens"] <= 512 and 2000 <= long["tokens"] <= 2048
    assert short["tokensPerSecond"] == pytest.approx(40 * 98.27)
    assert found["memory"] == {"heap": 79e6, "gpu": 3.4e9}
    assert found["notes"] == []
    shown = app.text("bench-result")
    for words in ("gemma4:e2b", "98.3", "tokens/s", "weights", "12.3 s", "a script", "subgroups", "Chrome"):
        assert words in shown


def test_no_prompt_begins_as_another_and_every_run_is_the_same_otherwise(page):
    app = page("?model=models/tiny.gguf")
    assert ended(app) == "done"
    asked = app.asked()
    assert all(ask["options"] == {**ask["options"], "temperature": 1, "seed": 1, "adapter": None} for ask in asked)
    said = [ask["messages"][0]["content"] for ask in asked]
    assert len(set(said[:3])) == 1  # compiles, warms up, counts
    assert len({text[:6] for text in said[3:]}) == 4  # two lengths, twice each


def test_without_an_address_one_is_chosen_or_opened(page):
    app = listed(page())
    assert app["bench-model"].locator("option").count() == 2
    assert app.page.evaluate("scripted.loads") == []  # nobody asked for anything yet
    app["bench-model"].select_option("gemma4:e2b")
    assert run(app) == "done"
    assert app.text("bench-run") == "Run again"
    assert run(app) == "done"
    assert len(app.page.evaluate("scripted.loads")) == 1  # the model was still there
    app["bench-file"].set_input_files({"name": "mine.gguf", "mimeType": "", "buffer": b"GGUF"})
    assert app["bench-result"].is_hidden()  # it was another model's
    assert run(app) == "done"
    assert [load["source"] for load in app.page.evaluate("scripted.loads")] == ["models/e2b.gguf", "mine.gguf"]
    assert result(app)["model"]["name"] == "mine.gguf"


def test_an_address_may_ask_not_to_begin(page):
    app = listed(page("?model=models/else/where.gguf&autorun=0"))
    assert app["bench-model"].input_value() == "where.gguf"
    assert app.page.evaluate("scripted.loads") == []


def test_what_goes_wrong_is_a_sentence_and_scripts_are_told(page):
    sentence = "models/tiny.gguf is not there: the server says 404."
    app = page("?model=models/tiny.gguf", telling(8, failure={"code": "network", "message": sentence}))
    assert ended(app) == "failed"
    assert app.text("bench-error") == sentence
    assert result(app) is None
    app.page.evaluate("scripted.failure = null")
    assert run(app) == "done"
    assert app["bench-error"].is_hidden()


def test_without_webgpu_it_says_what_helps(page):
    app = page(script=False, init="delete Navigator.prototype.gpu")
    app.page.wait_for_function(
        "() => document.querySelector('[data-testid=bench-hint]').textContent.includes('WebGPU')"
    )
    assert app["bench-run"].is_disabled()


def test_a_slow_gpu_is_spared_what_takes_too_long(page):
    app = page("?model=models/tiny.gguf", telling(8, rate=2.0))  # 512 tokens at 80 per second
    assert ended(app) == "done"
    assert [prompt["ms"] > 5000 for prompt in result(app)["prompts"]] == [True]
    assert result(app)["notes"] == [
        "The model ended its story after 8 tokens.",
        "A prompt of 2048 tokens was skipped: a shorter one took more than 5 s.",
    ]
    assert "2048 tokens was skipped" in app.text("bench-result")


def test_a_model_with_a_short_context_gets_shorter_prompts(page):
    app = page("?model=models/tiny.gguf", telling(8, info={"context": 700}))
    assert ended(app) == "done"
    short, long = (prompt["tokens"] for prompt in result(app)["prompts"])
    assert short <= 512 < long <= 700 - 32


def test_it_fits_a_phone_in_light_and_dark(page):
    backs = set()
    for scheme in ("light", "dark"):
        app = page("?model=models/tiny.gguf", viewport={"width": 390, "height": 844}, color_scheme=scheme)
        assert ended(app) == "done"
        app.page.get_by_text("As text").click()
        assert app.page.evaluate("document.documentElement.scrollWidth") == 390
        backs.add(app.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backs) == 2


# -- what is copied


def test_the_text_is_an_aligned_table_that_begins_with_the_model(page):
    app = page("?model=models/e2b.gguf", telling(8, rate=98.27), permissions=["clipboard-read", "clipboard-write"])
    assert ended(app) == "done"
    app["bench-copy"].click()
    text = app.page.evaluate("navigator.clipboard.readText()")
    lines = text.split("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1
    rows = table(text)
    assert next(iter(rows)) == "gemma4:e2b"
    assert rows["gemma4:e2b"] == "Q4_K_M, 1.0 GB"
    assert rows["wgemma"] == "1.2.3, precision fast"
    assert rows["Features"] == "shader-f16, subgroups"
    assert re.fullmatch(r"Chrome \d+ on \w+", rows["Browser"])
    assert rows["Per-layer table"] == "in the file, read row by row"
    assert rows["Loading"] == "12.3 s"
    assert rows["- weights"] == "9.1 s, 3.2 GB at 352 MB/s, 1.4 s of it waiting for the file"
    assert rows["Decode, 8 tokens"] == "98.3 tokens/s"
    assert list(rows)[-1].startswith("Decode") and list(rows)[-2].startswith("Prompt")
    assert not re.search(r"20\d\d-|\d:\d\d", text)  # when it was is for whoever posts it
    app["bench-copy-json"].click()
    copied = json.loads(app.page.evaluate("navigator.clipboard.readText()"))
    assert copied["decode"] == {"tokens": 8, "tokensPerSecond": 98.3}


def test_a_name_cannot_break_the_table(page):
    app = page("?model=models/tiny.gguf", telling(8, info={"name": "a|b`\n| c", "adapter": "x\\|y"}))
    assert ended(app) == "done"
    text = app.page.evaluate("document.querySelector('[data-testid=bench-text]').textContent")
    head, _, _, gpu = text.splitlines()[:4]
    assert head.startswith(r"| a\|b\` \| c ")
    assert gpu.split(" | ")[1].strip(" |") == r"x\\\|y"


AGENTS = {
    "Chrome 140 on Windows": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/140.0.0.0 Safari/537.36",
    "Edge 139 on Windows": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/139.0.0.0 Safari/537.36 Edg/139.0.0.0",
    "Firefox 145 on macOS": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:145.0) Gecko/20100101 Firefox/145.0",
    "Safari 26.1 on iOS": "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
    "Gecko) Version/26.1 Mobile/15E148 Safari/604.1",
    "Chrome 141 on Android": "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/141.0.0.0 Mobile Safari/537.36",
    "something else": "something else",
}


def test_browsers_are_called_what_people_call_them(page):
    app = page()
    call = "async (agents) => agents.map((await import('./bench.js')).browserName)"
    assert app.page.evaluate(call, list(AGENTS.values())) == list(AGENTS)


def test_the_types_name_what_the_module_has(page):
    types = (WEB / "bench.d.ts").read_text()
    app = page("?model=models/tiny.gguf")
    names = app.page.evaluate("async () => Object.keys(await import('./bench.js'))")
    assert sorted(re.findall(r"^export function (\w+)", types, re.MULTILINE)) == sorted(names)
    assert ended(app) == "done"
    fields = re.search(r"export interface Result \{(.*?)\n\}", types, re.DOTALL)
    assert fields and set(re.findall(r"^  (\w+):", fields[1], re.MULTILINE)) == set(result(app))


# -- in the app's settings


def test_the_settings_bench_the_model_that_is_loaded(visit):
    app = visit(init=telling(8, rate=98.27)).open()
    app["settings"].click()
    app["bench-run"].click()
    app["bench-result"].wait_for()
    assert "tiny" in app.text("bench-result") and "98.3" in app.text("bench-result")
    app["settings-close"].click()
    app["settings"].click()
    assert app["bench-result"].is_visible()  # it is kept until the next
    app["settings-close"].click()
    app.ready()
    assert app.ask("Hello").startswith("word")
    assert len(app.page.evaluate("scripted.loads")) == 1
    assert app.errors == []


def test_the_settings_say_why_it_cannot_be_benched_now(visit):
    app = visit(models=[])
    app.page.goto(app.url)
    app["settings"].click()
    assert app["bench-run"].is_disabled()
    assert app.text("bench-hint") == "No model is loaded yet."
    app = visit().open()
    app.script(["Well", "…"])
    app.say("Count")
    app["settings"].click()
    assert app["bench-run"].is_disabled()
    assert "is answering" in app.text("bench-hint")
    app["settings-close"].click()
    app["stop"].click()
    app.ready()
    app["settings"].click()
    assert app["bench-run"].is_enabled()


@pytest.mark.parametrize("stop", ["cancel", "close"])
def test_a_benchmark_can_be_stopped(visit, stop):
    app = visit(init=telling(8)).open()
    app.script(["…"])  # goes on for ever
    app["settings"].click()
    app["bench-run"].click()
    app.page.wait_for_function("() => scripted.asked.length")
    if stop == "cancel":
        app["bench-cancel"].click()
    else:
        app.page.keyboard.press("Escape")
        app.ready()
        app["settings"].click()
    app["bench-run"].wait_for()
    assert app.text("bench-error") == "Stopped."
    assert app["bench-run"].is_enabled()


def test_a_gpu_lost_on_the_way_is_told_in_both_places(visit):
    app = visit(init=telling(8)).open()
    app.script(["Half", {"error": {"code": "device-lost", "message": "The GPU went away."}}])
    app["settings"].click()
    app["bench-run"].click()
    app["bench-error"].wait_for()
    assert "The GPU went away." in app.text("bench-error")
    app["settings-close"].click()
    assert "The GPU went away." in app.text("load-error")


# -- where it is


def test_every_site_has_the_page_under_the_same_policy() -> None:
    site = Site()
    page = site.read("bench.html")[0].decode()
    places = [page.index(part) for part in ("Content-Security-Policy", CSP, "trusted.js", "bench_page.js")]
    assert places == sorted(places)
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", page)
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"./"} <= set(site.assets)
    assert {"bench.html", "bench.js", "bench_page.js", "bench.css", "ui/bench_view.js"} <= set(site.shell())


def test_an_exported_page_is_there_without_its_server(browser: Any, tmp_path: Path) -> None:
    export(tmp_path / "chat")
    context = browser.new_context()
    with plain_server(tmp_path) as origin:
        app = App(context.new_page(), f"{origin}/chat")
        app.page.goto(f"{app.url}/pyodide/NOTICE.txt")
        app.page.evaluate("navigator.serviceWorker.register('../sw.js').then(() => null)")
        app.page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    app.page.goto(f"{app.url}/bench.html?model=models/wgemma-tiny.gguf&autorun=0")
    assert listed(app)["bench-model"].input_value() == "wgemma-tiny"
    context.close()


# -- the real thing


def short_of_memory(model: bytes, context: int) -> bytes:
    """The same model with another context: its benchmark is as short."""
    key = b"gemma4.context_length"
    place = model.index(key) + len(key) + 4  # after the value's type, a u32
    return model[:place] + struct.pack("<I", context) + model[place + 4 :]


def test_a_real_model_is_measured(browser: Any, server: Any, micro: str) -> None:
    server.models["short.gguf"] = short_of_memory(server.models["micro.gguf"].read_bytes(), 160)
    context = browser.new_context()
    app = App(context.new_page(), server.url)
    app.page.goto(f"{server.url}/bench.html?model={micro.replace('micro', 'short')}&precision=exact&save=0")
    assert ended(app, LONG) == "done", app.text("bench-error")
    found = result(app)
    (prompt,) = found["prompts"]
    assert 100 <= prompt["tokens"] <= 160 and prompt["reused"] < 12  # what all chats begin with
    assert prompt["tokensPerSecond"] == pytest.approx(1000 * prompt["tokens"] / prompt["ms"])
    assert 1 < found["decode"]["tokens"] <= 160 and found["decode"]["tokensPerSecond"] > 0
    assert found["loading"]["total"] > 0 and "weights" in [stage["name"] for stage in found["loading"]["stages"]]
    assert found["adapter"]["name"] and found["memory"]["gpu"] > 0
    context.close()
