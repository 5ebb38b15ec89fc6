"""The exported site works from any web server, and from none: a service worker keeps what the page needs."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app_server import plain_server, running_app
from wgemma.web.export import export

READY = 90_000  # milliseconds; software WebGPU on a busy machine is slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the site in a folder of its own: nothing may depend on being at the root."""
    root = tmp_path_factory.mktemp("web")
    export(root / "chat")
    return root


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser that was never here before."""
    fresh = browser.new_context()
    yield fresh
    fresh.close()


def active_worker(page: Any) -> str:
    """Waits until a service worker has everything and answers for this page; its state."""
    state: str = page.evaluate(
        """navigator.serviceWorker.ready.then(async (found) => {
          while (!navigator.serviceWorker.controller) await new Promise((done) => setTimeout(done, 20));
          return found.active.state;
        })"""
    )
    return state


def kept(page: Any) -> list[str]:
    urls: list[str] = page.evaluate(
        "caches.open('wgemma-shell').then((c) => c.keys()).then((k) => k.map((r) => r.url))"
    )
    return urls


def test_an_exported_page_goes_on_without_its_server(context: Any, exported: Path) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    with plain_server(exported) as origin:
        page.goto(f"{origin}/chat/")
        assert active_worker(page) in ("activating", "activated")  # it has the model, loaded here or not
        assert not wrong
    page.reload()
    expect(page.get_by_test_id("status")).to_have_text("ready", timeout=READY)
    page.get_by_test_id("prompt").fill("Hello!")
    page.get_by_test_id("send").click()
    expect(page.get_by_test_id("message-model").last).to_contain_text(re.compile(r"\w"), timeout=READY)
    assert {url.partition("/chat/")[0] for url in asked} <= {origin, f"blob:{origin}"}


def test_the_embedded_model_is_there_offline_also_if_it_was_never_loaded(context: Any, exported: Path) -> None:
    (model,) = json.loads((exported / "chat/models.json").read_text())
    page = context.new_page()
    with plain_server(exported) as origin:
        page.goto(f"{origin}/chat/pyodide/NOTICE.txt")
        page.evaluate("navigator.serviceWorker.register('../sw.js').then(() => null)")
        page.goto(f"{origin}/chat/icons/icon.svg")
        active_worker(page)
    listed = page.evaluate("fetch('../models.json').then((answer) => answer.json())")
    assert listed == [model]
    size = page.evaluate(
        "(url) => fetch(url).then((a) => a.arrayBuffer()).then((b) => b.byteLength)", f"../{model['url']}"
    )
    assert size == model["size"]
    # A download that was interrupted asks for the rest; all of it lets it start again.
    rest = "(url) => fetch(url, {headers: {Range: 'bytes=9-'}}).then(async (a) => [a.status, (await a.blob()).size])"
    assert page.evaluate(rest, f"../{model['url']}") == [200, model["size"]]


def test_ranges_and_other_models_pass_the_service_worker_by(context: Any, data: Path) -> None:
    page = context.new_page()
    with running_app(data / "ollama-store") as app:
        page.goto(f"{app.url}icons/icon.svg")
        page.evaluate("navigator.serviceWorker.register('/sw.js').then(() => null)")
        active_worker(page)
        page.goto(f"{app.url}icons/icon.svg")
        ask = "(url) => fetch(url, {headers: {Range: 'bytes=0-3'}}).then(async (a) => [a.status, await a.text()])"
        assert page.evaluate(ask, "/models/wgemma-tiny.gguf") == [206, "GGUF"]
        assert page.evaluate(ask, "/models/gemma4-tiny.gguf") == [206, "GGUF"]
        page.evaluate("fetch('/models/gemma4-tiny.gguf').then((answer) => answer.blob()).then(() => null)")
        names = {url.partition("?")[0].removeprefix(app.url) for url in kept(page)}
        assert {"", "app.js", "wgemma.zip", "pyodide/pyodide.asm.wasm", "models/wgemma-tiny.gguf"} < names
        assert not {"models/gemma4-tiny.gguf", "models.json", "sw.js"} & names
        assert page.goto(app.url).from_service_worker
        assert not page.goto(f"{app.url}?token=x").from_service_worker  # the server makes a cookie of it


def changed(site: Path, name: str, text: str, honest: bool = True) -> str:
    """A new version of one file, and the service worker that goes with it; without `honest`, its hash is another."""
    (site / name).write_text(text)
    worker = (site / "sw.js").read_text()
    digest = hashlib.sha256(text.encode() if honest else b"something else").digest()
    fresh = f'"{name}": "sha256-{base64.b64encode(digest).decode()}"'
    worker, count = re.subn(rf'"{re.escape(name)}": "sha256-[^"]*"', lambda match: fresh, worker)
    assert count == 1
    (site / "sw.js").write_text(worker)
    return fresh


def shown(page: Any, url: str) -> str:
    """What a page gets for the style sheet, once it is opened anew and nothing reloads it any more."""
    page.goto(url)
    page.get_by_test_id("status").wait_for(timeout=READY)
    style: str = page.evaluate("fetch('style.css').then((answer) => answer.text())")
    return style


def test_a_new_version_takes_over_at_the_next_visit(context: Any, exported: Path) -> None:
    site = exported / "chat"
    before = {name: (site / name).read_text() for name in ("style.css", "sw.js")}
    page = context.new_page()
    try:
        with plain_server(exported) as origin:
            url = f"{origin}/chat/"
            assert shown(page, url) == before["style.css"]
            active_worker(page)
            count = len(kept(page))
            changed(site, "style.css", "/* second */")
            slow = "setTimeout(() => worker.skipWaiting(), 500)"
            (site / "sw.js").write_text((site / "sw.js").read_text().replace("worker.skipWaiting()", slow))
            page.goto(f"{url}icons/icon.svg")  # leaves the app, which would be busy loading its model
            update = """navigator.serviceWorker.getRegistration().then(async (found) => {
                await found.update();
                const fresh = found.installing ?? found.waiting;
                while (fresh.state === "installing") await new Promise((done) => setTimeout(done, 20));
                return fresh.state;
            })"""
            assert page.evaluate(update) == "installed"
            opened: list[str] = []
            page.on("framenavigated", lambda frame: opened.append(frame.url))
            assert shown(page, url) == "/* second */"
            assert opened == [url, url]  # none while the workers change places: the browser may lose it
            assert len(kept(page)) == count

            # A server that is only half updated changes nothing.
            changed(site, "style.css", "/* third */", honest=False)
            page.goto(f"{url}icons/icon.svg")
            assert page.evaluate(update) == "redundant"
            assert shown(page, url) == "/* second */"
    finally:
        for name, text in before.items():
            (site / name).write_text(text)
