"""Sequences with images and sounds in them: what is computed together, what again, and what not."""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from one_sequence import OneSequence, engine_on
from random_towers import RandomTowers
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.senses import Senses
from wgemma.errors import SettingsError
from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.model.passes import PAD, SOFT
from wgemma.model.rows import PAGE
from wgemma.reference.decoder import Reference
from wgemma.sync import iterate, run
from wgemma.text.parts import content_of

Floats = NDArray[np.float32]
GREEDY = Sampling(temperature=0)


class Setting:
    """A session whose pictures are random rows, and what NumPy makes of the same sequence."""

    def __init__(self, device: NativeDevice, path: Path, options: Options) -> None:
        self.gguf = Gguf.open(path)
        self.engine = engine_on(device, self.gguf, options)
        self.towers = RandomTowers(device, self.engine.config.width)
        self.senses: Senses[Buffer] = Senses(self.towers, self.engine.config.width)
        self.engine.senses = self.senses
        self.session = OneSequence(Runner(self.engine, self.senses))

    def image(self, tokens: int) -> list[int]:
        part = {"type": "image", "image": Pixels(1, 1, b"abcd"), "budget": tokens}
        (medium,) = run(self.senses.take(content_of(part)))
        return list(medium.numbers)

    def logits(self, ids: list[int], chunks: tuple[int, ...] = ()) -> Floats:
        parts = list(iterate(self.session.logits(ids, chunks)))
        return np.frombuffer(b"".join(parts), np.float32).reshape(len(ids), -1)

    def expected(self, ids: list[int], *images: tuple[int, int]) -> Floats:
        """`images` are (start, count)."""
        rows = {start: self.towers.values(count) for start, count in images}
        spans = [(start, start + count) for start, count in images]
        return Reference(self.gguf).logits(ids, embeddings=rows, spans=spans)

    def greedy(self, ids: list[int], count: int = 4, marks: tuple[int, ...] = ()) -> list[int]:
        return [token.id for token in iterate(self.session.generate(ids, GREEDY, count, marks))]


@pytest.fixture
def both_ways(shared: Path, gpu: NativeDevice) -> Iterator[Setting]:
    """A model whose image rows see each other; a few hundred tokens slide its window many times."""
    setting = Setting(gpu, shared / "models/tiny-31b-F16.gguf", Options(kv="f32", images=True))
    yield setting
    setting.session.free()
    setting.senses.free()
    setting.engine.free()


@pytest.fixture
def causal(shared: Path, gpu: NativeDevice) -> Iterator[Setting]:
    setting = Setting(gpu, shared / "models/tiny-e2b-F16.gguf", Options(kv="f32", images=True))
    yield setting
    setting.session.free()
    setting.senses.free()
    setting.engine.free()


def relative_error(ours: Floats, expected: Floats) -> float:
    return float(np.max(np.linalg.norm(ours - expected, axis=-1) / np.linalg.norm(expected, axis=-1)))


@pytest.mark.parametrize("tokens", [1, 3, 40, pytest.param(600, marks=pytest.mark.slow)])
def test_an_image_of_any_size_is_computed_whole(both_ways: Setting, tokens: int) -> None:
    ids = [2, 300, 301, 302, *both_ways.image(tokens), 400, 401]
    expected = both_ways.expected(ids, (4, tokens))
    assert relative_error(both_ways.logits(ids), expected) < 5e-4
    assert relative_error(both_ways.logits(ids, (2, 5, 5, 5)), expected) < 5e-4


@pytest.mark.slow
def test_an_image_larger_than_a_chunk_makes_room_once_and_short_prompts_go_on(both_ways: Setting) -> None:
    small = [2, *range(300, 340)]
    expected = both_ways.logits(small)
    assert both_ways.engine.decoder.scratch.rows == 512
    ids = [2, 300, *both_ways.image(520), 400]
    both_ways.greedy(ids, 2)
    assert both_ways.engine.decoder.scratch.rows == 640
    assert relative_error(both_ways.logits(small), expected) < 1e-5


def test_logits_of_more_rows_than_there_is_room_for_come_in_parts(
    both_ways: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.engine.runner.MANY_LOGITS", 40 * 4 * 1024)
    ids = [2, 300, *both_ways.image(70), 400, 401]
    assert relative_error(both_ways.logits(ids), both_ways.expected(ids, (2, 70))) < 5e-4


def test_half_an_image_is_never_kept(both_ways: Setting) -> None:
    image = both_ways.image(20)
    whole = [2, *range(300, 310), *image, 400, 401, 402]
    cut = [2, *range(300, 310), *image[:12], 400, 401, 402]  # its rows saw twenty others before, now eight fewer
    expected = both_ways.greedy(cut)
    for before, after, reused in ((whole, cut, 11), (cut, whole, 11), (whole, whole, 33), (cut, cut, 25)):
        both_ways.session.reset()
        both_ways.greedy(before)
        found = both_ways.greedy(after)
        assert both_ways.session.reused == reused
        assert after is not cut or found == expected


def test_a_mark_inside_an_image_moves_before_it(both_ways: Setting) -> None:
    ids = [2, *range(300, 310), *both_ways.image(50), 400, 401]
    both_ways.greedy([*ids, *range(500, 600)], marks=(20,))
    both_ways.greedy([*ids[:11], 700, 701])
    assert both_ways.session.reused == 11


def test_a_chat_goes_on_after_its_image_without_seeing_it_again(both_ways: Setting) -> None:
    ids = [2, 300, *both_ways.image(70), 400, 401]
    reply = both_ways.greedy(ids)
    both_ways.greedy([*ids, *reply, 500, 501])
    assert both_ways.session.reused >= len(ids) + len(reply) - 1
    assert both_ways.towers.encoded == 1


def test_a_causal_model_keeps_every_row_it_can(causal: Setting) -> None:
    image = causal.image(50)
    causal.greedy([2, 300, *image, 400, 401])
    ids = [2, 300, *image[:30], 400, 401]
    found = causal.greedy(ids)
    assert causal.session.reused == 32
    causal.session.reset()
    assert causal.greedy(ids) == found


def test_a_causal_model_cuts_an_image_wherever_it_likes(causal: Setting) -> None:
    ids = [2, 300, *causal.image(200), 400]
    assert relative_error(causal.logits(ids, (7, 100, 3)), causal.expected(ids, (2, 200))) < 5e-4
    assert causal.engine.decoder.scratch.rows == 512


def test_penalties_know_tokens_only(causal: Setting, gpu: NativeDevice) -> None:
    ids = [2, 300, *causal.image(5), 400]
    causal.session.prefill([*ids, 0])
    paging = causal.session.paging
    page = paging.prefixes.find((), ids, len(ids)).copied
    assert page is not None
    data = run(gpu.read(paging.arena.history, 4 * PAGE * page, 4 * len(ids)))
    assert struct.unpack(f"<{len(ids)}I", data) == (2, 300, *[PAD] * 5, 400)
    penalised = Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=-1)
    assert [token.id for token in iterate(causal.session.generate(ids, penalised, 3))]


def test_two_callers_share_an_image(both_ways: Setting) -> None:
    ids = [2, 300, *both_ways.image(40), 400, 401]
    expected = both_ways.greedy(ids, 6)
    twin = OneSequence(both_ways.session.runner)
    assert [token.id for token in iterate(twin.generate([*ids, *expected[:2]], GREEDY, 4))] == expected[2:]
    assert twin.reused >= len(ids) and both_ways.towers.encoded == 1


def test_numbers_nobody_gave_out_are_refused(causal: Setting) -> None:
    with pytest.raises(SettingsError, match=f"{SOFT} is not a token id"):
        causal.greedy([2, SOFT, 3])
    image = causal.image(5)
    with pytest.raises(SettingsError, match="is not a token id"):
        causal.greedy([2, *image, image[-1] + 1, 3])
    with pytest.raises(SettingsError, match="add the token that closes it"):
        causal.greedy([2, *image])
