"""Chats that are longer than the context, as a user of the API has them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wgemma
from wgemma.engine.prefix import Replies
from wgemma.text.parts import content_of
from wgemma.text.template import segments

CONTEXT = 512


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[wgemma.Model]:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    blob = data / "ollama-store" / store["gemma4:tiny"]["model"]
    with wgemma.load(blob, device="reference", context=CONTEXT) as loaded:
        yield loaded


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(model: wgemma.Model, messages: list[Any], **options: Any) -> tuple[str, wgemma.Part, wgemma.Usage]:
    """The answer, its last part, and what it took."""
    *parts, last = model.chat(messages, **{"max_tokens": 4, "temperature": 0, **options})
    assert last.usage is not None
    return "".join(part.text for part in parts if part.kind == "content"), last, last.usage


def test_a_chat_goes_on_for_ever_and_its_prefix_is_reused_most_of_the_time(model: wgemma.Model) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    dropped, reused = [], []
    for i in range(60):
        messages.append(asked(f"question {i}?"))
        answer, last, usage = ask(model, messages)
        messages.append({"role": "assistant", "content": answer})
        assert last.finish_reason in ("length", "stop") and usage.prompt + 4 <= CONTEXT
        dropped.append(usage.dropped)
        reused.append(usage.reused > usage.prompt // 2)
    assert dropped == sorted(dropped) and dropped[0] == 0 and dropped[-1] > 60
    shifts = len(set(dropped)) - 1
    assert shifts >= 2 and 4 * shifts < len(dropped)
    assert reused.count(False) <= shifts + 1  # after a shift, and at the start


def test_the_same_messages_give_the_same_answer_whatever_was_asked_before(model: wgemma.Model) -> None:
    messages = [message for i in range(80) for message in (asked(f"{i}?"), {"role": "assistant", "content": f"{i}."})]
    messages.append(asked("why?"))
    first, _, usage = ask(model, messages)
    ask(model, [asked("something else")])
    ask(model, [*messages[:-5], asked("something else")])
    again, _, usage_again = ask(model, messages)
    assert (first, usage.dropped) == (again, usage_again.dropped)
    assert usage.dropped > 0 and usage.dropped % 2 == 0
    alone, _, usage_alone = ask(model, messages[usage.dropped :], shift=False)
    assert (alone, usage_alone.prompt, usage_alone.dropped) == (first, usage.prompt, 0)


def test_a_begun_answer_and_a_prompt_that_is_only_read_are_shortened_too(model: wgemma.Model) -> None:
    messages = [message for i in range(80) for message in (asked(f"{i}?"), {"role": "assistant", "content": f"{i}."})]
    _, _, usage = ask(model, messages)  # ends with an answer to continue
    assert 0 < usage.dropped < len(messages) - 1
    read = model.chat(messages, max_tokens=0)
    assert read.usage is not None and read.usage.dropped > 0 and read.usage.prompt <= CONTEXT


def test_an_answer_that_fills_the_context_ends_and_the_next_question_is_answered(model: wgemma.Model) -> None:
    messages = [asked("tell me all")]
    answer, last, usage = ask(
        model, messages, max_tokens=CONTEXT, logit_bias=dict.fromkeys(model.tokenizer.stop_ids, -100)
    )
    assert last.finish_reason == "length" and usage.prompt + usage.generated == CONTEXT
    messages += [{"role": "assistant", "content": answer}, asked("and?")]
    _, last, usage = ask(model, messages)
    assert usage.dropped == 2 and usage.generated > 0


def test_a_chat_too_long_is_refused_if_it_must_not_be_shortened(model: wgemma.Model) -> None:
    messages = [message for i in range(80) for message in (asked(f"{i}?"), {"role": "assistant", "content": f"{i}."})]
    tokens = len(Replies().encode(model.tokenizer, segments([*messages, asked("why?")])))
    with pytest.raises(wgemma.ContextOverflow, match=rf"has {tokens} tokens; the context holds {CONTEXT}\. Shorten it"):
        ask(model, [*messages, asked("why?")], shift=False)
    with pytest.raises(wgemma.ContextOverflow, match=rf"the context holds {CONTEXT}\. Shorten it"):
        ask(model, [*messages, asked("why? " * CONTEXT)])
    with pytest.raises(wgemma.SettingsError, match="shift is 'yes'"):
        ask(model, messages, shift="yes")


def test_pictures_and_sounds_count_and_are_not_opened_once_they_are_dropped(
    model: wgemma.Model, tmp_path: Path
) -> None:
    gone = {"type": "image", "image": str(tmp_path / "gone.png")}
    picture = {"type": "image", "image": np.zeros((48, 48, 3), np.uint8), "budget": 70}
    sound = {"type": "audio", "audio": np.zeros(16_000, np.float32)}
    said = {"role": "assistant", "content": "yes"}
    shown = [{"role": "user", "content": [picture]}, said, {"role": "user", "content": [sound]}, said]
    _, _, usage = ask(model, [*shown, asked("so?")])
    assert usage.dropped == 0
    _, _, usage = ask(model, [{"role": "user", "content": [gone]}, said, *(4 * shown), asked("so?")])
    assert usage.dropped >= 2 + 2
    with pytest.raises(wgemma.MediaError, match=r"gone\.png: no such file"):
        ask(model, [{"role": "user", "content": [gone]}, said, asked("so?")])


@pytest.mark.parametrize("seconds", [0.3, 31.0])
def test_what_a_sound_takes_is_known_before_it_is_decoded(seconds: float, model: wgemma.Model) -> None:
    part = {"type": "audio", "audio": np.random.default_rng(1).uniform(-1, 1, int(16_000 * seconds)).astype(np.float32)}
    estimate = model.backend.weigh(content_of(part))
    real = len(model.media_ids(part))
    assert real <= estimate <= real + 3 * (1 + seconds // 25)


@pytest.mark.parametrize("size", [(40, 60), (60, 20), (64, 64)])
def test_what_a_picture_takes_is_known_before_it_is_decoded(size: tuple[int, int], model: wgemma.Model) -> None:
    part = {"type": "image", "image": np.zeros((*size, 3), np.uint8), "budget": 140}
    assert model.backend.weigh(content_of(part)) == len(model.media_ids(part))
