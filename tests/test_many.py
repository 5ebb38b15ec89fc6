"""Many answers at once, by every way to ask for them."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import wgemma
from wgemma.together import together

QUESTIONS = [f"What is {i} plus {i // 2}?" for i in range(12)] + [f"Spell the word number {i}." for i in range(12)]


def chat(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}]


CHATS = [chat(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def model() -> Iterator[wgemma.Model]:
    with wgemma.load(context=2048) as model:
        yield model


@pytest.fixture(scope="module")
def expected(model: wgemma.Model) -> list[str]:
    """The answers, one by one."""
    return [model.chat(messages, max_tokens=12, temperature=0).text for messages in CHATS]


@pytest.fixture(autouse=True)
def all_is_freed(model: wgemma.Model) -> Iterator[None]:
    """After every test nothing runs, and only what was computed holds pages."""
    yield
    gc.collect()
    soon(lambda: model.backend.idle)
    model.reset()
    paging = model.backend.runner.paging
    assert [pages.count - pages.free for pages in paging.pages.values()] == [0, 0]


def soon(true: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


# -- one system prompt for many


def test_callers_with_one_system_prompt_compute_it_and_hold_it_once(model: wgemma.Model) -> None:
    system = {"role": "system", "content": "You know your numbers. " * 240}
    with ThreadPoolExecutor(32) as threads:
        asked = [[system, {"role": "user", "content": f"What is {i} plus 1?"}] for i in range(32)]
        usages = list(threads.map(lambda messages: usage_of(model.chat(messages, max_tokens=3, temperature=0)), asked))
    common = min(usage.prompt for usage in usages) - 40
    assert common > 1000
    assert [usage.reused >= common for usage in usages].count(False) == 1
    paging = model.backend.runner.paging
    assert paging.pages[False].held < common // 64 + 2 * 32 + 2


def usage_of(answer: wgemma.Answer[wgemma.Part]) -> wgemma.Usage:
    assert answer.usage is not None
    return answer.usage


# -- the same text, whoever asks


def test_threads_get_what_they_would_get_alone(model: wgemma.Model, expected: list[str]) -> None:
    with ThreadPoolExecutor(24) as threads:
        texts = list(threads.map(lambda c: model.conversation().chat(c, max_tokens=12, temperature=0).text, CHATS))
    assert texts == expected


def test_tasks_get_what_they_would_get_alone(model: wgemma.Model, expected: list[str]) -> None:
    async def all_at_once() -> list[str]:
        answers = [model.conversation().achat(c, max_tokens=12, temperature=0) for c in CHATS]
        return [answer.text for answer in await asyncio.gather(*map(complete, answers))]

    async def complete(answer: "wgemma.AsyncAnswer[wgemma.Part]") -> "wgemma.AsyncAnswer[wgemma.Part]":
        return await answer

    assert asyncio.run(all_at_once()) == expected


def test_chat_many_gives_all_texts_in_order(model: wgemma.Model, expected: list[str]) -> None:
    answers = model.chat_many(iter(CHATS), max_tokens=12, temperature=0)
    assert answers.texts == expected
    assert all(answer.usage is not None and answer.finish_reason for answer in answers.answers)


def test_parts_come_with_the_index_of_their_chat(model: wgemma.Model, expected: list[str]) -> None:
    texts = [""] * len(CHATS)
    order = []
    for index, part in model.chat_many(CHATS, max_tokens=12, temperature=0):
        texts[index] += part.text
        order.append(index)
    assert texts == expected
    assert order != sorted(order)  # they are written at the same time


def test_achat_many_in_an_event_loop(model: wgemma.Model, expected: list[str]) -> None:
    async def both() -> tuple[list[str], list[str]]:
        texts = [""] * len(CHATS)
        async with model.achat_many(CHATS, max_tokens=12, temperature=0) as answers:
            async for index, part in answers:
                texts[index] += part.text
        return texts, [answer.text for answer in await model.achat_many(CHATS, max_tokens=12, temperature=0)]

    assert asyncio.run(both()) == (expected, expected)


def test_the_plain_names_work_inside_an_event_loop(model: wgemma.Model) -> None:
    async def notebook() -> list[str]:
        return model.generate_many(["One", "Two", "Three"], max_tokens=3, temperature=0).texts

    assert asyncio.run(notebook()) == model.generate_many(["One", "Two", "Three"], max_tokens=3, temperature=0).texts


def test_generate_many_takes_texts_and_ids(model: wgemma.Model) -> None:
    ids = [model.tokenizer.id("<bos>"), *model.tokenizer.encode("The cat")]
    (first, second) = model.generate_many(["The cat", ids], max_tokens=4, temperature=0).texts
    assert first == second == model.generate("The cat", max_tokens=4, temperature=0).text


def test_the_reference_takes_turns() -> None:
    with wgemma.load(device="reference", context=64) as slow:
        alone = slow.generate("Hello", max_tokens=3, temperature=0).text
        assert slow.generate_many(["Hello", "Hello"], max_tokens=3, temperature=0).texts == [alone, alone]
        alternatives = slow.generate("Hello", n=2, max_tokens=3, temperature=0).alternatives
        assert [answer.text for answer in alternatives] == [alone, alone]


# -- endless, early, slow, nested


def test_an_endless_iterable_is_read_as_far_as_needed(model: wgemma.Model) -> None:
    asked = []

    def prompts() -> Iterator[str]:
        for i in count():
            asked.append(i)
            yield f"Number {i}"

    with model.generate_many(prompts(), max_tokens=3, temperature=0) as answers:
        furthest = max(index for index, _ in islice(answers, 120))
    assert len(asked) <= furthest + 1 + 2 * model.backend.slots
    assert furthest > 2 * model.backend.slots


def test_nothing_is_kept_of_what_was_read(model: wgemma.Model) -> None:
    answers = model.generate_many(["One", "Two"], max_tokens=3)
    next(answers)
    with pytest.raises(wgemma.SessionError, match="before iterating"):
        _ = answers.texts
    answers.close()


def test_closing_early_frees_all_slots_soon(model: wgemma.Model) -> None:
    answers = model.chat_many(CHATS)
    next(answers)
    assert not model.backend.idle
    answers.close()
    soon(lambda: model.backend.idle, 2)
    assert list(answers) == []


def test_dropping_the_answers_frees_all_slots_soon(model: wgemma.Model) -> None:
    for _ in model.chat_many(CHATS):
        break
    gc.collect()
    soon(lambda: model.backend.idle, 2)


def test_leaving_an_async_loop_frees_all_slots_soon(model: wgemma.Model) -> None:
    async def leave() -> None:
        async for _ in model.achat_many(CHATS):
            break
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(leave())
    soon(lambda: model.backend.idle, 2)


def test_a_cancelled_task_frees_all_slots_soon(model: wgemma.Model) -> None:
    async def cancelled() -> None:
        async def read() -> None:
            async for _ in model.achat_many(CHATS):
                begun.set()

        begun = asyncio.Event()
        task = asyncio.ensure_future(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    soon(lambda: model.backend.idle, 2)


def test_cancelling_ends_all_and_begins_none(model: wgemma.Model) -> None:
    stop, asked = threading.Event(), []

    def prompts() -> Iterator[str]:
        for i in count():
            asked.append(i)
            yield f"Number {i}"

    for _ in model.generate_many(prompts(), cancel=stop):
        stop.set()
    assert len(asked) <= 2 * model.backend.slots + 1


def test_calls_may_be_nested(model: wgemma.Model, expected: list[str]) -> None:
    for i, _ in enumerate(model.chat_many(CHATS[:3], max_tokens=3)):
        if i == 1:
            assert model.chat_many(CHATS[:2], max_tokens=12, temperature=0).texts == expected[:2]
            assert model.chat(CHATS[2], max_tokens=12, temperature=0).text == expected[2]


def test_a_reader_that_pauses_does_not_stop_others(model: wgemma.Model, expected: list[str]) -> None:
    sleepers = [model.conversation().chat(messages, temperature=1) for messages in CHATS[: 2 * model.backend.slots]]
    for answer in sleepers:
        next(answer)
    texts = [model.conversation().chat(messages, max_tokens=12, temperature=0).text for messages in CHATS[:4]]
    assert texts == expected[:4]
    for answer in sleepers:
        answer.close()


def test_the_event_loop_goes_on_while_answers_are_written(model: wgemma.Model) -> None:
    long = "A cat sat on a mat. " * 200
    assert 1200 < len(model.tokenizer.encode(long)) < 2000

    async def watched() -> float:
        asked = [
            asyncio.ensure_future(_whole(model.agenerate(long, max_tokens=4))),
            *(asyncio.ensure_future(_whole(model.conversation().achat(c, max_tokens=12))) for c in CHATS[:6]),
        ]
        worst, last = 0.0, time.perf_counter()
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.01)
            now = time.perf_counter()
            worst, last = max(worst, now - last - 0.01), now
        return worst

    asyncio.run(watched())  # compiles what it needs
    model.reset()
    assert any(asyncio.run(watched()) < 0.05 for _ in range(3))  # a busy machine may miss a tick


async def _whole(answer: "wgemma.AsyncAnswer[Any]") -> str:
    return (await answer).text


# -- errors


def test_a_bad_prompt_ends_its_own_answer_only(model: wgemma.Model) -> None:
    prompts: list[Any] = ["One", 5, "Two", "x " * 4000]
    first, bad, second, long = model.generate_many(prompts, max_tokens=3, temperature=0).answers
    assert isinstance(bad.error, wgemma.SettingsError) and isinstance(long.error, wgemma.ContextOverflow)
    assert first.text and second.text and first.error is second.error is None
    with pytest.raises(wgemma.SettingsError):
        _ = model.generate_many(prompts, max_tokens=3).texts


def test_a_reader_hears_of_an_error_after_all_others(model: wgemma.Model) -> None:
    answers, heard = model.generate_many([[-1], "Two"], max_tokens=3), []
    with pytest.raises(wgemma.SettingsError, match="-1") as raised:
        heard += [index for index, _ in answers]
    assert set(heard) <= {1}
    assert raised.value.__notes__ == ["This is about number 0, counted from 0."]


def test_an_error_of_the_callers_own_ends_everything(model: wgemma.Model) -> None:
    def prompts() -> Iterator[str]:
        yield "One"
        raise LookupError("no more")

    with pytest.raises(LookupError):
        list(model.generate_many(prompts(), max_tokens=3))

    async def read() -> None:
        await model.agenerate_many(prompts(), max_tokens=3)

    with pytest.raises(LookupError):
        asyncio.run(read())

    def shout(progress: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(model.generate_many(["One", "Two"], max_tokens=3, progress=shout))


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("One", {}, "prompts is 'One'; it must be a list of them"),
        (5, {}, "prompts is 5"),
        (["One"], {"n": 2}, "n is an option of chat"),
        (["One"], {"temperature": -1}, "temperature is -1"),
        (["One"], {"think": True}, "think is an option of chat"),
    ],
)
def test_a_wrong_call_is_refused_at_once(
    prompts: Any, options: dict[str, Any], message: str, model: wgemma.Model
) -> None:
    with pytest.raises(wgemma.SettingsError, match=message):
        model.generate_many(prompts, **options)


def test_a_closed_model_ends_an_endless_call() -> None:
    with wgemma.load(context=256) as model:
        answers = model.generate_many((f"Number {i}" for i in count()), max_tokens=3)
        next(answers)
    with pytest.raises(wgemma.SessionError, match="closed"):
        list(answers)


def test_an_interrupt_closes_all_answers() -> None:
    closed = []

    async def endless(number: int) -> Any:
        try:
            while True:
                yield number
        finally:
            closed.append(number)

    items = together([lambda: endless(0), lambda: endless(1)], 2)
    assert [next(items)[0] for _ in range(4)] == [0, 0, 1, 0]
    with pytest.raises(KeyboardInterrupt):
        items.throw(KeyboardInterrupt)
    assert sorted(closed) == [0, 1]


# -- alternatives


def test_alternatives_share_their_prompt(model: wgemma.Model) -> None:
    question = chat("Tell me a story about a cat and a dog who live in a house by the sea.")
    answer = model.chat(question, n=5, max_tokens=12, temperature=3, top_k=0, top_p=1, seed=7)
    parts = list(answer)
    assert {part.index for part in parts} == set(range(5))
    texts = ["".join(part.text for part in parts if part.index == i) for i in range(5)]
    assert [whole.text for whole in answer.alternatives] == texts
    assert answer.text == texts[0]
    assert len(set(texts)) > 1
    first, *others = [whole.usage for whole in answer.alternatives if whole.usage]
    assert first.reused < first.prompt - 1
    assert [usage.reused for usage in others] == [first.prompt - 1] * 4


def test_the_first_alternative_keeps_the_seed(model: wgemma.Model) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 3, "top_k": 0, "top_p": 1, "seed": 11}
    alone = model.generate("Once", **options).text
    several = model.generate("Once", n=3, **options).alternatives
    again = model.generate("Once", n=3, **options).alternatives
    assert several[0].text == alone
    assert [answer.text for answer in again] == [answer.text for answer in several]

    async def asynchronous() -> list[str]:
        return [answer.text for answer in (await model.agenerate("Once", n=3, **options)).alternatives]

    assert asyncio.run(asynchronous()) == [answer.text for answer in several]


def test_one_answer_is_its_only_alternative(model: wgemma.Model) -> None:
    answer = model.generate("Once", max_tokens=3, temperature=0)
    (only,) = answer.alternatives
    assert (only.text, only.usage, only.finish_reason) == (answer.text, answer.usage, answer.finish_reason)


def test_closing_ends_all_alternatives(model: wgemma.Model) -> None:
    with model.generate("Once", n=20, temperature=1) as answer:
        next(answer)
    assert {whole.finish_reason for whole in answer.alternatives} == {"cancelled"}
    soon(lambda: model.backend.idle, 2)


@pytest.mark.parametrize("n", [0, 65, "two", 1.5])
def test_a_wrong_number_of_alternatives_is_refused(n: Any, model: wgemma.Model) -> None:
    with pytest.raises(wgemma.SettingsError, match=r"n is .*; it must be a whole number from 1 to 64"):
        model.generate("Once", n=n)


# -- conversations


def test_a_conversation_goes_on_forks_and_begins_anew(model: wgemma.Model, tmp_path: Path) -> None:
    one = model.conversation()
    messages = chat("My name is Ada. Say hello to me, please, and tell me about yourself.")
    said = one.chat(messages, max_tokens=12, temperature=0)
    further = [*messages, said.message, *chat("Who am I?")]
    fork = one.fork()
    mine, other = one.chat(further, max_tokens=8, temperature=0), fork.chat(further, max_tokens=8, temperature=0)
    assert mine.text == other.text
    assert said.usage and mine.usage and mine.usage.reused >= said.usage.prompt
    one.save(tmp_path / "chat")
    model.reset()
    one.reset()
    one.restore(tmp_path / "chat")
    again = one.chat(further, max_tokens=8, temperature=0)
    assert again.text == mine.text
    assert again.usage and again.usage.reused > said.usage.prompt


# -- memory


def after_requests(model: wgemma.Model, count: int) -> tuple[int, int]:
    """GPU memory and Python objects after so many requests."""
    for start in range(0, count, 50):
        for _ in model.generate_many((f"Number {start + i}" for i in range(50)), max_tokens=2, temperature=0):
            pass
        soon(lambda: model.backend.idle)
        model.reset()
    gc.collect()
    return model.backend.device.allocated, len(gc.get_objects())  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_requests(count: int, model: wgemma.Model) -> None:
    """A round may record a pass that none before it needed, but a leak grows with every round."""
    after_requests(model, 50)
    rounds = [after_requests(model, count)]
    while len(rounds) < 5 and (len(rounds) < 2 or rounds[-1][0] > rounds[-2][0] or rounds[-1][1] > rounds[-2][1] + 200):
        rounds.append(after_requests(model, count))
    assert len(rounds) < 5, rounds
