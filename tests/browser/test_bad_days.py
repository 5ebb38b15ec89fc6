"""What can go wrong in the page, with the real engine in it: each time a sentence, and the chat is kept."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from app_page import App, visits, without_engine

LONG = 120_000  # milliseconds: WebGPU in software, on a busy machine


@pytest.fixture(scope="module")
def opened(browser: Any, server: Any, micro: str) -> Iterator[App]:
    """The page with a model loaded, and one that was not loaded yet to choose."""
    server.models["other.gguf"] = server.models["micro.gguf"]
    facts = {"size": 1_335_840, "quantisation": "Q8_0", "parameters": 0, "capabilities": []}
    models = [
        {"name": "first", "url": "models/micro.gguf", "embedded": True, **facts},
        {"name": "other", "url": "models/other.gguf", **facts},
    ]
    with visits(browser, server.url) as visit:
        app = visit(script=False, models=models)
        app.page.set_default_timeout(LONG)
        app.page.goto(app.url)
        app.ready(LONG)
        app["settings"].click()
        app["setting-maxTokens"].fill("4")
        app["setting-temperature"].fill("0")
        app["settings-close"].click()
        yield app


@pytest.fixture
def app(opened: App) -> App:
    """A chat with one answer in it, and nothing kept but the first model."""
    opened.errors.clear()
    opened.page.evaluate("async () => { const w = await import('/wgemma.js'); await w.forget('/models/other.gguf'); }")
    opened["new-chat"].click()
    opened["model-select"].select_option("first")
    if opened["load"].is_visible():
        opened["load"].click()
    opened.ready(LONG)
    opened.say("Hello")
    opened.ready(LONG)
    return opened


def refused(app: App, *words: str) -> None:
    """The page says what is wrong, and what was said is still there."""
    app["load-error"].wait_for()
    sentence = app.text("load-error")
    assert all(word in sentence for word in words), sentence
    assert app.text("status") == "failed"
    assert app["message-user"].all_inner_texts() == ["Hello"]
    assert app["message-model"].count() == 1


def goes_on(app: App) -> None:
    """The chat goes on, and another visit finds all of it."""
    app.ready(LONG)
    app.say("And on?")
    app.ready(LONG)
    assert app["message-error"].count() == 0
    assert app.errors == []
    other = App(app.page.context.new_page(), app.url)
    without_engine(other.page)
    other.page.goto(other.url)
    other["chat"].first.click()
    other["message-model"].nth(1).wait_for()
    assert other["message-user"].all_inner_texts() == ["Hello", "And on?"]
    assert other["message-model"].count() == 2
    other.page.close()


def test_files_that_are_no_models(app: App, server: Any) -> None:
    whole = server.models["micro.gguf"].read_bytes()
    for name, body, words in (
        ("notes.gguf", b"Notes, not weights. " * 50, ("notes.gguf", "not a GGUF")),
        ("cut.gguf", whole[:-1000], ("cut.gguf", "Is the download complete?")),
        ("empty.gguf", b"", ("empty.gguf",)),
        ("damaged.gguf", whole[:4] + b"\xff" * 64 + whole[68:], ("damaged.gguf",)),
    ):
        app["pick-file"].set_input_files({"name": name, "mimeType": "", "buffer": body})
        app.page.wait_for_function("(name) => document.querySelector('.failed')?.textContent.includes(name)", arg=name)
        refused(app, *words)
    app["model-select"].select_option("first")
    app["load"].click()
    goes_on(app)


def test_a_quota_that_is_refused(app: App, server: Any) -> None:
    devtools = app.page.context.new_cdp_session(app.page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url, "quotaSize": 200_000})
    app["model-select"].select_option("other")
    app["load"].click()
    refused(app, "other.gguf cannot be kept", "without keeping it")
    app.page.get_by_role("button", name="Load without keeping it").click()
    app.ready(LONG)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url})
    goes_on(app)


def test_a_server_that_is_gone(app: App, server: Any) -> None:
    server.gone = True
    try:
        app["model-select"].select_option("other")
        app["load"].click()
        refused(app, "does not answer", "Check the connection")
    finally:
        server.gone = False
    app.errors.clear()  # the browser's own word for a request that failed
    app.page.get_by_role("button", name="Try again").click()
    goes_on(app)


def test_a_gpu_process_that_is_killed(app: App, kill_gpu: Callable[[], None]) -> None:
    before = app.text("message-model")
    kill_gpu()
    app["regenerate"].click()
    app.ready(LONG)
    assert app.text("message-model") == before  # its GPU came back, and so did the model
    app.errors.clear()
    goes_on(app)
