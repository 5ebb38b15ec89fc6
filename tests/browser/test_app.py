"""The page people chat with, in a real Chromium.

Most tests put a script in the model's place (scripted_wgemma.js): they are about the page, and a script can call tools,
think, and fail on demand. The last ones run the real thing.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from app_page import App

from app_server import running_app
from media_maker import png

DOT = png(3, 2, [bytes(3)] * 2)


@pytest.fixture
def app(visit: Callable[..., App]) -> Iterator[App]:
    app = visit().open()
    yield app
    assert app.errors == []


# -- talking


def test_a_message_is_answered(app):
    app.script([{"kind": "content", "text": "Some **bold** "}, "words.\n\n```py\nx = 1\n```"])
    assert app.ask("Say something") == "Some bold words.\n\npy\nCopy\nx = 1"
    assert app.text("message-user") == "Say something"
    assert app["message-model"].locator("strong").inner_text() == "bold"
    assert app["prompt"].input_value() == ""
    stats = app.text("stats")
    assert "42 tokens/s" in stats
    assert "first after 0.25 s" in stats
    assert re.search(r"context \d+ of 4.096 \(prompt 120, 100 reused, \d+ generated\)", stats)


def test_enter_sends_and_shift_enter_does_not(app):
    app["prompt"].press_sequentially("one")
    app["prompt"].press("Shift+Enter")
    app["prompt"].press_sequentially("two")
    assert app["message-user"].count() == 0
    app["prompt"].press("Enter")
    app.answered()
    assert app.asked()[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]


def test_escape_and_the_button_stop_an_answer_and_keep_it(app):
    app.script(["Well", "…"])
    for stop in (lambda: app.page.keyboard.press("Escape"), lambda: app["stop"].click()):
        app.say("Count")
        app.page.wait_for_function("() => document.querySelector('.growing article')?.textContent.includes('…')")
        assert app["send"].is_hidden()
        stop()
        assert app.answered().startswith("Well…")
        assert app["message-note"].last.inner_text() == "Stopped."
        assert app["stop"].is_hidden()


def test_a_full_context_is_told_where_old_messages_were_dropped(app):
    for dropped in (0, 4, 4, 10):
        app.page.evaluate("(dropped) => { scripted.dropped = dropped }", dropped)
        app.ask("And?")
    notes = app["message-shift"].all_inner_texts()
    assert notes == [f"The context is full: the model no longer sees the {n} oldest messages." for n in (4, 10)]
    app.page.reload()
    app.ready()
    assert app["message-shift"].all_inner_texts() == notes


def test_an_answer_can_be_had_again_and_the_first_is_kept(app):
    app.script(["first"], ["second"])
    app.ask("Hello")
    app["regenerate"].press("Enter")
    assert app.answered() == "second"
    assert app.page.evaluate("() => document.activeElement.dataset.testid") == "prompt"  # its button is another one now
    assert app["message-model"].count() == 1
    assert app.text("versions") == "2/2"
    app.page.get_by_label("Earlier version").click()
    assert app.text("message-model") == "first"
    app.page.reload()
    app.ready()
    assert app.text("message-model") == "first"


def test_a_message_can_be_edited_and_sent_again(app):
    app.script(["one"], ["two"], ["three"])
    app.ask("a")
    app.ask("b")
    app["prompt"].press("ArrowUp")  # the last message
    app["edit-text"].fill("c")
    app["edit-text"].press("Enter")
    assert app.answered() == "three"
    said = [message["content"] for message in app.asked()[-1]["messages"]]
    assert said == ["a", "one", "c"]
    app["edit"].first.click()
    app["edit-text"].press("Escape")
    assert app["message-user"].all_inner_texts() == ["a", "c"]
    assert app.page.evaluate("() => document.activeElement.dataset.testid") == "edit"  # back where one was


def test_thinking_is_open_while_it_lasts_and_closed_after(app):
    app["think"].click()
    app.script([{"kind": "thinking", "text": "Hm, "}, {"kind": "thinking", "text": "rather…"}, "…"])
    app.say("Think")
    app.page.wait_for_function("() => document.querySelector('[data-testid=thinking]:not([open])')")
    app["stop"].click()
    app.ready()
    assert app.asked()[-1]["options"]["think"] is True
    assert app["thinking"].locator("summary").inner_text().startswith("Thought for")
    app["thinking"].locator("summary").click()
    assert "Hm, rather…" in app.text("thinking")


def test_a_tool_call_waits_for_its_result(app):
    app["settings"].click()
    app["setting-tools"].fill('[{"name": "weather", "parameters": {"type": "object"}}]')
    app["settings-close"].click()
    call = {"name": "weather", "arguments": {"city": "<b>Paris</b>", "days": 3}}
    app.script([{"kind": "tool_call", "text": "", "toolCall": call}], ["Sunny."])
    app.say("How is the weather?")
    app["tool-call"].wait_for()
    app.ready()
    assert app["tool-call"].locator("strong").inner_text() == "weather"
    assert '"city": "<b>Paris</b>"' in app.text("tool-call")
    app["tool-input"].fill('{"sky": "blue"}')
    app["tool-send"].click()
    assert app.answered() == "Sunny."
    asked = app.asked()
    assert asked[0]["options"]["tools"][0]["function"]["name"] == "weather"
    assert asked[1]["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        {"role": "tool", "name": "weather", "content": {"sky": "blue"}},
    ]
    assert app.text("tool-result") == '{"sky": "blue"}'


# -- models and settings


def test_models_are_shown_with_size_and_fit_and_bring_their_own_settings(app):
    options = app["model-select"].locator("option").all_inner_texts()
    assert [re.sub(r"\s+", " ", option) for option in options] == [
        "tiny · 15.0 MB · Q4_K_M",
        "gemma4:e2b · 7.2 GB · Q4_K_M",
    ]
    app["model-select"].select_option("gemma4:e2b")
    line = app.page.locator("#model-line").inner_text()
    assert "5.1B parameters · Q4_K_M · 7.2 GB · sees · hears" in line
    assert "of GPU memory" in app.text("fit")
    assert app.ask("Ahoy")  # sending loads what is chosen
    asked = app.asked()[-1]
    assert asked["messages"] == [{"role": "user", "content": "Ahoy"}]
    assert asked["options"]["temperature"] == 0.7
    assert asked["options"]["topK"] == 20
    loads = app.page.evaluate("() => scripted.loads")
    assert [load["source"] for load in loads] == ["models/tiny.gguf", "models/e2b.gguf"]
    assert [load["system"] for load in loads] == ["", "You are a pirate."]


def test_settings_count_at_once_and_nonsense_is_explained(app):
    app["settings"].click()
    app["setting-system"].fill("Be brief.")
    for name, value in {"temperature": "0", "topK": "7", "topP": "0.5", "minP": "0.1", "seed": "-1"}.items():
        app[f"setting-{name}"].fill(value)
    app["setting-maxTokens"].fill("9")
    app["setting-topP"].fill("3")
    assert "from 0 to 1" in app.page.locator("#problem-topP").inner_text()
    app["setting-tools"].fill("[{")
    assert "not JSON" in app.page.locator("#problem-tools").inner_text()
    app["setting-tools"].fill("")
    for text, words in {"{": "not JSON", "[]": "no schema", "null": "no schema", "yaml": "not JSON"}.items():
        app["setting-format"].fill(text)
        assert words in app.page.locator("#problem-format").inner_text()
    app["setting-format"].fill("")
    assert app.page.locator("#problem-format").inner_text() == ""
    app.page.keyboard.press("Escape")
    app.ask("Hi")
    app["new-chat"].click()
    app.ask("Again")  # new chats begin with what was set last
    for asked in app.asked():
        assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
        options = {"think": False, "temperature": 0, "topK": 7, "topP": 0.5, "minP": 0.1, "seed": -1, "maxTokens": 9}
        assert asked["options"] == options


def test_an_answer_format_is_a_schema_or_the_word_json(app):
    schema = {"type": "object", "properties": {"b": {"enum": [None]}, "a": True}}
    for text, format in ((json.dumps(schema), schema), (" json\n", "json"), ("true", True)):
        app["settings"].click()
        app["setting-format"].fill(text)
        app["settings-close"].click()
        app.ask("Hi")
        assert json.dumps(app.asked()[-1]["options"]["format"]) == json.dumps(format)
    app.page.reload()
    app.ready()
    app["settings"].click()
    assert app["setting-format"].input_value() == "true"  # it belongs to the chat
    app["settings-reset"].click()
    assert app["setting-format"].input_value() == ""


def test_a_picked_model_may_bring_its_towers_in_a_second_file(app):
    files = [{"name": name, "mimeType": "", "buffer": b"GGUF"} for name in ("mmproj-F16.gguf", "gemma.gguf")]
    app["pick-file"].set_input_files(files)
    loaded = "() => scripted.loads.at(-1).source === 'gemma.gguf' && scripted.loads.at(-1).projector.name"
    assert app.page.wait_for_function(loaded).json_value() == "mmproj-F16.gguf"
    app.ready()
    assert "gemma.gguf" in app["model-select"].locator("option:checked").inner_text()


def test_picked_parts_are_one_model(app):
    names = ("m-00002-of-00002.gguf", "other.gguf", "m-00001-of-00002.gguf", "mmproj-F16.gguf")
    app["pick-file"].set_input_files([{"name": name, "mimeType": "", "buffer": b"GGUF"} for name in names])
    assert app.page.wait_for_function("() => scripted.loads.at(-1)?.projector && scripted.loads.at(-1).source")
    app.ready()
    assert app.page.evaluate("() => scripted.loads.at(-1).source") == f"{names[0]},{names[2]}"
    assert "m.gguf" in app["model-select"].locator("option:checked").inner_text()


def test_a_file_that_is_no_model_is_explained_and_the_chat_kept(app):
    app.ask("Hello")
    sentence = "notes.gguf is not a GGUF file. Choose another."
    app.page.evaluate("(message) => { scripted.failure = {code: 'not-gguf', message} }", sentence)
    app["pick-file"].set_input_files({"name": "notes.gguf", "mimeType": "", "buffer": b"hello"})
    app["load-error"].wait_for()
    assert app.text("load-error") == sentence
    assert app.text("status") == "failed"
    assert app.text("message-user") == "Hello"


def test_a_lost_gpu_keeps_the_chat_and_offers_to_load_again(app):
    app.script(["Half an ", {"error": {"code": "device-lost", "message": "The GPU went away."}}], ["whole"])
    app.say("Hello")
    app["message-error"].wait_for()
    assert "The GPU went away." in app.text("message-error")
    assert app.text("message-model") == "Half an"
    assert app.text("status") == "failed"
    app.page.get_by_role("button", name="Load again").click()
    app.ready()
    app["regenerate"].click()
    assert app.answered() == "whole"


def test_a_model_too_large_to_keep_can_be_used_without_keeping_it(app):
    app.page.evaluate("() => { scripted.failure = {code: 'quota', message: 'There is no room to keep it.'} }")
    app["model-select"].select_option("gemma4:e2b")
    app["load"].click()
    app["load-error"].wait_for()
    app.page.evaluate("() => { delete scripted.failure }")
    app.page.get_by_role("button", name="Load without keeping it").click()
    app.ready()
    assert app.page.evaluate("() => scripted.loads.at(-1).save") is False


# Chats take a while to open, as on a busy machine.
SLOW_STORE = """const open = IDBFactory.prototype.open;
IDBFactory.prototype.open = function (...how) {
  const request = open.apply(this, how);
  const set = (heard) => request.addEventListener("success", () => setTimeout(heard, 1000));
  return Object.defineProperty(request, "onsuccess", { set });
};"""


def test_no_click_is_lost_while_the_page_starts(visit):
    app = visit(init=SLOW_STORE)
    app.page.goto(app.url)
    app["settings"].click()
    app["settings-close"].click()
    app.ready()
    assert app.ask("Hello") == "You said it."


def test_loading_can_be_cancelled(visit):
    app = visit(init="globalThis.scripted = {pause: 500}")
    app.page.goto(app.url)
    app["cancel-load"].click()
    app.page.wait_for_function("() => document.querySelector('[data-testid=status]').textContent === 'no model loaded'")
    assert app.errors == []


# -- chats that stay


def test_a_reload_keeps_chat_draft_and_settings(app):
    app.ask("Hello")
    app["think"].click()
    app["prompt"].fill("not yet sent")
    app.page.reload()
    app.ready()
    assert app.text("message-user") == "Hello"
    assert app.text("message-model") == "You said it."
    assert app["prompt"].input_value() == "not yet sent"
    assert app["think"].get_attribute("aria-pressed") == "true"
    assert "42 tokens/s" in app.text("stats")


def test_a_reload_in_the_middle_of_an_answer_keeps_what_was_said(app):
    app.script(["Once upon a time", "…"])
    app.say("A story")
    app.page.wait_for_function("() => document.querySelector('.growing article')?.textContent.length > 30")
    app.page.reload()
    app.ready()
    assert app.text("message-model").startswith("Once upon a time…")
    assert len(app.text("message-model")) > 30
    assert "closed during this answer" in app.text("message-note")


def test_an_answer_goes_on_while_another_chat_is_open(app):
    app.script(["Well", "…"], ["short"])
    app.say("Long")
    app["message-model"].get_by_text("Well").wait_for()
    app["new-chat"].click()
    assert app["message-model"].count() == 0
    app.say("Meanwhile")
    assert app["message-user"].count() == 0  # one answer at a time: the message stays in its box
    assert app["prompt"].input_value() == "Meanwhile"
    app["chat"].click()
    length = len(app.text("message-model"))
    app.page.wait_for_function("(n) => document.querySelector('.growing article').innerText.length > n", arg=length)
    app["stop"].click()
    app.ready()


def test_chats_are_found_renamed_deleted_and_brought_back(app):
    app.script(["The answer speaks of *zebras*."], ["Nothing of the kind."])
    app.ask("First question")
    app["new-chat"].click()
    app.ask("Second question")
    app["search"].fill("ZEBRAS")
    app.page.wait_for_function("() => document.querySelectorAll('[data-testid=chat]').length === 1")
    assert app["chat"].inner_text().splitlines()[0] == "First question"
    app["search"].fill("")
    app.page.wait_for_function("() => document.querySelectorAll('[data-testid=chat]').length === 2")
    app["chat"].first.hover()
    app["rename"].first.click()
    app["rename-input"].fill("Renamed")
    app["rename-input"].press("Enter")
    app["chat"].get_by_text("Renamed").hover()
    app["delete"].first.click()
    app["chat"].get_by_text("Renamed").wait_for(state="detached")
    assert app["welcome"].is_visible()
    app["toast-action"].click()
    app["chat"].get_by_text("Renamed").click()
    assert app.text("message-user") == "Second question"


def test_a_chat_that_another_tab_deleted_is_kept_when_it_goes_on_here(app):
    app.ask("First")
    other = App(app.page.context.new_page(), app.url).open()
    other["chat"].hover()
    other["delete"].click()
    other["chat"].wait_for(state="detached")
    app.ask("Second")
    app.page.reload()
    app.ready()
    assert app["message-user"].all_inner_texts() == ["First", "Second"]
    assert other.errors == []


def test_storage_that_is_refused_is_explained_and_chatting_goes_on(visit):
    app = visit(init="IDBFactory.prototype.open = () => { throw new DOMException('denied', 'SecurityError') }").open()
    assert "until this tab is closed" in app.text("notice-storage")
    assert app.ask("Hello") == "You said it."


def test_storage_that_is_full_is_explained_and_chatting_goes_on(visit):
    full = """IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') }"""
    app = visit(init=full).open()
    app["attach-image"].set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": DOT})
    app["chip"].wait_for()
    assert app.ask("Hello") == "You said it."
    assert app.page.evaluate("() => scripted.asked[0].messages[0].content[0].image.type") == "image/png"
    assert "storage for this page is full" in app.text("notice-unsaved")
    with app.page.expect_download() as download:
        app["notice-unsaved"].get_by_role("button", name="Export").click()
    (chat,) = json.loads(Path(download.value.path()).read_text())["chats"]
    assert [message["content"] for message in chat["messages"]] == ["Hello", "You said it."]
    assert chat["messages"][0]["attachments"][0]["data"]


# -- files


def test_what_is_exported_can_be_imported(app, visit, tmp_path):
    app["attach-image"].set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": DOT})
    app["chip"].wait_for()
    app.script(["one"], ["two"])
    app.ask("What is this?")
    app["regenerate"].click()
    app.answered()
    with app.page.expect_download() as download:
        app["export"].click()
    path = tmp_path / "chats.json"
    download.value.save_as(path)
    other = visit().open()
    other["import"].set_input_files(path)
    other["message-user"].wait_for()
    assert other.text("message-user") == "What is this?"
    assert other.text("message-model") == "two"
    assert other.text("versions") == "2/2"
    other.page.wait_for_function("() => document.querySelector('article img')?.naturalWidth === 3")
    with other.page.expect_download() as again:
        other["export"].click()
    first, second = (json.loads(Path(p).read_text()) for p in (path, again.value.path()))
    for chat in (*first["chats"], *second["chats"]):
        order = [message["id"] for message in chat["messages"]]
        for message in chat["messages"]:  # names are made anew; everything else is the same
            message["id"] = order.index(message["id"])
            message["parent"] = message["parent"] and order.index(message["parent"])
        chat["head"] = order.index(chat["head"])
    assert first["chats"] == second["chats"]


def as_file(value: Any, name: str = "chats.json") -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"name": name, "mimeType": "application/json", "buffer": text.encode()}


def test_a_file_that_holds_no_chats_is_explained(app):
    for content, sentence in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "has no chats"),
        ({"format": "wgemma chats", "version": 99}, "has version 99"),
        ({"format": "wgemma chats", "version": 1, "chats": 7}, "damaged"),
    ):
        app["import"].set_input_files(as_file(content))
        app.page.locator(".toast", has_text=sentence).get_by_label("Dismiss").click()


def test_a_hostile_file_brings_nothing_but_text(app):
    evil = "<img src=x onerror='window.hurt=1'>"
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    said = [
        {"id": "1", "parent": None, "role": "user", "content": evil, "attachments": [
            {"kind": "image", "type": "text/html", "data": "PHNjcmlwdD4=", "name": evil},
            {"kind": "image", "type": "image/svg+xml", "data": "PHN2Zz4=", "name": "x"},
            {"kind": "image", "type": "image/png", "data": "%%%", "name": "x"}]},
        {"id": "2", "parent": "1", "role": "assistant", "content": [1], "thinking": {"a": 1}, "model": evil,
         "calls": [{"name": evil, "arguments": deep}, None, 7], "stats": {"prompt": "x", "generated": -1}},
        {"id": "3", "parent": "4", "role": "user", "content": "a loop"},
        {"id": "4", "parent": "3", "role": "user", "content": "a loop"},
        {"id": "5", "parent": None, "role": "system", "content": "x"},
        "nonsense",
    ]  # fmt: skip
    chat = {"title": evil, "head": "2", "messages": said, "created": 1e300, "settings": {"temperature": "x"}}
    text = json.dumps(chat)
    text = text.replace('"settings"', '"__proto__": {"hurt": 1}, "settings"')
    app["import"].set_input_files(as_file(f'{{"format": "wgemma chats", "version": 1, "chats": [{text}, 5]}}'))
    app["message-user"].wait_for()
    assert app.text("message-user") == evil
    assert "skipped" in app.page.locator(".toast").inner_text()
    hurt = "() => [window.hurt, ({}).hurt, document.querySelectorAll('article img').length]"
    assert app.page.evaluate(hurt) == [None, None, 0]
    assert app["tool-call"].count() == 1
    app.ask("And on")
    assert len(app.asked()[-1]["messages"]) == 4  # question, call, "there is no result", question


def test_a_chat_saved_at_the_command_line_can_be_imported(app):
    picture = {"type": "image", "path": "/home/me/cat.png"}
    said = [
        {"role": "user", "content": [picture, {"type": "text", "text": "And this?"}]},
        {"role": "assistant", "content": "A cat.", "thinking": "Hm."},
    ]
    settings = {"think": "low", "parameters": {"top_k": 5}}
    saved = {"format": "wgemma chat", "version": 1, "model": "gemma4:e2b", "system": "Be brief.", "settings": settings}
    app["import"].set_input_files(as_file({**saved, "messages": said}))
    app["message-user"].wait_for()
    assert app.text("message-user") == "[image cat.png] And this?"
    app.ask("Sure?")
    asked = app.asked()[-1]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert asked["options"]["topK"] == 5
    assert asked["options"]["think"] is True


# -- pictures and sounds


def test_a_picture_is_shown_sent_and_kept(app):
    app["attach-image"].set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": DOT})
    app["chip"].wait_for()
    app.script(["A dot."])
    app.ask("What is this?")
    kind = "() => scripted.asked[0].messages[0].content.map((part) => [part.type, part.image?.type, part.text])"
    assert app.page.evaluate(kind) == [["image", "image/png", None], ["text", None, "What is this?"]]
    assert app["chip"].count() == 0
    app.page.reload()
    app.ready()
    app.page.wait_for_function("() => document.querySelector('article img')?.naturalWidth === 3")


def test_a_picture_can_be_pasted_and_taken_away_again(app):
    app["prompt"].focus()
    app.page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
          const event = new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
          document.activeElement.dispatchEvent(event);
        }""",
        list(DOT),
    )
    assert app["chip"].inner_text() == "pasted.png"
    app.page.get_by_label("Remove pasted.png").click()
    assert app["chip"].count() == 0
    assert app["send"].is_disabled()


def test_files_dropped_on_the_page_go_where_they_belong(app):
    app.page.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
          data.items.add(new File(["x"], "other.gguf"));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        list(DOT),
    )
    app["chip"].wait_for()
    app.page.wait_for_function("() => scripted.loads.at(-1).source === 'other.gguf'")
    app.ready()
    assert "other.gguf" in app["model-select"].locator("option:checked").inner_text()


def test_what_cannot_be_read_or_seen_is_explained(visit):
    app = visit(init="globalThis.scripted = {sees: false}").open()
    app["attach-audio"].set_input_files({"name": "noise.wav", "mimeType": "audio/wav", "buffer": b"no sound"})
    assert "noise.wav is not a readable sound" in app.page.locator(".toast").inner_text()
    assert app["attach-image"].get_attribute("aria-label") == "tiny cannot see pictures."
    app["attach-image"].set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": DOT})
    app.page.locator(".toast").get_by_text("tiny cannot see pictures.").wait_for()
    assert app["chip"].count() == 0


MICROPHONE = """navigator.mediaDevices.getUserMedia = async ({audio}) => {
  if (!audio) {
    const canvas = document.createElement("canvas");
    setInterval(() => canvas.getContext("2d").fillRect(0, 0, 9, 9), 20);
    return canvas.captureStream();
  }
  const context = new AudioContext();
  const out = context.createMediaStreamDestination();
  const tone = context.createOscillator();
  tone.connect(out);
  tone.start();
  return out.stream;
}"""


def test_a_sound_is_recorded_and_a_picture_taken(visit):
    app = visit(init=MICROPHONE).open()
    app["record"].click()
    app["recording"].wait_for()
    app.page.wait_for_timeout(300)
    app["record-done"].click()
    app["chip"].get_by_text("Recording").wait_for()
    app["camera"].click()
    app.page.wait_for_function("() => document.querySelector('video')?.videoWidth > 0")
    app["shutter"].click()
    app["chip"].get_by_text("Picture").wait_for()
    app.ask("What was that?")
    kinds = "() => scripted.asked[0].messages[0].content.map((part) => (part.audio ?? part.image)?.type.split('/')[0])"
    assert app.page.evaluate(kinds) == ["audio", "image", None]
    assert app["message-user"].locator("audio").count() == 1
    assert app.errors == []


def test_a_microphone_that_may_not_be_used_is_explained(visit):
    refuse = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotAllowedError') }"
    app = visit(init=refuse).open()
    app["record"].click()
    assert "blocked the microphone" in app.page.locator(".toast").inner_text()


# -- everybody


def test_keys_reach_everything(app):
    app.ask("Hello")
    app.page.keyboard.press("Control+k")
    assert app["message-user"].count() == 0
    focused = "() => document.activeElement.dataset.testid"
    assert app.page.evaluate(focused) == "prompt"
    app["settings"].focus()
    app.page.keyboard.press("/")
    assert app.page.evaluate(focused) == "search"
    app.page.keyboard.press("ArrowDown")
    app.page.keyboard.press("Enter")
    app["message-user"].wait_for()
    app["settings"].focus()
    app.page.keyboard.press("?")
    assert app["help-dialog"].is_visible()
    app.page.keyboard.press("Escape")
    assert app["help-dialog"].is_hidden()
    app.page.keyboard.press("Control+,")
    assert app["settings-panel"].is_visible()


NAMELESS = """() =>
  [...document.querySelectorAll("a, aside, button, dialog, img, input, nav, section, select, textarea")]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.ariaLabel || e.labels?.length || e.innerText?.trim() || e.title || e.hasAttribute("alt")))
  .map((e) => e.outerHTML.slice(0, 120))"""


def test_whoever_listens_instead_of_looking_is_told(app):
    assert app.page.evaluate(NAMELESS) == []
    app.script(["A **short** answer."])
    app.ask("Hello")
    assert app["announcer"].text_content() == "Answer: A short answer."
    assert app.page.evaluate(NAMELESS) == []
    app["settings"].click()
    assert app.page.evaluate(NAMELESS) == []
    assert app.page.get_by_role("dialog", name="Chat settings").is_visible()
    app["settings-close"].click()
    assert app.page.evaluate("() => document.activeElement.dataset.testid") == "settings"  # back where one was
    assert app.page.get_by_role("log", name="Conversation").get_by_role("article", name="You").is_visible()
    assert app.page.get_by_role("navigation", name="Chats").is_visible()


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_it_without_scrolling_sideways(visit, width):
    app = visit(viewport={"width": width, "height": 700}, has_touch=True, is_mobile=True).open()
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    table = "| " + " | ".join(f"column {n}" for n in range(12)) + " |\n" + "|--" * 12 + "|\n"
    app.script([f"{long}\n\n`{long}`\n\n```\n{long}\n```\n\n{table}\n\n[{long}](https://example.org/{long})"])
    app["prompt"].fill(f"Hello {long}")
    app["send"].click()
    app.answered()
    wide = "() => [document.documentElement.scrollWidth, document.querySelector('#scroller').scrollWidth]"
    assert max(app.page.evaluate(wide)) <= width
    chats = app.page.locator("#sidebar")
    assert not chats.is_visible()
    app.page.get_by_label("Show the list of chats").click()
    chats.wait_for()
    app["chat"].click()
    chats.wait_for(state="hidden")
    for name in ("settings", "help"):
        if name == "help":
            app.page.get_by_label("Show the list of chats").click()
        app[name].click()
        assert max(app.page.evaluate(wide)) <= width
        app.page.keyboard.press("Escape")
    assert app.errors == []


def test_light_and_dark_follow_the_system_until_one_is_chosen(visit):
    app = visit(color_scheme="dark").open()
    back = "() => getComputedStyle(document.body).backgroundColor"
    dark = app.page.evaluate(back)
    app["theme"].click()
    light = app.page.evaluate(back)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    app.page.reload()
    assert app.page.evaluate(back) == light
    app["theme"].click()
    assert app.page.evaluate(back) == dark


def test_a_browser_without_webgpu_is_told_what_helps(visit):
    app = visit(script=False, init="delete Navigator.prototype.gpu")
    app.page.goto(app.url)
    app["unsupported"].wait_for()
    assert "no WebGPU" in app.text("unsupported-reason")
    assert "chrome://" in app.text("unsupported")
    assert app.text("status") == "no WebGPU"
    app.say("Hello?")
    assert app["prompt"].input_value() == "Hello?"  # nothing is lost
    assert app.errors == []


def test_without_any_model_the_page_says_what_to_do(visit):
    app = visit(models=[])
    app.page.goto(app.url)
    app.page.wait_for_function("() => document.querySelector('[data-testid=status]').textContent === 'no model loaded'")
    app.say("Hello")
    app["message-error"].wait_for()
    assert "Open a .gguf file" in app.text("message-error")
    app["pick-file"].set_input_files({"name": "mine.gguf", "mimeType": "", "buffer": io.BytesIO(b"GGUF").getvalue()})
    app.ready()
    app["regenerate"].click()
    assert app.answered() == "You said it."


# -- the real thing


# Within the page: the answer is short, and might end between a look from outside and a click.
STOP_ONCE_BEGUN = """() => {
  const begun = document.querySelector(".growing.begun");
  if (begun) document.querySelector("[data-testid=stop]").click();
  return begun;
}"""


def test_the_real_app_from_the_first_visit_to_a_picked_file(browser, data, tmp_path):
    """The server, the engine and the embedded model: load, chat, stop, answer again, edit, reload, open a file."""
    long = 120_000  # milliseconds: WebGPU in software, on a busy machine
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    with running_app(data / "ollama-store") as running:
        app = App(context.new_page(), running.url)
        app.page.set_default_timeout(long)
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        app.page.goto(app.url)
        app.ready(long)  # the embedded model is loaded by itself
        assert "wgemma-tiny" in app["model-select"].locator("option:checked").inner_text()

        app["settings"].click()
        app["setting-maxTokens"].fill("6")
        app["settings-close"].click()
        app.say("Hello! What can you do?")
        app.ready(long)
        answer = app.text("message-model")
        assert re.search(r"\w", answer)
        assert re.search(r"tokens/s .* context \d+ of .* \(prompt \d+, \d+ reused, 6 generated\)", app.text("stats"))

        app["regenerate"].click()
        app.ready(long)
        assert app.text("message-model") == answer  # its own temperature is 0
        assert app.text("versions") == "2/2"
        assert not re.search(r"\b0 reused", app.text("stats"))

        app["settings"].click()
        app["setting-maxTokens"].fill("2000")
        app["settings-close"].click()
        app["edit"].click()
        app["edit-text"].fill("Tell me a long story.")
        app["edit-send"].click()
        app.page.wait_for_function(STOP_ONCE_BEGUN)
        app.ready(long)
        assert app.text("message-note") == "Stopped."
        said = app.text("message-model")

        app["pick-file"].set_input_files({"name": "notes.gguf", "mimeType": "", "buffer": b"GGUF? no, notes." * 9})
        app["load-error"].wait_for()
        assert app.text("status") == "failed"
        micro = next(path for path in (data / "ollama-store/blobs").iterdir() if path.stat().st_size == 465_696)
        file = tmp_path / "micro.gguf"
        file.write_bytes(micro.read_bytes())
        app["pick-file"].set_input_files(file)
        app.ready(long)
        app.page.reload()
        assert app["message-user"].inner_text() == "Tell me a long story."
        assert app.text("message-model") == said
        assert app.errors == []  # a violated policy is told there
        assert f"{app.url}pyodide/pyodide.asm.wasm" in asked
        assert all(url.startswith((app.url, f"blob:{app.url}")) for url in asked)
    context.close()
