"""What a stored model brings beside its weights: adapters, a system text, messages, and parts in any order."""

from pathlib import Path
from typing import Any

import pytest
from app_page import MODELS
from face import Face

from adapter_maker import adapter, pair
from gguf_parts import cut
from wgemma.creating import create
from wgemma.files.adapters import write_gguf_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import keep_file
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.web.models import Offer, stored_offers

LONG = 90_000  # milliseconds; software WebGPU on a busy machine is slow
SYSTEM = {"role": "system", "content": "Be brief."}
EXAMPLES = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b."}]
HELLO = {"role": "user", "content": "Hello there, what is it like?"}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    return Stores.find()


@pytest.fixture
def offer(stores: Stores, server: Any, micro: str, tmp_path: Path) -> Offer:
    """A model with an adapter, in two parts that its manifest lists the wrong way round."""
    with Gguf.open(server.models["micro.gguf"]) as gguf:
        columns, rows = gguf.tensors["blk.0.ffn_up.weight"].shape
        parts = cut(gguf, 2)
    files = {}
    for i in (1, 0):
        (tmp_path / f"{i}").write_bytes(parts[i])
        files[f"{i}"] = keep_file(stores.own, tmp_path / f"{i}", set())
    lora = tmp_path / "lora.gguf"
    write_gguf_adapter(adapter(blk__0__ffn_up=pair(columns, rows, scale=2.0)), lora)
    adapters = {"lora": keep_file(stores.own, lora, set())}
    list(create("mine", Recipe(files=files, adapters=adapters, system=SYSTEM["content"], messages=EXAMPLES)))
    (offer,) = stored_offers(stores.own)
    assert [part.path.read_bytes() for part in offer.parts] == parts
    server.models |= {id: file.path for id, file in offer.files.items()}
    return offer


def test_its_adapter_is_loaded_with_it_and_can_be_turned_off(visit: Any, offer: Offer) -> None:
    record = {**offer.record(), "embedded": True}  # so that the page loads it at once
    app = visit(script=False, models=[record])
    app.page.set_default_timeout(LONG)
    app.page.goto(app.url)
    app.ready(LONG)
    assert app["adapter"].count() == 1 and "mine:latest" in app.text("adapter")
    assert app["adapter-on"].is_checked()
    app["settings"].click()
    app["setting-maxTokens"].fill("2")
    app["settings-close"].click()
    app.say("Hello")
    app.ready(LONG)
    app["adapter-remove"].click()
    app.page.wait_for_function("() => !document.querySelector('[data-testid=adapter]')")
    assert app.errors == []


def test_an_adapter_that_is_gone_is_told(visit: Any) -> None:
    app = visit(models=[{**MODELS[0], "adapters": ["models/bad.gguf"]}])
    refuse = "{ code: 'adapter', message: 'models/bad.gguf does not fit this model.' }"
    app.page.add_init_script(f"globalThis.scripted = {{ refused: {refuse} }}")
    app.page.goto(app.url)
    app.page.get_by_text("does not fit this model").first.wait_for()
    assert app.text("status") != "ready"


def test_its_words_begin_every_chat(face: Face, offer: Offer) -> None:
    """As they do if they are sent along."""

    def tokens(*messages: Any) -> int:
        told = face.chat(list(messages), maxTokens=1)
        assert "message" not in told, told
        return int(told["parts"][-1]["usage"]["prompt"])

    record = offer.record()
    face.load(f"/{record['url']}")
    other = {"role": "system", "content": "Be brief, and friendly, please."}
    whole = [tokens(first, *EXAMPLES, HELLO) for first in (SYSTEM, other)]
    face.load(f"/{record['url']}", system=record["system"], messages=record["messages"])
    assert [tokens(HELLO), tokens(other, HELLO)] == whole
    told = face.attempt(f"/{record['url']}", messages=[{"role": "user"}])
    assert told["code"] == "settings" and "must each have a role" in told["message"]
