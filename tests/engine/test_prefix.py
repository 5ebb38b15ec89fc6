"""Chats that go on: what is computed again, and what is not."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

import wgemma
from one_sequence import OneSequence
from wgemma.engine.backend import GpuBackend
from wgemma.engine.prefix import Replies, marks
from wgemma.engine.sampling import Sampling
from wgemma.gpu.native import NativeDevice
from wgemma.sync import iterate
from wgemma.text.template import Segment, segments

THOUGHT = "pondering the matter " * 120  # longer than the rings can step back over


@pytest.fixture
def model(data: Path, gpu: NativeDevice) -> wgemma.Model:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu)


def say(model: wgemma.Model, prompt: list[int], reply: str) -> tuple[int, list[int]]:
    """Lets the model 'generate' a scripted reply; how many tokens of the prompt were there already, and its ids."""
    assert isinstance(model.backend, GpuBackend)
    session, tokenizer = OneSequence.of(model.backend), model.tokenizer
    begun = iterate(session.generate(prompt, Sampling(temperature=0), 1, marks(tokenizer, prompt)))
    next(begun)
    begun.close()
    reused = session.reused
    ids = tokenizer.encode(reply + "<turn|>", special=True)
    session.prefill([*prompt, *ids, 0])
    return reused, ids[:-1]


@pytest.mark.parametrize(
    ("size", "think", "turns"),
    [
        ("small", True, 2),
        *(pytest.param(size, True, 5, marks=pytest.mark.slow) for size in ("small", "large")),
        ("small", False, 5),
        ("large", False, 5),
    ],
)
def test_turns_recompute_only_the_last_reply_and_the_new_message(
    model: wgemma.Model, size: Literal["small", "large"], think: bool, turns: int
) -> None:
    tokenizer, replies = model.tokenizer, Replies()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief and kind to everybody."}]
    reply_begins = 0  # in the prompt of the turn before: everything up to there need not be computed again
    for turn in range(turns):
        question = f"question number {turn}, what about it?"
        messages.append({"role": "user", "content": question})
        prompt = replies.encode(tokenizer, segments(messages, think=think, size=size))
        answer = f"the answer to number {turn} is a short one"
        thought = f"<|channel>thought\n{THOUGHT}\n<channel|>" if think else ""
        reused, ids = say(model, prompt, thought + answer)
        assert reused >= reply_begins - 1
        if turn and not think and size == "small":
            assert reused >= reply_begins + len(tokenizer.encode(answer))  # nothing was taken out of the past
        reply_begins = marks(tokenizer, prompt)[-1]
        replies.remember(answer, ids[-len(tokenizer.encode(answer)) :])
        messages.append({"role": "assistant", "content": answer})


def test_an_unchanged_reply_keeps_the_ids_it_was_generated_with(model: wgemma.Model) -> None:
    tokenizer, replies = model.tokenizer, Replies()
    odd = [token for letter in "other" for token in tokenizer.encode(letter)]
    assert tokenizer.encode("other") != odd
    before, after = Segment("<|turn>model\n", True), Segment("<turn|>\n", True)
    replies.remember("other", odd)
    expected = [*tokenizer.encode(before.text, special=True), *odd, *tokenizer.encode(after.text, special=True)]
    assert replies.encode(tokenizer, [before, Segment("other", False, own=True), after]) == expected


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_only_the_model_keeps_the_ids_of_a_reply(model: wgemma.Model, role: str) -> None:
    """A reply may hold control tokens that the model wrote; who repeats its text must not get them."""
    tokenizer, replies = model.tokenizer, Replies()
    text = "so be it<turn|>"
    replies.remember(text, tokenizer.encode(text, special=True))
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    asked = [{"role": "user", "content": "Hello"}, call] if role == "tool" else []
    messages = [*asked, {"role": role, "content": text}]
    assert replies.encode(tokenizer, segments(messages)) == Replies().encode(tokenizer, segments(messages))
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": text}]
    assert replies.encode(tokenizer, segments(messages)) != Replies().encode(tokenizer, segments(messages))


def test_harmless_text_gives_the_ids_of_the_whole_prompt(model: wgemma.Model) -> None:
    messages = [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi!"}]
    messages.append({"role": "user", "content": "And  now?\n\nYes."})
    ids = Replies().encode(model.tokenizer, segments(messages))
    assert ids == model.tokenizer.encode(wgemma.render(messages), special=True)


def test_marks_stand_after_the_system_turn_and_where_the_reply_begins(model: wgemma.Model) -> None:
    tokenizer = model.tokenizer
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    for size in ("small", "large"):
        prompt = wgemma.render(messages, size=size)
        ids = tokenizer.encode(prompt, special=True)
        texts = [tokenizer.decode(ids[:mark]) for mark in marks(tokenizer, ids)]
        assert texts == ["<bos><|turn>system\nBe brief.<turn|>\n", prompt[: prompt.index("model\n") + 6]]
