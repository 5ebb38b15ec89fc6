"""Imported chats in the page: inherited names mean nothing, and twenty thousand messages do not block it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_page import App

INHERITED = ("constructor", "__proto__", "toString", "hasOwnProperty", "valueOf")


@pytest.fixture
def app(visit: Callable[..., App]) -> App:
    return visit().open()


def file_of(path: Path, *messages: dict[str, Any], **facts: Any) -> Path:
    chain = [{"id": str(i), "parent": str(i - 1) if i else None, **said} for i, said in enumerate(messages)]
    chats = [{"title": "imported", "messages": chain, **facts}]
    path.write_text(json.dumps({"format": "wgemma chats", "version": 1, "chats": chats}))
    return path


def test_names_that_every_object_has_say_nothing_in_a_message(app: App, tmp_path: Path) -> None:
    answers = [
        {"role": "assistant", "content": f"&{name[:4]};\n```{name}\n1\n```", "finish": name, "model": name}
        for name in INHERITED
    ]
    wrong = [{"role": name, "content": "x"} for name in INHERITED]
    settings = {name: name for name in INHERITED}
    path = file_of(tmp_path / "chats.json", *answers, *wrong, head="constructor", settings=settings)
    app["import"].set_input_files(path)
    app["message-model"].nth(len(INHERITED) - 1).wait_for()
    assert app["message-model"].count() == len(INHERITED)
    assert app["message-note"].count() == 0
    assert "native code" not in app.page.content()
    app.ask("And on?")
    assert app.errors == []


def test_nor_as_the_code_of_an_error_or_the_stage_of_a_load(app: App) -> None:
    told = app.page.evaluate(
        """async (names) => {
          const {explained} = await import("/ui/errors.js");
          const {ModelLine} = await import("/ui/model_line.js");
          const line = new ModelLine({cancel() {}, deed() {}});
          return names.map((name) => {
            const {text, next} = explained({code: name, message: "No."});
            const progress = {stage: name, loaded: 0, total: 0, text: "Waiting", rate: 0};
            line.show({state: "loading", progress, entry: {}, holds: () => true}, null);
            return [text.trim(), next ?? null, line.stage.textContent];
          });
        }""",
        INHERITED,
    )
    assert told == [["No.", None, "Waiting"]] * len(INHERITED)


def test_a_version_that_is_no_number_is_a_sentence(app: App) -> None:
    for version, shown in (({"toString": 1}, '{"toString":1}'), (None, "null"), ("1", '"1"')):
        content = json.dumps({"format": "wgemma chats", "version": version}).encode()
        app["import"].set_input_files({"name": "c.json", "mimeType": "", "buffer": content})
        app.page.get_by_text(f"has version {shown}; this page reads version 1").wait_for()


COUNT = 20_000
# What takes long on this machine now: reading the file at once, which is a small part of importing it.
WATCH = """async (text) => {
  globalThis.blocks = [];
  new PerformanceObserver((list) => blocks.push(...list.getEntries())).observe({type: "longtask"});
  const times = [];
  for (let i = 0; i < 5; i++) {
    const began = performance.now();
    JSON.parse(text);
    times.push(performance.now() - began);
    await new Promise((done) => setTimeout(done, 60));
  }
  blocks.length = 0;
  return times;
}"""


def test_twenty_thousand_messages_never_block_the_page_for_long(app: App, tmp_path: Path) -> None:
    """It takes a few seconds, because that many records go through the browser's database."""
    said = [
        {"role": "assistant" if i % 2 else "user", "content": f"Message **{i}**, one of many. " * 4, "created": i}
        for i in range(COUNT)
    ]
    path = file_of(tmp_path / "long.json", *said)
    read = app.page.evaluate(WATCH, path.read_text())
    last = app.page.get_by_text(f"Message {COUNT - 1}, one").first
    app["import"].set_input_files(path)
    last.wait_for(timeout=60_000)
    app["new-chat"].click()
    app["chat"].click()
    last.wait_for(timeout=60_000)
    longest = app.page.evaluate("() => Math.max(0, ...blocks.map((block) => block.duration))")
    assert longest < max(200, 10 * max(read)), (longest, read)
    assert app.errors == []


def test_earlier_messages_come_on_request_and_what_is_read_stays(app: App, tmp_path: Path) -> None:
    said = [{"role": "assistant" if i % 2 else "user", "content": f"Message {i}!"} for i in range(90)]
    app["import"].set_input_files(file_of(tmp_path / "chats.json", *said))
    app.page.get_by_text("Message 89!").wait_for()
    turns = app.page.locator(".turn")
    assert turns.count() == 40
    app.ask("And on?")
    assert turns.count() == 42  # none is taken away
    first = app.page.get_by_text("Message 50!")
    app["earlier"].scroll_into_view_if_needed()
    before = first.bounding_box()
    app["earlier"].click()
    assert turns.count() == 82
    assert abs(first.bounding_box()["y"] - before["y"]) < 2
    app["earlier"].click()
    assert turns.count() == 92
    assert app["earlier"].count() == 0
    assert app.page.get_by_text("Message 0!").count() == 1
    app.page.reload()
    app.page.get_by_text("Message 89!").wait_for()
    assert turns.count() == 40
