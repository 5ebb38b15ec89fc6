"""`wgemma app` in a real browser: its headers are strict, and no other page gets at it.

That its own page works under them is shown by the real app in test_app.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app_server import App, plain_server, running_app

READY = 90_000  # milliseconds; software WebGPU on a busy machine is slow


@pytest.fixture(scope="module")
def app(data: Path) -> Iterator[App]:
    with running_app(data / "ollama-store") as running:
        yield running


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_neither_eval_nor_a_script_in_the_page_can_run(page: Any, app: App) -> None:
    page.goto(f"{app.url}pyodide/NOTICE.txt")  # the same headers, a calmer page
    try_all = """async () => {
        const ran = globalThis.ran = [];
        const add = (name, properties) => {
            const element = Object.assign(document.createElement(name), properties);
            document.body.append(element);
            return element;
        };
        add("script", {textContent: "ran.push('inline')"});
        add("script", {src: "data:text/javascript,ran.push('data')"});
        add("script", {src: URL.createObjectURL(new Blob(["ran.push('blob')"]))});
        const button = add("button", {});
        button.setAttribute("onclick", "ran.push('handler')");
        button.click();
        setTimeout("ran.push('timer')");
        const worker = new Worker(URL.createObjectURL(new Blob(["postMessage(1)"])));
        worker.onmessage = () => ran.push("worker");
        await fetch("http://127.0.0.1:9/", {mode: "no-cors"}).then(() => ran.push("fetched"), () => {});
        await new Promise((done) => setTimeout(done, 300));
        return ran;
    }"""
    assert page.evaluate(try_all) == []


def test_text_cannot_become_html_in_the_page(page: Any, app: App) -> None:
    page.goto(app.url)
    attempts = {
        "inner": "document.body.innerHTML = '<img src=x>'",
        "written": "document.write('<img src=x>')",
        "parsed": "new DOMParser().parseFromString('<img src=x>', 'text/html')",
        "foreign": "new Worker('http://localhost:9/x.js')",
        "imported": "document.createElement('script').text = '1'",
    }
    for name, attempt in attempts.items():
        outcome = page.evaluate(f"(() => {{ try {{ {attempt}; return 'done'; }} catch (e) {{ return e.name; }} }})()")
        assert outcome == "TypeError", name


STRANGER = """<!doctype html><title>stranger</title>
<script>
const home = location.hash.slice(1);
const load = (name, file) => new Promise((resolve, reject) => {
  const element = document.createElement(name);
  element.onload = () => resolve(element);
  element.onerror = reject;
  element.src = home + file;
  document.documentElement.append(element);
});
const attempts = {
  fetch: () => fetch(home + "models.json"),
  blind: () => fetch(home + "models/wgemma-tiny.gguf", {mode: "no-cors"}),
  post: () => fetch(home, {method: "POST", body: "x", mode: "no-cors"}),
  script: () => load("script", "ui/theme.js"),
  image: () => load("img", "icons/icon-192.png"),
  frame: () => load("iframe", "").then((frame) => frame.contentDocument.body),
};
const got = Promise.all(Object.entries(attempts).map(([name, attempt]) => attempt().then(() => name, () => null)));
</script>"""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_site_gets_nothing(page: Any, app: App, name: str, tmp_path: Path) -> None:
    """From another port of the same name, which browsers call the same site, and from another name."""
    (tmp_path / "index.html").write_text(STRANGER)
    with plain_server(tmp_path) as origin:
        page.goto(f"{origin.replace('127.0.0.1', name)}/#{app.url}")
        assert page.evaluate("got.then((names) => names.filter(Boolean))") == []


def test_a_link_from_elsewhere_opens_the_page(page: Any, app: App, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f'<!doctype html><a href="{app.url}">there</a>')
    with plain_server(tmp_path) as origin:
        page.goto(f"{origin.replace('127.0.0.1', 'localhost')}/")
        page.get_by_role("link").click()
        page.get_by_test_id("status").wait_for(timeout=READY)
        assert page.url == app.url


def test_a_link_with_the_token_opens_the_page_off_loopback(page: Any, data: Path, tmp_path: Path) -> None:
    """The cookie it leaves is for the page's own requests: the script that shows the status, and the list of models."""
    with running_app(data / "ollama-store", "--host", "0.0.0.0", "--port", "0") as app:
        assert page.goto(app.url).status == 403
        (tmp_path / "index.html").write_text(f'<!doctype html><a href="{app.url}?token={app.token}">there</a>')
        with plain_server(tmp_path) as origin:
            page.goto(f"{origin.replace('127.0.0.1', 'localhost')}/")
            page.get_by_role("link").click()
            page.locator("option", has_text="gemma4:tiny").wait_for(state="attached", timeout=READY)
            assert page.url == app.url
            assert page.evaluate("document.cookie") == ""  # no script can read it
