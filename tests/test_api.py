"""The public API, as a user sees it."""

import asyncio
import base64
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import wgemma
from gguf_writer import write_gguf
from range_server import good, serve
from wgemma import sync
from wgemma.engine.options import Options
from wgemma.engine.request import Request
from wgemma.files.locate import locate
from wgemma.gpu.native import NativeDevice
from wgemma.loading import Loading, open_files

HELLO = [{"role": "user", "content": "Hello"}]
PICTURE = np.random.default_rng(1).integers(0, 256, (60, 90, 3), dtype=np.uint8)
SOUND = np.random.default_rng(1).uniform(-0.5, 0.5, 20_000).astype(np.float32)


@pytest.fixture(scope="module")
def model(blob: Path, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


def test_every_public_name_is_offered_for_completion() -> None:
    assert set(wgemma.__all__) <= set(dir(wgemma))


def test_the_last_part_tells_why_it_ended_and_what_it_took(model: wgemma.Model) -> None:
    *parts, last = model.chat(HELLO, max_tokens=5, seed=1)
    assert last.finish_reason == "length" and last.text == ""
    assert last.usage is not None and last.usage.generated == 5
    assert all(part.finish_reason is None for part in parts)
    again = list(model.chat(HELLO, max_tokens=5, seed=1))[-1]
    assert again.usage is not None and again.usage.reused == again.usage.prompt - 1


def test_a_name_from_the_store_brings_its_settings(
    data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    with wgemma.load("gemma4:tiny", device=gpu) as loaded:
        assert loaded.prompt_style == "small"
        assert loaded._sampling({}).top_k == 64
    with wgemma.load("someone/gemma4-12b:tiny", device=gpu) as loaded:
        assert loaded.prompt_style == "large"
    with wgemma.load("someone/mygemma:v1", device=gpu) as loaded:
        assert loaded.adapters == {"someone/mygemma:v1": 1.0}
        assert np.abs(loaded.logits([2, 30, 31]) - loaded.logits([2, 30, 31], adapter=None)).max() > 0
    with pytest.raises(wgemma.StoreError, match="Did you mean gemma4:tiny"):
        wgemma.load("gemma4:tini", device=gpu)


@pytest.mark.parametrize(
    ("num_ctx", "asked", "context"), [(64, None, 64), (64, 128, 128), (1 << 40, None, 2048), (-1, None, 2048)]
)
def test_a_stored_models_num_ctx_caps_the_context_unless_the_caller_names_one(
    blob: Path, num_ctx: int, asked: int | None, context: int
) -> None:
    files = replace(locate(blob), params={"num_ctx": num_ctx})
    with sync.run(open_files(files, Loading(Options(context=asked), "reference"))) as model:
        assert model.backend.context == context


def test_the_reference_device_says_the_same(blob: Path, model: wgemma.Model) -> None:
    with wgemma.load(blob, device="reference") as slow:
        expected = [piece.id for piece in slow.generate("Once upon", max_tokens=8, temperature=0)]
        assert [piece.id for piece in model.generate("Once upon", max_tokens=8, temperature=0)] == expected
        assert np.abs(slow.logits([2, 30, 31]) - model.logits([2, 30, 31])).max() < 0.05


def test_images_and_sounds_are_part_of_the_prompt_and_not_computed_again(model: wgemma.Model) -> None:
    assert model.sees and model.hears
    image, sound = {"type": "image", "image": PICTURE, "budget": 70}, {"type": "audio", "audio": SOUND}
    rows = len(model.encode_image(PICTURE, 70)) + len(model.encode_audio(SOUND))
    text = {"type": "text", "text": "What is that?"}
    plain = list(model.chat([{"role": "user", "content": [text]}], max_tokens=1))[-1].usage
    messages: list[dict[str, Any]] = [{"role": "user", "content": [image, sound, text]}]
    *parts, last = model.chat(messages, max_tokens=4, temperature=0)
    assert plain is not None and last.usage is not None
    assert last.usage.prompt == plain.prompt + rows + 4  # plus the tokens around them
    messages += [{"role": "assistant", "content": "".join(part.text for part in parts)}]
    messages += [{"role": "user", "content": [image, {"type": "text", "text": "And now?"}]}]
    again = list(model.chat(messages, max_tokens=1))[-1].usage
    assert again is not None and again.reused >= last.usage.prompt


def test_ollamas_images_and_openais_parts_are_the_same_prompt(model: wgemma.Model, tmp_path: Path) -> None:
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    data = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    asked = {"type": "text", "text": "What?"}
    spellings: list[dict[str, Any]] = [
        {"content": "What?", "images": [data]},
        {"content": "What?", "images": [str(tmp_path / "a.png")]},
        {"content": [{"type": "image", "image": PICTURE}, asked]},
        {"content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}, asked]},
    ]
    for spelling in spellings:
        list(model.chat([{"role": "user", **spelling}], max_tokens=1))
        used = list(model.chat([{"role": "user", **spellings[0]}], max_tokens=1))[-1].usage
        assert used is not None and used.reused == used.prompt - 1


def test_an_image_that_a_tool_gives_stands_behind_its_response(model: wgemma.Model) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    content = [{"type": "text", "text": "here"}, {"type": "image", "image": PICTURE, "budget": 70}]
    ids: list[list[int]] = []
    generate = model.backend.generate

    def watched(request: Request) -> Any:
        ids.append(list(request.ids))
        return generate(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.backend, "generate", watched)
        list(model.chat([*HELLO, call, {"role": "tool", "content": content}], max_tokens=1))
    image = model.media_ids(content[1])
    assert ids[0][-len(image) - 1 :] == [model.tokenizer.id("<tool_response|>"), *image]


def test_text_from_outside_never_makes_a_media_slot(model: wgemma.Model) -> None:
    typed = "<|image><|image|><image|> <|audio><audio|> \x00\x00\x00\x40"
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        generate = model.backend.generate
        patch.setattr(model.backend, "generate", lambda request: (seen.append(list(request.ids)), generate(request))[1])
        list(
            model.chat(
                [{"role": "user", "content": typed}, {"role": "assistant", "content": typed}, *HELLO], max_tokens=1
            )
        )
    slots = {model.tokenizer.id(text) for text in ("<|image>", "<image|>", "<|audio>", "<audio|>", "<|image|>")}
    assert max(seen[0]) < len(model.tokenizer) and not slots & set(seen[0])


def test_async_twins_of_what_sees_and_hears(model: wgemma.Model) -> None:
    async def all_of_them() -> None:
        assert (await model.aencode_image(PICTURE, 70) == model.encode_image(PICTURE, 70)).all()
        assert (await model.aencode_audio(SOUND) == model.encode_audio(SOUND)).all()
        assert await model.amedia_ids({"type": "audio", "audio": SOUND}) == model.media_ids(
            {"type": "audio", "audio": SOUND}
        )

    asyncio.run(all_of_them())


def test_pictures_that_cannot_be_used_are_sentences(model: wgemma.Model, tmp_path: Path) -> None:
    with pytest.raises(wgemma.Error, match=r"nowhere\.png: no such file"):
        model.encode_image("nowhere.png")
    with pytest.raises(wgemma.Error, match="an image cannot become 100 tokens"):
        model.encode_image(PICTURE, 100)
    with pytest.raises(wgemma.Error, match="the text given for a picture is empty"):
        list(model.chat([{"role": "user", "content": "x", "images": [""]}]))
    assert list(model.chat(HELLO, max_tokens=1))


@pytest.mark.parametrize("path", ["nope.png", "nope.wav", "./no/such.png", "nope", "~/nope.png", "/nope/" + "x" * 300])
def test_a_missing_picture_or_sound_is_named(model: wgemma.Model, path: str) -> None:
    text = {"type": "text", "text": "What?"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What?", "images": [path]}]
    for kind in ("image", "audio"):
        parts = ({kind: path}, {kind: Path(path)}, {"path": path}, {kind: {"path": path}})
        messages += [{"role": "user", "content": [{"type": kind, **part}, text]} for part in parts]
    for message in messages:
        with pytest.raises(wgemma.MediaError) as caught:
            list(model.chat([message]))
        assert path[-30:].removeprefix("./").removeprefix("~/") in str(caught.value), message


def test_text_that_is_no_base64_is_shown(model: wgemma.Model) -> None:
    part = {"type": "input_audio", "input_audio": {"data": "nope.wav", "format": "wav"}}
    with pytest.raises(wgemma.MediaError, match=r"nope\.wav"):
        list(model.chat([{"role": "user", "content": [part]}]))


def test_a_long_sound_is_cut_into_pieces_that_are_heard_in_order(model: wgemma.Model) -> None:
    long = np.random.default_rng(2).uniform(-0.5, 0.5, 16_000 * 40).astype(np.float32)
    pieces = model.cut_audio(long)
    assert [len(piece.samples) <= 480_000 for piece in pieces] == [True, True]
    begin, end = (model.tokenizer.id(text) for text in ("<|audio>", "<audio|>"))
    ids = model.media_ids({"type": "audio", "audio": long})
    assert ids == [i for piece in pieces for i in model.media_ids({"type": "audio", "audio": piece})]
    assert [i for i in ids if i in (begin, end)] == [begin, end, begin, end]


def test_stop_strings_end_the_text_before_they_show(model: wgemma.Model) -> None:
    whole = "".join(piece.text for piece in model.generate("Once", max_tokens=30, temperature=0))
    stop = whole[8:11]
    shown = "".join(piece.text for piece in model.generate("Once", max_tokens=30, temperature=0, stop=stop))
    assert shown == whole[: whole.index(stop)]


def test_a_budget_for_thinking_is_kept_and_the_answer_goes_on(blob: Path, gpu: NativeDevice) -> None:
    tool = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    messages = [*HELLO, call, {"role": "tool", "content": "ok"}]  # with thinking on the prompt ends inside a thought
    with wgemma.load(blob, device=gpu) as loaded:
        channel = loaded.tokenizer.special["<channel|>"]
        never = {channel: -100.0}  # this random model must not end its thought by chance
        parts = list(
            loaded.chat(messages, tools=tool, think=True, thinking_budget=6, max_tokens=20, seed=2, logit_bias=never)
        )
    kinds = [part.kind for part in parts if part.text]
    assert "thinking" in kinds and kinds[-1] == "content"
    assert parts[-1].usage is not None and parts[-1].usage.generated <= 20


def test_leaving_the_loop_cancels_and_the_next_call_works(model: wgemma.Model) -> None:
    for _ in model.chat(HELLO, seed=3):
        break
    assert list(model.chat(HELLO, max_tokens=2, seed=3))[-1].finish_reason == "length"


def test_a_cancelled_reply_says_so_in_its_last_part(model: wgemma.Model) -> None:
    stop = threading.Event()
    parts = []
    for part in model.chat(HELLO, seed=3, cancel=stop):
        parts.append(part)
        stop.set()
    assert parts[-1].finish_reason == "cancelled"
    assert parts[-1].usage is not None and parts[-1].usage.generated <= 3


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there are no such signals here")
def test_an_interrupt_stops_the_answer_and_keeps_the_model(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while the main thread waits for a token."""
    ids = [2, *range(40, 60)]
    expected = [piece.id for piece in model.generate(ids, max_tokens=6, temperature=0)]
    device, reads, main = model.backend.device, [], threading.get_ident()  # type: ignore[attr-defined]
    read_later = device.read_later

    def interrupted(*span: Any) -> Any:
        reads.append(span)
        if len(reads) == 3:
            signal.pthread_kill(main, signal.SIGINT)
        return read_later(*span)

    monkeypatch.setattr(device, "read_later", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(model.generate(ids, max_tokens=60, temperature=0))
        threading.Event().wait(10)  # the signal is on its way
    assert [piece.id for piece in model.generate(ids, max_tokens=6, temperature=0)] == expected


def test_whatever_ends_the_computing_thread_is_told_to_who_waits(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*span: Any) -> Any:
        raise SystemExit("out of order")

    expected = model.generate("Once", max_tokens=6, temperature=0).text
    monkeypatch.setattr(model.backend.device, "read_later", failing)  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match="out of order"):
        list(model.generate("Once", max_tokens=6))
    monkeypatch.undo()
    assert model.generate("Once", max_tokens=6, temperature=0).text == expected


def test_a_url_is_downloaded_once_and_then_runs_offline(
    blob: Path, gpu: NativeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serve(good(blob.read_bytes())) as url, wgemma.load(f"{url}/model.gguf", device=gpu) as loaded:
        expected = [piece.id for piece in loaded.generate("Hi", max_tokens=3, temperature=0)]
    with wgemma.load(f"{url}/model.gguf", device=gpu) as loaded:
        assert [piece.id for piece in loaded.generate("Hi", max_tokens=3, temperature=0)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv": "f8"}, "kv is 'f8'"),
        ({"ple": "disk"}, "ple is 'disk'"),
        ({"context": 0}, "context is 0"),
        ({"context": 1 << 30}, "this model allows"),
        ({"precision": "wild"}, "precision"),
        ({"device": "no such card"}, "no adapter is called"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(blob: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(wgemma.Error, match=message):
        wgemma.load(blob, **options)


def test_settings_that_do_not_exist_are_named(model: wgemma.Model) -> None:
    with pytest.raises(wgemma.SettingsError, match="'temprature'"):
        list(model.chat(HELLO, temprature=1))
    with pytest.raises(wgemma.SettingsError, match="max_tokens"):
        list(model.generate("x", max_tokens=-1))
    with pytest.raises(wgemma.SettingsError, match="logit_bias has token 99999"):
        list(model.generate("x", logit_bias={99999: 1.0}))


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": "2"},
        {"max_tokens": 2.5},
        {"stop": [1]},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {5: None}},
        {"logit_bias": {5: math.inf}},
        {"seed": "x"},
    ],
)
def test_settings_of_the_wrong_kind_are_sentences(model: wgemma.Model, options: dict[str, Any]) -> None:
    with pytest.raises(wgemma.SettingsError):
        list(model.generate("x", **options))


def test_other_things_of_the_wrong_kind_are_sentences_too(model: wgemma.Model, blob: Path) -> None:
    for ids in ([5.5], ["a"], [2, None]):
        with pytest.raises(wgemma.SettingsError, match="is not a token id"):
            list(model.generate(ids))
    with pytest.raises(wgemma.SettingsError, match="chunks"):
        model.logits([2, 3], chunks=[0])
    for options in ({"context": "4096"}, {"memory": "8GB"}):
        with pytest.raises(wgemma.SettingsError, match="whole number"):
            wgemma.load(blob, **options)
    assert list(model.generate("x", max_tokens=1, stop=None))


HUGE = 10**5000  # too long for Python to print
ODD: list[Any] = [
    *(None, True, -1, 5, 1.5, math.nan, math.inf, -math.inf, HUGE, -HUGE, 1 << 63, "x", "", "\0", "\ud800", b"x"),
    *(
        [],
        [5],
        ["x"],
        [HUGE],
        [None],
        {},
        {"a": 1},
        {HUGE: 1},
        object(),
        np.float32(0.5),
        np.array([1, 2]),
        np.array(3),
    ),
    *(set(), Path("\0"), range(3), lambda: None),
]


def load_and_close(*arguments: Any, **options: Any) -> None:
    wgemma.load(*arguments, **options).close()


SAMPLING = tuple(wgemma.Sampling.__dataclass_fields__)


def attempt(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Works, or raises a short error of ours."""
    try:
        found = call(*arguments, **options)
        if isinstance(found, Iterator):
            next(found, None)  # the first token may be the last
            found.close()  # type: ignore[attr-defined]
    except wgemma.Error as error:
        assert len(str(error)) < 400


FORMS = ("format", "tools", "tool_choice", "parallel_tool_calls")


@pytest.mark.parametrize("name", [*FORMS, "think", "max_tokens", "thinking_budget", "stop", "cancel", *SAMPLING])
def test_odd_options_of_a_chat_are_sentences(model: wgemma.Model, name: str) -> None:
    for odd in ODD:
        attempt(model.chat, HELLO, **{"max_tokens": 1, name: odd})


def test_odd_messages_are_sentences(model: wgemma.Model) -> None:
    for odd in ODD:
        attempt(model.chat, odd, max_tokens=1)
        attempt(model.chat, [odd], max_tokens=1)
        for key in ("role", "content", "tool_calls", "images", "thinking", "name", "tool_call_id"):
            attempt(wgemma.render, [{"role": "assistant", "content": "Hi", key: odd}])


@pytest.mark.parametrize("key", ["type", "image", "path", "data", "url", "budget"])
def test_odd_parts_of_a_message_are_sentences(model: wgemma.Model, key: str) -> None:
    for odd in ODD:
        part = {"type": "image", key: odd}
        attempt(model.chat, [{"role": "user", "content": [part]}], max_tokens=1)
        attempt(model.media_ids, part)


def test_odd_arguments_of_every_other_call_are_sentences(model: wgemma.Model, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for odd in ODD:
        for call in (model.encode_image, model.encode_audio, model.cut_audio, model.media_ids, model.restore):
            attempt(call, odd)
        attempt(model.encode_image, "x", odd)
        attempt(model.encode_audio, (np.zeros(0, np.float32), odd))
        attempt(model.generate, odd, max_tokens=1)
        attempt(model.generate, [odd], max_tokens=1)
        attempt(model.generate, "x", max_tokens=1, logit_bias={5: odd})
        attempt(model.logits, odd)
        attempt(model.logits, [2, 3], chunks=odd)
        attempt(model.logits, [2, 3], chunks=[odd])
        attempt(model.logits, [2, 3], adapter=odd)
        attempt(model.logits, [2, 3], adapter={"a": odd})
        attempt(model.embed, odd)
        attempt(model.embed, [odd])
        attempt(model.embed, "x", adapter=odd)
        attempt(model.load_adapter, odd)
        attempt(model.load_adapter, "nowhere", name=odd)
        attempt(model.load_adapter, "nowhere", scale=odd)
        attempt(model.unload_adapter, odd)
        for name in ("resume", "skip_bad", "progress", "cancel"):
            attempt(model.finetune, "nowhere.jsonl", **{"out": out, name: odd})
    for odd in ("\0", "\ud800", 5, None, Path("\0")):
        with pytest.raises(wgemma.SessionError, match="is not a path"):
            model.save(odd)


@pytest.mark.parametrize(
    "name", ["context", "kv", "precision", "ple", "memory", "device", "projector", "adapter", "announce", "progress"]
)
def test_odd_options_of_load_are_sentences(blob: Path, gpu: NativeDevice, name: str) -> None:
    for odd in ODD:
        if (name == "device" and odd is None) or (name in ("announce", "progress") and callable(odd)):
            continue
        attempt(load_and_close, blob, **{"device": gpu, name: odd})
        attempt(load_and_close, odd if odd is not None else 5, device=gpu)
        attempt(load_and_close, blob, adapter=[odd], device=gpu)
        attempt(load_and_close, blob, adapter={"a": odd}, device=gpu)


def test_refused_arguments_are_named(model: wgemma.Model, blob: Path) -> None:
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("n_ctx is context here", lambda: wgemma.load(blob, n_ctx=5)),  # type: ignore[call-arg]
        ("num_predict is max_tokens", lambda: model.chat(HELLO, num_predict=5)),  # type: ignore[call-arg]
        ("options are arguments", lambda: model.generate("x", options={})),  # type: ignore[call-arg]
        ("Did you mean max_tokens?", lambda: list(model.chat(HELLO, max_token=5))),
        ("Did you mean max_tokens?", lambda: list(model.generate("x", max_token=5))),
        ("Did you mean epochs?", lambda: model.finetune("x", out="y", epoch=5)),
        ("Did you mean chunks?", lambda: model.logits([2], chunk=[5])),
        ("think is 'much'; it must be True", lambda: list(model.chat(HELLO, think="much"))),
        ("thinking_budget is 'x'", lambda: list(model.chat(HELLO, thinking_budget="x"))),
        ("messages must be a list such as", lambda: list(model.chat("Hello"))),
        ("the prompt is None", lambda: list(model.generate(None))),  # type: ignore[arg-type]
        ("the prompt is b'x'", lambda: list(model.generate(b"x"))),  # no bytes: they would be taken for ids
        ("chunks is 5", lambda: model.logits([2], chunks=5)),  # type: ignore[arg-type]
        ("scale is nan", lambda: model.load_adapter("nowhere", scale=math.nan)),
        ("top_k is a number of 16610 bits", lambda: list(model.generate("x", top_k=HUGE))),
        ("cancel is 5", lambda: list(model.chat(HELLO, cancel=5))),
    ]
    for words, call in refused:
        with pytest.raises(wgemma.Error, match=re.escape(words)):
            call()


def test_numpys_numbers_are_numbers(model: wgemma.Model) -> None:
    ids = np.array([2, 30, 31])
    settings = {"max_tokens": np.int64(2), "top_k": np.int32(5), "temperature": np.float32(0)}
    assert len(list(model.generate(ids, **settings))) == 2  # type: ignore[arg-type]
    assert model.logits(ids).shape[0] == 3  # type: ignore[arg-type]


def test_there_are_never_more_pieces_than_tokens(model: wgemma.Model) -> None:
    byte = model.tokenizer.encode("\U0001f999")[0]  # the first byte of a character that is never completed
    pieces = list(model.generate("x", max_tokens=4, temperature=0, logit_bias={byte: 100.0}))
    assert [piece.id for piece in pieces] == [byte] * 4
    assert "\ufffd" in "".join(piece.text for piece in pieces)


def test_a_budget_at_the_end_of_the_context_ends_the_reply(blob: Path, gpu: NativeDevice) -> None:
    with wgemma.load(blob, device=gpu, context=40) as small:
        opens = {small.tokenizer.special["<|channel>"]: 500.0}
        for budget in (1, 3, 6, 10, 20):
            *_, last = small.chat(HELLO, think=True, thinking_budget=budget, logit_bias=opens, seed=1)
            assert last.finish_reason == "length"
        *_, last = small.chat(HELLO, think=True, thinking_budget=1, max_tokens=1, logit_bias=opens, seed=1)
        assert last.usage is not None and last.usage.generated == 1


def test_a_reply_goes_on_when_its_model_is_reset(model: wgemma.Model) -> None:
    expected = [piece.id for piece in model.generate("Once", max_tokens=90, temperature=0)]
    stream = model.generate("Once", max_tokens=90, temperature=0)
    begun = [next(stream).id]
    model.reset()
    assert begun + [piece.id for piece in stream] == expected


def test_async_calls_in_the_middle_of_a_reply_run_beside_it(model: wgemma.Model) -> None:
    five: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    alone = model.generate("Twice", **five).text

    async def nested() -> list[str]:
        answers = [await model.agenerate("Twice", **five) async for _ in model.agenerate("Once", max_tokens=3)]
        return [answer.text for answer in answers]

    assert set(asyncio.run(nested())) == {alone}


def test_a_closed_model_says_so_and_closing_twice_is_nothing(blob: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    loaded = wgemma.load(blob, device=gpu)
    stream = loaded.generate("Once", max_tokens=9)
    next(stream)
    loaded.close()
    loaded.close()
    assert gpu.allocated == before
    with pytest.raises(wgemma.SessionError, match="closed in the middle"):
        list(stream)
    with pytest.raises(wgemma.SessionError, match="is closed"):
        list(loaded.generate("Once"))


def calls(tmp_path: Path) -> dict[str, Callable[[wgemma.Model], Any]]:
    """One long call of each kind, by name."""
    return {
        "generate": lambda model: [list(model.generate("x", max_tokens=400)) for _ in range(1000)],
        "chat": lambda model: [list(model.chat(HELLO, max_tokens=400)) for _ in range(1000)],
        "logits": lambda model: [model.logits([2, 5] * 30, chunks=[1] * 60) for _ in range(1000)],
        "save": lambda model: [model.save(tmp_path / "chat") for _ in range(100_000)],
        "reset": lambda model: [model.reset() for _ in range(10_000_000)],
    }


@pytest.mark.parametrize("repetition", range(4))
@pytest.mark.parametrize("kind", ["generate", "chat", "logits", "save", "reset"])
def test_closing_ends_the_calls_of_other_threads(
    blob: Path, gpu: NativeDevice, tmp_path: Path, kind: str, repetition: int
) -> None:
    """The moment is random; whatever it hits must end as it should."""
    before = gpu.allocated
    loaded, ended = wgemma.load(blob, device=gpu), list[BaseException | None]()

    def call() -> None:
        try:
            ended.append(calls(tmp_path)[kind](loaded) and None)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    threading.Event().wait(random.random() / 5)
    loaded.close()
    assert gpu.allocated == before
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in ended] == [wgemma.SessionError] * 2


def test_closing_ends_training(blob: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    """Three seconds: the kernels of training are compiled."""
    before, loaded = gpu.allocated, wgemma.load(blob, device=gpu)
    examples = [{"prompt": "a b c", "completion": "d e f"}] * 4
    options: dict[str, Any] = {"out": tmp_path / "out", "steps": 1000, "seq": 32, "batch": 1, "rank": 4}
    with pytest.raises(wgemma.SessionError, match="is closed"):
        loaded.finetune(examples, progress=lambda step: loaded.close(), **options)
    assert gpu.allocated == before


def test_training_does_not_wait_for_a_reply_that_nobody_reads_on(blob: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    """Three seconds: the kernels of training are compiled."""
    examples = [{"prompt": "a b c", "completion": "d e f"}] * 4
    with wgemma.load(blob, device=gpu) as loaded:
        never = {"temperature": 0, "logit_bias": dict.fromkeys(loaded.tokenizer.stop_ids, -100), "max_tokens": 90}
        expected = [piece.id for piece in loaded.generate("Once", **never)]
        reply = loaded.generate("Once", **never)
        begun = [next(reply).id]
        assert loaded.finetune(examples, out=tmp_path / "out", steps=1, seq=32, batch=1, rank=4).losses
        assert begun + [piece.id for piece in reply] == expected


FORKED = """
import gc, os, signal, sys, wgemma
model = wgemma.load(sys.argv[1])
reply = model.generate("x", max_tokens=9, temperature=0)
next(reply)
child = os.fork()
if child == 0:
    signal.alarm(20)
    hello = [{"role": "user", "content": "Hello"}]
    refused = 0
    for call in (
        lambda: next(reply), lambda: list(model.generate("x")), lambda: list(model.chat(hello)), model.reset,
        lambda: model.logits([2]), lambda: model.encode_image("x"), lambda: model.save("x"), lambda: model.restore("x"),
        lambda: model.load_adapter("x"), lambda: model.finetune([], out="x"),
    ):
        try:
            call()
        except wgemma.SessionError as error:
            refused += "loaded in another process" in str(error)
    try:
        wgemma.load(sys.argv[1])
    except wgemma.DeviceError as error:
        refused += "before this process was forked" in str(error)
    with model:
        pass
    del model, reply
    gc.collect()
    sys.exit(refused)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, len(list(reply)))
model.close()
"""


FORKED_IN_A_REPLY = """
import gc, os, signal, sys, wgemma
model = wgemma.load(sys.argv[1])
never = dict.fromkeys(model.tokenizer.stop_ids, -100)
replies = [model.generate("x" * i, max_tokens=300, temperature=0, logit_bias=never) for i in (1, 2)]
counts = [0, 0]
codes = []
for i in range(12):
    for which, reply in enumerate(replies):
        for _ in range(20):
            next(reply)
            counts[which] += 1
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        refused = 0
        for reply in replies:
            try:
                list(reply)
            except wgemma.SessionError:
                refused += 1
        del reply, replies
        gc.collect()
        sys.exit(refused)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(set(codes), [count + len(list(reply)) for count, reply in zip(counts, replies)])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_while_others_compute_can_go(blob: Path) -> None:
    """Two seconds: whatever locks are held at that moment, it must not wait for them."""
    done = subprocess.run([sys.executable, "-c", FORKED_IN_A_REPLY, blob], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "{2} [300, 300]", done.stderr


LEFT = """
import sys, threading, wgemma
model = wgemma.load(sys.argv[1])
never = dict.fromkeys(model.tokenizer.stop_ids, -100)
replies = [model.generate("x" * i, logit_bias=never) for i in (1, 2, 3)]
for reply in replies:
    next(reply)
other = model.generate("y", max_tokens=300, logit_bias=never)
threading.Thread(target=lambda: list(other), daemon=sys.argv[2] == "daemon").start()
if sys.argv[2] == "dropped":
    del reply, replies
if sys.argv[2] == "closed":
    model.close()
print("done")
"""


@pytest.mark.parametrize("how", ["kept", "dropped", "closed", "daemon"])
def test_a_process_with_unfinished_replies_ends_silently(blob: Path, how: str) -> None:
    """A second each: a process of its own."""
    done = subprocess.run([sys.executable, "-c", LEFT, blob, how], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    assert ("closed in the middle" in done.stderr) == (how == "closed")
    assert how == "closed" or not done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_refused_and_never_hangs(blob: Path) -> None:
    """Three seconds: a process of its own, because the child must also be able to exit."""
    done = subprocess.run([sys.executable, "-c", FORKED, blob], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["11", "8"], done.stderr


def test_a_chat_is_saved_and_restored(blob: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    with wgemma.load(blob, device=gpu) as loaded:
        list(loaded.chat(HELLO, max_tokens=4, seed=1))
        loaded.save(tmp_path / "chat")
    with wgemma.load(blob, device=gpu) as loaded:
        loaded.restore(tmp_path / "chat")
        usage = list(loaded.chat(HELLO, max_tokens=4, seed=1))[-1].usage
        assert usage is not None and usage.reused == usage.prompt - 1


@pytest.mark.parametrize("label", ["history", "keys of layer 0", "x", "ple", "logits"])
def test_a_gpu_that_runs_full_while_loading_gets_everything_back(
    blob: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    before, room = gpu.allocated, gpu.buffer

    def full(size: int, name: str) -> Any:
        if name == label:
            raise wgemma.OutOfMemory(f"no room for {name}")
        return room(size, name)

    with monkeypatch.context() as tight:
        tight.setattr(gpu, "buffer", full)
        with pytest.raises(wgemma.OutOfMemory, match=label):
            wgemma.load(blob, device=gpu)
    assert gpu.allocated - before < 100_000  # a few small buffers may wait for the garbage collector


def damaged(blob: Path, tmp_path: Path, tensor: str, value: float) -> Path:
    """A copy of the model with one number of one F32 tensor overwritten."""
    data = bytearray(blob.read_bytes())
    with wgemma.Gguf.open(blob) as gguf:
        struct.pack_into("<f", data, gguf.tensors[tensor].offset, value)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    return path


def test_a_nan_in_a_norm_is_refused_before_it_is_felt(blob: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    before = gpu.allocated
    with pytest.raises(wgemma.ModelError, match=r"blk\.1\.attn_norm\.weight contains NaN or Inf"):
        wgemma.load(damaged(blob, tmp_path, "blk.1.attn_norm.weight", math.nan), device=gpu)
    assert gpu.allocated == before


def test_bad_logits_name_the_first_bad_layer(blob: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    # So large that the layer's own scale overflows.
    path = damaged(blob, tmp_path, "blk.2.layer_output_scale.weight", 3e38)
    with wgemma.load(path, device=gpu) as loaded, pytest.raises(wgemma.BadLogits, match=r"layer [23] at position"):
        list(loaded.generate("Hello", max_tokens=4))


@pytest.mark.parametrize("cut", [10, 1000, 60_000])
def test_a_truncated_file_is_a_sentence_and_leaves_nothing_behind(
    blob: Path, gpu: NativeDevice, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(blob.read_bytes()[:cut])
    before = gpu.allocated
    with pytest.raises(wgemma.GgufError):
        wgemma.load(path, device=gpu)
    assert gpu.allocated == before


def test_another_architecture_and_a_missing_tensor_are_named(gpu: NativeDevice, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"}))
    with pytest.raises(wgemma.ModelError, match="llama"):
        wgemma.load(path, device=gpu)


def test_closing_gives_all_memory_back(blob: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    for _ in range(2):
        with wgemma.load(blob, device=gpu) as loaded:
            list(loaded.chat(HELLO, max_tokens=3, seed=1))
            loaded.logits([2, 30])
    assert gpu.allocated == before
