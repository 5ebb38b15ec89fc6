"""Sequences that go on, go back, fork, and survive."""

import asyncio
import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wgemma
from losing import lose_at
from one_sequence import OneSequence
from wgemma.engine.backend import GpuBackend
from wgemma.engine.batch import UNREAD, Batch
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.gpu.device import Dispatch
from wgemma.gpu.native import NativeBuffer, NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.cache import Arena, CacheSegment
from wgemma.model.config import LayerConfig
from wgemma.model.rows import PAGE
from wgemma.sync import iterate, run

GREEDY = Sampling(temperature=0)


@pytest.fixture
def model(data: Path, gpu: NativeDevice) -> wgemma.Model:
    """The micro model of the store: window 16, so that a few hundred tokens slide it many times."""
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu)


@pytest.fixture
def session(model: wgemma.Model) -> OneSequence:
    return OneSequence.of(model.backend)


def ids_of_length(count: int, seed: int = 1) -> list[int]:
    return [2, *np.random.default_rng(seed).integers(24, 1000, count - 1).tolist()]


def greedy(session: OneSequence, ids: list[int], count: int = 8, marks: tuple[int, ...] = ()) -> list[int]:
    return [token.id for token in iterate(session.generate(ids, GREEDY, count, marks))]


def test_going_on_computes_only_what_is_new(session: OneSequence) -> None:
    prompt = ids_of_length(60)
    reply = greedy(session, prompt)
    greedy(session, [*prompt, *reply, *ids_of_length(9, seed=2)])
    assert session.reused >= len(prompt) + len(reply) - 1


def test_a_prompt_that_parts_early_reuses_what_it_can_and_is_exact(session: OneSequence) -> None:
    prompt = ids_of_length(300)
    first = greedy(session, prompt)
    greedy(session, [*prompt, *first], 40)
    assert greedy(session, prompt) == first
    assert session.reused == len(prompt) - 1


def test_going_back_behind_the_window_recomputes_and_is_exact(session: OneSequence) -> None:
    long = ids_of_length(1200)
    turned = [*long[:100], 30, 31]
    expected = greedy(session, turned)
    session.reset()
    greedy(session, long)
    assert greedy(session, turned) == expected
    assert session.reused == 0


def test_a_mark_keeps_what_the_window_has_left(session: OneSequence) -> None:
    long = ids_of_length(1200)
    turned = [*long[:100], 30, 31]
    expected = greedy(session, turned)
    session.reset()
    greedy(session, long, marks=(90,))
    assert greedy(session, turned) == expected
    assert session.reused == 90


def test_prompts_that_part_again_and_again_stay_exact(session: OneSequence) -> None:
    first = ids_of_length(600)
    second = [*first[:450], *ids_of_length(60, seed=2)]
    greedy(session, first, 3)
    greedy(session, second, 3, marks=(460,))
    greedy(session, [*second[:460], *ids_of_length(400, seed=3)], 3)
    greedy(session, [*second[:460], 30, 31, 32], 3)
    turned = [*first[:360], 40, 41]
    found = greedy(session, turned)
    session.reset()
    assert found == greedy(session, turned)


def test_a_cancelled_reply_leaves_a_session_that_goes_on_exactly(session: OneSequence) -> None:
    prompt = ids_of_length(40)
    whole = greedy(session, prompt, 12)
    session.reset()
    stream = iterate(session.generate(prompt, GREEDY, 500))
    begun = [next(stream).id for _ in range(5)]
    stream.close()
    assert begun == whole[:5]
    assert greedy(session, [*prompt, *begun], 7) == whole[5:]


def test_a_fork_shares_the_past_and_nothing_else(model: wgemma.Model) -> None:
    said: list[Any] = [{"role": "user", "content": "A question, and some more words to share"}]
    one = model.conversation()
    reply = one.chat(said, max_tokens=8, temperature=0).text
    twin = one.fork()
    told = repr(twin)
    other = [*said, {"role": "assistant", "content": reply}, {"role": "user", "content": "Go on"}]
    expected = one.chat(other, max_tokens=8, temperature=0).text
    one.chat([{"role": "user", "content": "Quite another thing"}], max_tokens=8).text  # noqa: B018
    assert repr(twin) == told != repr(one)
    again = twin.chat(other, max_tokens=8, temperature=0)
    assert again.text == expected
    assert again.usage is not None and again.usage.reused == again.usage.prompt - 1


def test_the_arena_grows_and_stays_exact(
    gpu: NativeDevice, session: OneSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of_length(1000)
    expected = greedy(session, ids, 40)
    monkeypatch.setattr("wgemma.engine.options.FIRST_TOKENS", 256)
    grown = OneSequence(Runner(session.engine))
    assert grown.paging.arena.pages[False] == 4
    assert greedy(grown, ids, 40) == expected
    assert grown.paging.arena.pages[False] == 32
    assert greedy(grown, [*ids, *expected], 8) == greedy(session, [*ids, *expected], 8)
    grown.free()


def test_a_cache_beyond_the_limit_of_a_binding_lies_in_segments(
    gpu: NativeDevice, session: OneSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of_length(600)
    expected = greedy(session, ids, 70)
    layer = next(layer for layer in session.engine.config.layers if layer.donor is None and not layer.sliding)
    page = PAGE * session.paging.arena.token_bytes(layer)
    monkeypatch.setattr("wgemma.engine.options.FIRST_TOKENS", 256)
    with monkeypatch.context() as tight:
        tight.setattr(gpu, "limits", replace(gpu.limits, binding=4 * page, buffer=4 * page))
        small = Runner(session.engine).paging
        run(small.reach(small.alone(), 700))
        assert [segment.first for segment in small.arena.segments[layer.index]] == [0, 256, 512, 768]
    pieces = OneSequence(Runner(session.engine))
    segments = dict[int, list[int]]()

    def short(self: Arena, layer: LayerConfig, pages: int, old: Sequence[CacheSegment] = ()) -> list[CacheSegment]:
        """Segments of four pages, whatever a binding may hold."""
        kept = [segment for segment in old if segment.count == 4 * PAGE]
        firsts = range(len(kept) * 4 * PAGE, pages * PAGE, 4 * PAGE)
        made = kept + [self._segment(layer, first, min(4 * PAGE, pages * PAGE - first)) for first in firsts]
        segments[layer.index] = [segment.first for segment in made]
        return made

    monkeypatch.setattr(Arena, "_segments", short)
    assert greedy(pieces, ids, 70) == expected
    assert segments[layer.index] == [0, 256, 512, 768]
    pieces.free()


def test_a_context_that_cannot_grow_is_a_sentence_with_numbers(
    session: OneSequence, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.engine.options.FIRST_TOKENS", 256)
    small = OneSequence(Runner(session.engine))
    prompt = ids_of_length(200)
    expected = greedy(small, prompt)
    before, room = small.runner.ledger.nbytes, gpu.buffer

    def full(size: int, label: str) -> object:
        if label.startswith("values"):
            raise wgemma.OutOfMemory("no room")
        return room(size, label)

    with monkeypatch.context() as tight:
        tight.setattr(gpu, "buffer", full)
        with pytest.raises(wgemma.OutOfMemory, match=r"cannot grow from 256 to 512 tokens: \d+ MB more"):
            greedy(small, ids_of_length(300, seed=2))
    assert small.runner.ledger.nbytes == before
    assert greedy(small, prompt) == expected
    assert [pages.held for pages in small.paging.pages.values()] == held(small)
    small.free()


def held(session: OneSequence) -> list[int]:
    """The pages that the past alone holds."""
    prefixes = session.paging.prefixes
    return [sum(1 for _ in prefixes._nodes()), len(prefixes._pinned)]


def test_a_full_context_ends_the_reply_and_a_longer_prompt_is_refused(data: Path, gpu: NativeDevice) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    blob = data / "ollama-store" / store["gemma4:tiny"]["model"]
    with wgemma.load(blob, device=gpu, context=64) as small:
        assert len(list(small.generate(ids_of_length(60), temperature=0))) <= 4
        with pytest.raises(wgemma.ContextOverflow, match="65 tokens; the context holds 64"):
            list(small.generate(ids_of_length(65)))


@pytest.mark.parametrize(("ids", "message"), [([], "empty"), ([2, 1024], "1024 is not"), ([2, -1], "-1 is not")])
def test_ids_that_are_none_are_refused(model: wgemma.Model, ids: list[int], message: str) -> None:
    with pytest.raises(wgemma.Error, match=message):
        list(model.generate(ids))


def test_a_device_lost_between_replies_is_replaced_too(data: Path) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    with wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"]) as model:
        assert isinstance(model.backend, GpuBackend)
        prompt = ids_of_length(30)
        expected = [piece.id for piece in model.generate(prompt, max_tokens=4, temperature=0)]
        logits = model.logits(prompt)
        for again in (
            lambda: [p.id for p in model.generate(prompt, max_tokens=4, temperature=0)] == expected,
            lambda: bool((model.logits(prompt) == logits).all()),
        ):
            device = model.backend.device
            assert isinstance(device, NativeDevice)
            device._device.destroy()
            assert again()


@pytest.mark.parametrize("how", ["closed", "by the driver"])
def test_a_lost_device_is_replaced_and_the_reply_goes_on(data: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    model = wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"])
    assert isinstance(model.backend, GpuBackend)
    prompt = ids_of_length(50)
    settings = {"max_tokens": 2 * UNREAD, "seed": 5, "logit_bias": dict.fromkeys(model.tokenizer.stop_ids, -100)}
    expected = [piece.id for piece in model.generate(prompt, **settings)]
    stream = model.generate(prompt, **settings)
    got = [next(stream).id for _ in range(4)]
    device = model.backend.device
    assert isinstance(device, NativeDevice)
    lose_at(monkeypatch, Batch, "turn", device.close if how == "closed" else device._device.destroy)
    assert got + [piece.id for piece in stream] == expected
    model.close()


def test_the_same_seed_gives_the_same_tokens_and_another_does_not(model: wgemma.Model) -> None:
    prompt = ids_of_length(20)
    runs = [[p.id for p in model.generate(prompt, max_tokens=16, seed=seed)] for seed in (7, 7, 8)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(("warm", "many"), [(20, 60), pytest.param(300, 700, marks=pytest.mark.slow)])
def test_neither_the_gpu_nor_python_grows_over_many_tokens_and_chats(model: wgemma.Model, warm: int, many: int) -> None:
    assert isinstance(model.backend, GpuBackend)
    device, session = model.backend.device, OneSequence.of(model.backend)
    assert isinstance(device, NativeDevice)
    list(model.generate(ids_of_length(20), max_tokens=warm, temperature=0, stop="\0"))
    for _ in range(3):
        list(model.chat([{"role": "user", "content": "warm"}], max_tokens=3, seed=1))
    before = device.allocated, len(session.programs.recorded), len(device._staging)
    objects, sliding = live_objects(), session.paging.arena.pages[True]
    for turn in range(20):
        list(model.chat([{"role": "user", "content": f"chat number {turn}"}], max_tokens=3, seed=1))
    total = 0
    while total < many:
        total += len(list(model.generate(ids_of_length(20), max_tokens=many // 3, seed=total)))
    marked = (session.paging.arena.pages[True] - sliding) * session.paging.arena.costs[True]
    assert device.allocated - marked <= before[0]
    assert len(session.paging.prefixes._pinned) <= session.paging.prefixes.budget
    assert len(session.programs.recorded) <= before[1] + 8
    assert len(device._staging) <= before[2] + 4
    assert live_objects() <= objects + 8 * 300


def live_objects() -> int:
    """Buffers, tapes and what tapes hold; a new recording may bring some hundreds."""
    gc.collect()
    return sum(isinstance(thing, NativeBuffer | Tape | Dispatch) for thing in gc.get_objects())


def test_async_twins_work_inside_a_running_loop_and_wait_their_turn(model: wgemma.Model) -> None:
    prompt = ids_of_length(20)
    expected = [piece.id for piece in model.generate(prompt, max_tokens=6, temperature=0)]

    async def collect() -> list[int]:
        return [piece.id async for piece in model.agenerate(prompt, max_tokens=6, temperature=0)]

    async def both() -> list[list[int]]:
        inside = [piece.id for piece in model.generate(prompt, max_tokens=6, temperature=0)]  # as in a notebook
        return [inside, *await asyncio.gather(collect(), collect())]

    assert asyncio.run(both()) == [expected] * 3


def test_a_second_call_in_the_middle_of_a_reply_runs_beside_it(model: wgemma.Model) -> None:
    prompt, other = ids_of_length(20), ids_of_length(5)
    alone = [[p.id for p in model.generate(ids, max_tokens=50, temperature=0)] for ids in (prompt, other)]
    stream = model.generate(prompt, max_tokens=50, temperature=0)
    begun = [next(stream).id]
    assert [p.id for p in model.generate(other, max_tokens=50, temperature=0)] == alone[1]
    assert begun + [p.id for p in stream] == alone[0]


# -- several sequences on one runner


def test_a_second_sequence_records_nothing_again(session: OneSequence) -> None:
    first, second = ids_of_length(80), ids_of_length(90, seed=4)
    expected = greedy(session, first), greedy(session, second)
    recorded = dict(session.programs.recorded)
    other = OneSequence(session.runner)
    assert greedy(other, first) == expected[0]
    assert greedy(session, second) == expected[1]
    assert session.programs.recorded == recorded


def test_sequences_follow_each_other_and_keep_what_they_computed(session: OneSequence) -> None:
    other = OneSequence(session.runner)
    prompts = {session: ids_of_length(300), other: ids_of_length(260, seed=5)}
    replies = {each: greedy(each, prompt) for each, prompt in prompts.items()}
    for each, prompt in prompts.items():
        assert greedy(each, prompt) == replies[each]
        assert each.reused == len(prompt) - 1
