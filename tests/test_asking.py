"""Special ways to ask: an answer already begun, no answer at all, and the probabilities of tokens."""

import threading
from pathlib import Path

import numpy as np
import pytest

import wgemma
from wgemma.gpu.native import NativeDevice

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model(blob: Path, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


@pytest.fixture(scope="module")
def slow(blob: Path) -> wgemma.Model:
    return wgemma.load(blob, device="reference")


def log_softmax(logits: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> "np.ndarray":  # type: ignore[type-arg]
    wide = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


# -- what there is to answer


def test_no_messages_are_refused(model: wgemma.Model) -> None:
    with pytest.raises(wgemma.TemplateError, match=r'messages is empty; write .*"user"'):
        model.chat([])


def test_calls_without_results_are_refused(model: wgemma.Model) -> None:
    call = {"role": "assistant", "tool_calls": [wgemma.ToolCall("look")]}
    with pytest.raises(wgemma.TemplateError, match='add a message with role "tool"'):
        model.chat([*HELLO, call])
    assert model.chat([*HELLO, call, {"role": "tool", "content": "a cat"}], max_tokens=1).usage


def test_a_begun_answer_is_continued_where_it_ended(model: wgemma.Model) -> None:
    whole = model.chat(HELLO, max_tokens=8, temperature=0)
    half = model.chat(HELLO, max_tokens=4, temperature=0)
    rest = model.chat([*HELLO, half.message], max_tokens=4, temperature=0)
    assert half.text + rest.text == whole.text and half.text and rest.text
    assert whole.usage and rest.usage and rest.usage.prompt == whole.usage.prompt + 4
    assert rest.usage.reused >= whole.usage.prompt  # half the answer is in the cache


# -- log-probabilities


@pytest.mark.parametrize(("asked", "alternatives"), [(True, 0), (0, 0), (3, 3)])
def test_logprobs_come_with_every_token(model: wgemma.Model, asked: int, alternatives: int) -> None:
    for piece in model.generate("Once", max_tokens=4, seed=1, logprobs=asked):
        (token,) = piece.logprobs
        assert token.id == piece.id and token.logprob <= 0 and len(token.alternatives) == alternatives
        values = [other.logprob for other in token.alternatives]
        assert values == sorted(values, reverse=True)
        assert all(other.text == model.tokenizer.decode([other.id]) for other in (token, *token.alternatives))


def test_false_asks_for_no_logprobs(model: wgemma.Model) -> None:
    assert model.generate("Once", max_tokens=2, logprobs=False).logprobs == []


def test_an_answers_logprobs_are_those_of_all_its_tokens(model: wgemma.Model) -> None:
    answer = model.chat(HELLO, max_tokens=5, temperature=0, logprobs=1)
    assert answer.usage and len(answer.logprobs) == answer.usage.generated
    assert all(token.alternatives[0].id == token.id for token in answer.logprobs)  # greedy: the likeliest
    assert answer.prompt_logprobs == []


# -- scoring a prompt


def test_no_tokens_at_all_scores_the_prompt(model: wgemma.Model) -> None:
    ids = [model.tokenizer.id("<bos>"), *model.tokenizer.encode("Once upon a time")]
    answer = model.generate("Once upon a time", max_tokens=0, logprobs=2)
    assert (answer.text, answer.finish_reason, answer.logprobs) == ("", "length", [])
    used = answer.usage
    assert used is not None and (used.prompt, used.reused, used.computed, used.generated) == (len(ids), 0, len(ids), 0)
    assert [token.id for token in answer.prompt_logprobs] == ids[1:]
    exact = log_softmax(model.logits(ids))
    for i, token in enumerate(answer.prompt_logprobs):
        assert abs(token.logprob - exact[i, token.id]) < 1e-6
        assert [other.id for other in token.alternatives] == list(np.argsort(-exact[i], kind="stable")[:2])


def test_scoring_can_be_cancelled(model: wgemma.Model) -> None:
    stop = threading.Event()
    stop.set()
    for asked in (None, True):
        answer = model.chat(HELLO, max_tokens=0, logprobs=asked, cancel=stop)
        assert answer.finish_reason == "cancelled" and answer.prompt_logprobs == []


def test_the_reference_scores_alike(model: wgemma.Model, slow: wgemma.Model) -> None:
    fast, exact = (m.generate("Once upon", max_tokens=0, logprobs=True).prompt_logprobs for m in (model, slow))
    assert [token.id for token in fast] == [token.id for token in exact]
    assert all(abs(a.logprob - b.logprob) < 0.05 for a, b in zip(fast, exact, strict=True))


def test_a_chat_is_scored_without_its_pictures(model: wgemma.Model) -> None:
    picture = {"type": "image", "image": np.zeros((30, 30, 3), np.uint8), "budget": 70}
    message = {"role": "user", "content": [picture, {"type": "text", "text": "What?"}]}
    answer = model.chat([message], max_tokens=0, logprobs=True)
    *parts, last = answer
    soft = len(model.encode_image(picture["image"], 70))
    assert parts == [] and last.finish_reason == "length" and last.usage is not None
    assert last.usage.generated == 0 and len(answer.prompt_logprobs) == last.usage.prompt - soft - 1


@pytest.mark.parametrize("which", ["model", "slow"])
def test_no_tokens_without_logprobs_only_computes_the_prompt(request: pytest.FixtureRequest, which: str) -> None:
    model = request.getfixturevalue(which)
    model.reset()
    first = model.chat(HELLO, max_tokens=0)
    assert first.usage.reused == 0 and first.usage.computed == first.usage.prompt and first.prompt_logprobs == []
    again = model.chat(HELLO, max_tokens=1).usage
    assert again.reused == again.prompt - 1
