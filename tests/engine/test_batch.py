"""Many generations at once: each is what it is alone, and nobody suffers for another."""

import asyncio
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wgemma
from adapter_maker import adapter, pair
from losing import lose_at
from wgemma.engine import backend, batch, owner
from wgemma.engine.backend import GpuBackend
from wgemma.engine.batch import UNREAD, Batch
from wgemma.engine.options import Options
from wgemma.engine.request import Request
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.files.adapters import write_gguf_adapter
from wgemma.files.locate import locate
from wgemma.gpu.native import NativeDevice
from wgemma.loading import Loading, open_files
from wgemma.sync import run

LONG = 20.0  # seconds until a hung test fails


def ids_of_length(count: int, seed: int = 1) -> list[int]:
    return [2, *np.random.default_rng(seed).integers(24, 1000, count - 1).tolist()]


def load(blob: Path, device: NativeDevice | None = None, **options: Any) -> wgemma.Model:
    return run(open_files(locate(blob), Loading(Options(**options), device)))


@pytest.fixture
def model(blob: Path, gpu: NativeDevice) -> Iterator[wgemma.Model]:
    with load(blob, gpu) as loaded:
        yield loaded


def backend_of(model: wgemma.Model) -> GpuBackend:
    assert isinstance(model.backend, GpuBackend)
    return model.backend


def endless(model: wgemma.Model, **options: Any) -> dict[str, Any]:
    """Options of a greedy reply that no token ends."""
    return {"temperature": 0, "logit_bias": dict.fromkeys(model.tokenizer.stop_ids, -100), **options}


def tokens(model: wgemma.Model, ids: list[int], **options: Any) -> list[int]:
    return [piece.id for piece in model.generate(ids, **endless(model, **options))]


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What the calls return or raise, each in a thread of its own."""
    found: list[Any] = [TimeoutError("it hangs")] * len(calls)

    def call(number: int) -> None:
        try:
            found[number] = calls[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    return found


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


REQUESTS: list[dict[str, Any]] = [
    {"ids": ids_of_length(20), "max_tokens": 40},
    {"ids": ids_of_length(300, seed=2), "max_tokens": 10},
    {"ids": ids_of_length(5, seed=3), "max_tokens": 90, "temperature": 1.0, "seed": 7},
    {"ids": ids_of_length(70, seed=4), "max_tokens": 25, "repeat_penalty": 1.3},
    {"ids": ids_of_length(64, seed=5), "max_tokens": 1},
    {"ids": [*ids_of_length(20), 33, 34], "max_tokens": 12},
]


def test_each_of_many_says_what_it_says_alone(model: wgemma.Model) -> None:
    alone = [tokens(model, **request) for request in REQUESTS]
    model.reset()
    assert together([lambda request=request: tokens(model, **request) for request in REQUESTS]) == alone
    assert backend_of(model).runner.slots.count == 8
    work = backend_of(model).batch
    assert not work.seats.jobs and not work._waiting and not work.busy


@pytest.mark.parametrize("thread", [True, False], ids=["with a thread", "as in a page"])
def test_tasks_of_an_event_loop_run_together(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch, thread: bool
) -> None:
    alone = [tokens(model, **request) for request in REQUESTS]
    model.reset()

    monkeypatch.setattr(owner, "_alone", not thread)
    working = set(threading.enumerate())

    async def ask(ids: list[int], **options: Any) -> list[int]:
        return [piece.id async for piece in model.agenerate(ids, **endless(model, **options))]

    async def all_at_once() -> list[list[int]]:
        return await asyncio.gather(*(ask(**request) for request in REQUESTS))

    async def and_leave() -> list[list[int]]:
        found = await all_at_once()
        left = model.agenerate(ids_of_length(9), **endless(model))
        await anext(left)
        await left.aclose()
        await model._forget()
        assert not backend_of(model).batch.seats.jobs
        async with model.backend.turn():  # as the page closes it
            model.close()
        return found

    assert asyncio.run(and_leave()) == alone
    assert thread or set(threading.enumerate()) <= working


def test_log_probabilities_are_those_of_a_reply_alone(model: wgemma.Model) -> None:
    def ask(seed: int, logprobs: int | None) -> list[Any]:
        answer = model.generate(ids_of_length(30, seed), **endless(model, max_tokens=12, logprobs=logprobs))
        return [(token.id, [other.id for other in token.alternatives], token.logprob) for token in answer.logprobs]

    asked = [(1, 3), (2, None), (3, 0), (4, 5)]
    alone = [ask(*each) for each in asked]
    model.reset()
    for one, many in zip(alone, together([lambda each=each: ask(*each) for each in asked]), strict=True):
        assert [token[:2] for token in one] == [token[:2] for token in many]
        assert np.allclose([token[2] for token in one], [token[2] for token in many], atol=1e-3)


def test_a_prompt_that_is_only_read_does_not_disturb_others(model: wgemma.Model) -> None:
    expected = tokens(model, ids_of_length(20), max_tokens=60)
    model.reset()
    reply = model.generate(ids_of_length(20), **endless(model, max_tokens=60))
    begun = [next(reply).id]
    read = model.generate(ids_of_length(200, seed=2), max_tokens=0)
    assert read.usage is not None and (read.usage.generated, read.finish_reason) == (0, "length")
    assert read.usage.computed == 200 - read.usage.reused >= 199
    assert begun + [piece.id for piece in reply] == expected


# -- readers who are slow, or leave


def test_a_generation_is_little_ahead_of_its_reader_and_goes_on_when_he_does(model: wgemma.Model) -> None:
    expected = tokens(model, ids_of_length(9), max_tokens=150)
    reply, work = model.generate(ids_of_length(9), **endless(model, max_tokens=150)), backend_of(model).batch
    begun = [next(reply).id]
    until(lambda: not work.busy)
    (job,) = work.seats.jobs.values()
    assert job.rests and UNREAD <= len(job.given) <= UNREAD + 8
    assert backend_of(model).idle
    assert begun + [piece.id for piece in reply] == expected


@pytest.mark.parametrize("slots", [1, 2])
def test_replies_that_nobody_reads_on_keep_nobody_waiting(
    blob: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    for module in (batch, backend):
        monkeypatch.setattr(module, "UNREAD", 8)
    with load(blob, gpu, slots=slots) as model:
        prompts = [ids_of_length(30, seed) for seed in range(4)]
        expected = [tokens(model, ids, max_tokens=30) for ids in prompts]
        model.reset()
        replies = [model.generate(ids, **endless(model, max_tokens=30)) for ids in prompts]
        begun = [together([lambda reply=reply: next(reply).id])[0] for reply in replies]
        assert begun == [said[0] for said in expected]
        (found,) = together([lambda: tokens(model, ids_of_length(7, seed=9), max_tokens=30)])
        assert len(found) == 30
        until(lambda: not backend_of(model).batch.busy)  # the thread does not spin
        for first, reply, said in reversed(list(zip(begun, replies, expected, strict=True))):
            assert [first, *together([lambda reply=reply: [piece.id for piece in reply]])[0]] == said


def test_whoever_leaves_gives_back_his_slot_and_his_pages(model: wgemma.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "IDLE", 0.05)
    work, pages = backend_of(model).batch, backend_of(model).runner.paging.pages
    replies = [model.generate(ids_of_length(40, seed), **endless(model)) for seed in range(4)]
    for reply in replies:
        next(reply)
    waiting = model.generate(ids_of_length(500, seed=8), **endless(model))
    thread = threading.Thread(target=lambda: next(waiting))
    thread.start()
    thread.join()
    assert len(work.seats.jobs) == 5
    for reply in (*replies, waiting):
        reply.close()
    until(lambda: not work.seats.jobs and not work.busy)
    model.reset()
    assert [kind.held for kind in pages.values()] == [0, 0]
    until(lambda: backend_of(model)._owner._thread is None)  # type: ignore[union-attr]
    assert len(tokens(model, ids_of_length(9), max_tokens=3)) == 3  # and it comes back


def test_cancelling_one_of_many_ends_that_one_soon(model: wgemma.Model) -> None:
    stop = threading.Event()
    other = model.generate(ids_of_length(9), **endless(model, max_tokens=200))
    next(other)
    reply = model.generate(ids_of_length(30, seed=2), cancel=stop, **endless(model))
    for _ in reply:
        stop.set()
    assert reply.finish_reason == "cancelled" and reply.usage is not None and reply.usage.generated == 1
    assert len(list(other)) == 199


# -- errors


def test_a_bad_prompt_is_refused_while_others_go_on(model: wgemma.Model) -> None:
    expected = tokens(model, ids_of_length(20), max_tokens=50)
    model.reset()
    found = together(
        [
            lambda: tokens(model, ids_of_length(20), max_tokens=50),
            lambda: tokens(model, [2, 5000], max_tokens=5),
            lambda: tokens(model, ids_of_length(3000), max_tokens=5),
        ]
    )
    assert found[0] == expected
    assert [type(error) for error in found[1:]] == [wgemma.SettingsError, wgemma.ContextOverflow]


@pytest.mark.parametrize("where", ["begin", "reach"])
def test_what_nobody_foresaw_is_told_to_all_and_the_model_lives(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = tokens(model, ids_of_length(20), max_tokens=5)
    paging = backend_of(model).runner.paging
    reply = model.generate(ids_of_length(30, seed=3), **endless(model))
    next(reply)

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(paging, where, broken)
    found = together([lambda: tokens(model, ids_of_length(9), max_tokens=5), lambda: list(reply)])
    assert [type(error) for error in found] == [ZeroDivisionError] * 2
    monkeypatch.undo()
    model.reset()
    assert [kind.held for kind in paging.pages.values()] == [0, 0]
    assert tokens(model, ids_of_length(20), max_tokens=5) == expected


def test_bad_logits_end_their_own_generation_and_leave_nothing_bad_behind(model: wgemma.Model, tmp_path: Path) -> None:
    huge = pair(64, 32)
    huge.b[:] = array("f", [3e38] * len(huge.b))
    write_gguf_adapter(adapter(blk__0__attn_v=huge), tmp_path / "x.gguf")
    prompts = [ids_of_length(90, seed) for seed in range(3)]
    expected = [tokens(model, ids, max_tokens=30) for ids in prompts]
    model.load_adapter(tmp_path / "x.gguf", "x")
    model.reset()
    for _ in range(2):  # the second time in pages that have held NaN
        found = together(
            [
                *(lambda ids=ids: tokens(model, ids, max_tokens=30, adapter=None) for ids in prompts),
                *(lambda ids=ids: tokens(model, ids, max_tokens=30, adapter={"x": 1e9}) for ids in prompts),
            ]
        )
        assert found[:3] == expected
        assert [type(error) for error in found[3:]] == [wgemma.BadLogits] * 3
        model.reset()


# -- memory


def test_without_room_for_a_second_slot_replies_come_one_after_another(
    blob: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(blob, gpu) as model:
        alone = [tokens(model, **request) for request in REQUESTS]
        model.reset()
        plenty = gpu.buffer

        def scarce(size: int, label: str) -> Any:
            if label == "rows of slots":
                raise wgemma.OutOfMemory("there is no room.")
            return plenty(size, label)

        monkeypatch.setattr(gpu, "buffer", scarce)
        assert together([lambda request=request: tokens(model, **request) for request in REQUESTS]) == alone
        assert backend_of(model).runner.slots.count == 1


def test_without_room_for_its_penalties_one_reply_fails(
    blob: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(blob, gpu) as model:
        plenty = gpu.buffer

        def scarce(size: int, label: str) -> Any:
            if label == "token counts":
                raise wgemma.OutOfMemory("there is no room.")
            return plenty(size, label)

        def plain() -> int:
            return len(list(model.generate(ids_of_length(9), max_tokens=40, temperature=0)))

        expected = plain()
        monkeypatch.setattr(gpu, "buffer", scarce)
        found = together([plain, lambda: list(model.generate(ids_of_length(9, seed=2), repeat_penalty=1.5))])
        assert found[0] == expected and isinstance(found[1], wgemma.OutOfMemory)


def test_a_small_arena_is_shared_by_putting_off_the_youngest(blob: Path, gpu: NativeDevice) -> None:
    prompts = [ids_of_length(100 + seed, seed) for seed in range(4)]
    with load(blob, gpu) as model:
        expected = [tokens(model, ids, max_tokens=60) for ids in prompts]
    with load(blob, gpu, context=256) as model:
        pages = backend_of(model).runner.paging.pages[False]
        pages.most = 4  # a sequence takes three in the end
        assert together([lambda ids=ids: tokens(model, ids, max_tokens=60) for ids in prompts]) == expected
        assert pages.count == 4


def test_a_reply_that_outgrows_the_arena_alone_ends_with_a_sentence(blob: Path, gpu: NativeDevice) -> None:
    with load(blob, gpu, context=1024) as model:
        pages = backend_of(model).runner.paging.pages[False]
        pages.most = pages.count = 4
        del pages._free[:-4], pages._holders[4:]
        pages._free[:] = [3, 2, 1, 0]
        reply = model.generate(ids_of_length(100), **endless(model))
        with pytest.raises(wgemma.OutOfMemory, match="256 tokens of the KV cache are in use"):
            list(reply)
        assert len(reply._arrived) > 100
        assert len(tokens(model, ids_of_length(9), max_tokens=3)) == 3


# -- a lost device

LIVE = 16


@pytest.mark.parametrize("moment", ["in between", "reading a prompt"])
def test_a_lost_device_is_replaced_and_all_go_on(blob: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    with load(blob, slots=LIVE) as model:
        prompts = [ids_of_length(30 + seed, seed) for seed in range(LIVE)]
        options = endless(model, max_tokens=90, temperature=1.0, seed=3)
        expected = [[piece.id for piece in model.generate(ids, **options)] for ids in prompts]
        replies = [model.generate(ids, **options) for ids in prompts]
        begun = [[next(reply).id] for reply in replies[:-1]]
        device = backend_of(model).device
        assert isinstance(device, NativeDevice)
        lose_at(
            monkeypatch, *((Batch, "turn") if moment == "in between" else (Runner, "chunk")), device._device.destroy
        )
        begun.append([next(replies[-1]).id])
        found = together([lambda reply=reply: [piece.id for piece in reply] for reply in replies])
        assert [first + rest for first, rest in zip(begun, found, strict=True)] == expected


def test_a_device_that_is_lost_again_and_again_ends_all(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(blob) as model:
        read_later = NativeDevice.read_later
        replies = [model.generate(ids_of_length(9, seed), **endless(model)) for seed in range(2)]
        for reply in replies:
            next(reply)

        def lost(*_: Any) -> Any:
            raise wgemma.DeviceLost("gone again")

        monkeypatch.setattr(NativeDevice, "read_later", lost)
        found = together([lambda reply=reply: list(reply) for reply in replies])
        assert [type(error) for error in found] == [wgemma.DeviceLost] * 2
        monkeypatch.setattr(NativeDevice, "read_later", read_later)
        assert len(tokens(model, ids_of_length(9), max_tokens=3)) == 3


# -- closing


def test_closing_ends_all_and_the_thread(blob: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    model = load(blob, gpu)
    replies = [model.generate(ids_of_length(9, seed), **endless(model)) for seed in range(3)]
    for reply in replies:
        next(reply)
    thread = backend_of(model)._owner._thread  # type: ignore[union-attr]
    model.close()
    assert gpu.allocated == before
    found = together([lambda reply=reply: list(reply) for reply in replies])
    assert [type(error) for error in found] == [wgemma.SessionError] * 3
    assert thread is not None
    thread.join(LONG)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["gpu", "floor", "compact"])
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_pages_may_hold_anything_before_they_are_written(
    blob: Path, request: pytest.FixtureRequest, device: str, kv: str
) -> None:
    """Pages come from others, whose numbers may have been NaN."""
    there = NativeDevice(compact=True) if device == "compact" else request.getfixturevalue(device)
    with load(blob, there, kv=kv, context=512) as model:
        prompts = [ids_of_length(length, length) for length in (5, 64, 100, 200)]
        expected = [tokens(model, ids, max_tokens=5) for ids in prompts]
        model.reset()
        for segments in backend_of(model).runner.paging.arena.segments.values():
            for segment in segments:
                for buffer in (segment.keys, segment.values):
                    there.write(buffer, 0, b"\xff" * buffer.size)
        assert [tokens(model, ids, max_tokens=5) for ids in prompts] == expected
        model.reset()
        assert together([lambda ids=ids: tokens(model, ids, max_tokens=5) for ids in prompts]) == expected
    if device == "compact":
        there.close()


# -- what one must not do to another


def test_a_reply_that_has_all_it_asked_for_leaves_no_row_behind(model: wgemma.Model) -> None:
    """Its last steps are still in flight; in a pass with others its row would go on, beyond its pages."""
    runner = backend_of(model).runner
    alone = batch.Batch(runner)
    alone.submit(Request(ids_of_length(60), 4, Sampling(temperature=0)))
    while not alone._flight or alone.seats.jobs[0].submitted < 4:
        run(alone.turn())
    assert alone.seats.jobs
    used, *_ = struct.unpack("<4I", run(runner.device.read(runner.slots.rows.buffer, 0, 16)))
    assert used == 0
    while alone.busy:
        run(alone.turn())


def test_a_cancel_that_raises_ends_its_own_reply(model: wgemma.Model) -> None:
    class Broken:
        def is_set(self) -> bool:
            raise BrokenPipeError("the manager died")

    ids = ids_of_length(20)
    expected = tokens(model, ids, max_tokens=40)
    calls = [lambda: tokens(model, ids, max_tokens=40), lambda: tokens(model, ids, max_tokens=40, cancel=Broken())]
    right, broken = together(calls)
    assert right == expected and isinstance(broken, BrokenPipeError)


def test_a_restored_chat_takes_the_pages_of_its_window_alone(model: wgemma.Model, tmp_path: Path) -> None:
    tokens(model, ids_of_length(900), max_tokens=2)
    model.save(tmp_path / "chat")
    model.reset()
    paging = backend_of(model).runner.paging
    before = paging.arena.pages[True]
    model.restore(tmp_path / "chat")
    assert paging.arena.pages[True] == before


def test_a_refused_prompt_does_not_replace_what_would_be_saved(model: wgemma.Model, tmp_path: Path) -> None:
    tokens(model, ids_of_length(50), max_tokens=3)
    kept = model._conversation._kept
    with pytest.raises(wgemma.ContextOverflow):
        tokens(model, ids_of_length(model.backend.context + 1), max_tokens=3)
    assert model._conversation._kept is kept
