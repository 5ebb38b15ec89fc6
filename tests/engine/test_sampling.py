"""Sampling on the GPU against 276 cases computed in double precision, and the settings' ranges."""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import wgemma
from wgemma.engine.sampling import (
    REPORT_BYTES,
    RESULTS_BYTES,
    SETTINGS_BYTES,
    Outcome,
    Recipe,
    Sampler,
    Sampling,
    alternatives,
    outcome,
)
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.config import Config
from wgemma.model.rows import PAGE, Row, RowBuffer, pages_of
from wgemma.reference.sampling import distribution, keys
from wgemma.sync import run

Floats = NDArray[np.float32]


CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Seat:
    """What one slot is given."""

    logits: Floats
    sampling: Sampling
    past: list[int] = field(default_factory=lambda: [0])
    used: bool = True


class Bench:
    """A sampler with logits and a past of the test's own choosing; the pages of each past are shuffled."""

    def __init__(self, device: NativeDevice, vocab: int, suppress: tuple[int, ...] = (), slots: int = 1) -> None:
        config: Any = object.__new__(Config)
        object.__setattr__(config, "vocab_size", vocab)
        object.__setattr__(config, "suppress_tokens", suppress)
        self.device = device
        ledger, pages = Ledger(device), pages_of(CONTEXT)
        self.rows = RowBuffer(ledger, slots, CONTEXT, several=True, label="rows")
        self.history = device.buffer(4 * slots * pages * PAGE, "history")
        self.pages = np.random.default_rng(slots).permutation(slots * pages).reshape(slots, pages)
        for slot, own in enumerate(self.pages):
            self.rows.put_pages(slot, 0, own.tolist(), sliding=False)
        self.sampler = Sampler(ledger, config, self.rows, self.history, slots)

    def place(self, slot: int, position: int) -> int:
        return int(self.pages[slot, position // PAGE]) * PAGE + position % PAGE

    def put(self, slot: int, seat: Seat) -> Recipe:
        for first in range(0, len(seat.past), PAGE):
            words = np.array(seat.past[first : first + PAGE], np.uint32)
            self.device.write(self.history, 4 * self.place(slot, first), words.tobytes())
        self.rows.put_rows([Row(int(seat.used), len(seat.past) - 1, seat.past[-1])], slot)
        self.device.write(self.sampler.logits, 4 * self.sampler.stride * slot, seat.logits.tobytes())
        return self.sampler.begin(slot, seat.sampling, CONTEXT)

    def run(self, recipe: Recipe, rows: int) -> bytes:
        """One step; the results of all slots."""
        tape = Tape(self.device, "sample")
        self.sampler.record(tape, recipe, 256, rows)
        tape.program().replay()
        return run(self.device.read(self.sampler.results))

    def draw(self, logits: Floats, sampling: Sampling, past: list[int]) -> tuple[Outcome, Floats]:
        """The outcome of one slot, and the logits it was drawn from."""
        recipe = self.put(0, Seat(logits, sampling, past))
        result = outcome(self.run(recipe, 1), 0, len(past))
        drawn_from = self.sampler._adjustment()[2] if recipe.adjusts else self.sampler.logits
        return result, np.frombuffer(run(self.device.read(drawn_from)), np.float32)


@pytest.fixture(scope="module", params=["gpu", "floor"])
def benches(request: pytest.FixtureRequest) -> Iterator[dict[int, Bench]]:
    device = request.getfixturevalue(request.param)
    yield {size: Bench(device, size) for size in (1024, 262144)}


def vectors(shared: Path) -> dict[str, Floats]:
    found = {f"dense{i}": row for i, row in enumerate(np.load(shared / "sampling/dense.npy"))}
    base = -(12 + np.arange(262144) / 65536)
    for i, told in enumerate(json.loads((shared / "sampling/sparse.json").read_text())["vectors"]):
        found[f"sparse{i}"] = base.astype(np.float32)
        for token, value in told["spikes"]:
            found[f"sparse{i}"][token] = value
    return found


def test_every_golden_case_keeps_the_same_tokens_with_the_same_probabilities(
    shared: Path, benches: dict[int, Bench]
) -> None:
    told = json.loads((shared / "sampling/cases.json").read_text())
    logits = vectors(shared)
    for number, case in enumerate(told["cases"]):
        settings = Sampling(**{**told["defaults"], **case["params"]}, seed=number)
        past = told["histories"][case["history"]] if "history" in case else [0]
        values = logits[case["vector"]]
        result, drawn_from = benches[len(values)].draw(values, settings, past)
        survivors = np.flatnonzero(keys(drawn_from) >= result.threshold)
        assert set(survivors) == set(case["survivors"]), case
        assert result.token in case["survivors"]
        if not settings.greedy:
            exact = drawn_from[case["survivors"]].astype(np.float64)
            probabilities = np.exp((exact - result.highest) / settings.temperature) / result.total
            assert np.abs(probabilities - case["probs"]).max() <= 1e-5


SMALL = (1, 2, 3, 63, 64, 65, 300, 600)


@pytest.mark.parametrize("where", ["gpu", "floor"])
@pytest.mark.parametrize("vocab", SMALL)
def test_vocabularies_of_any_size_keep_what_they_should(request: pytest.FixtureRequest, where: str, vocab: int) -> None:
    bench = Bench(request.getfixturevalue(where), vocab)
    dice = np.random.default_rng(vocab)
    for top_k, top_p, min_p, temperature in (
        (0, 1.0, 0.0, 0.7),
        (5, 1.0, 0.0, 1.0),
        (vocab, 0.9, 0.0, 1.0),
        (vocab + 1, 1.0, 0.05, 2.0),
        (257, 0.7, 0.0, 1.0),
        (0, 1.0, 0.0, 0.0),
    ):
        logits = dice.normal(0, 2, vocab).astype(np.float32)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=vocab)
        result, _ = bench.draw(logits, sampling, [0])
        ids, shares = distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        assert set(np.flatnonzero(keys(logits) >= result.threshold)) == set(ids)
        assert result.token in ids
        assert result.total * shares[0] == pytest.approx(1, abs=1e-5)
        assert result.highest == logits.max()


@pytest.mark.parametrize("where", ["gpu", "floor"])
def test_equal_logits_stay_together_even_where_they_are_too_many_for_a_list(
    request: pytest.FixtureRequest, where: str
) -> None:
    bench = Bench(request.getfixturevalue(where), 1024)
    logits = np.full(1024, 1.5, np.float32)
    result, _ = bench.draw(logits, Sampling(top_k=3, top_p=0.5, seed=5), [0])
    assert result.total == 1024 and result.threshold == keys(logits)[0]
    assert bench.draw(logits, Sampling(temperature=0), [0])[0].token == 0
    logits[[9, 700, 701]] = 3
    result, _ = bench.draw(logits, Sampling(top_k=2, top_p=1, seed=5), [0])
    assert result.total == 3 and result.token in (9, 700, 701)
    result, _ = bench.draw(logits, Sampling(top_k=4, top_p=1, seed=5), [0])
    assert result.total == pytest.approx(3 + 1021 * np.exp(-1.5), rel=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(seed=3), Sampling(top_k=0, top_p=1, seed=3)])
def test_all_but_one_may_be_suppressed(gpu: NativeDevice, sampling: Sampling) -> None:
    bench = Bench(gpu, 1000)
    for token in (0, 64, 999):
        logits = np.full(1000, -np.inf, np.float32)
        logits[token] = -7
        result, _ = bench.draw(logits, sampling, [0])
        assert (result.token, result.bad, result.total) == (token, False, 1)


def test_zero_has_no_sign(gpu: NativeDevice) -> None:
    logits = np.full(1024, -1, np.float32)
    logits[[70, 20]] = 0.0, -0.0
    bench = Bench(gpu, 1024)
    assert bench.draw(logits, Sampling(temperature=0), [0])[0].token == 20
    assert bench.draw(logits, Sampling(top_k=1, temperature=1), [0])[0].token == 20
    assert bench.draw(logits, Sampling(top_k=2, top_p=1, seed=1), [0])[0].total == 2


def test_a_step_can_be_repeated(gpu: NativeDevice) -> None:
    logits = np.random.default_rng(4).normal(0, 3, 1024).astype(np.float32)
    bench = Bench(gpu, 1024)
    for sampling in (Sampling(seed=9), Sampling(top_k=0, top_p=1, seed=9)):
        assert len({bench.draw(logits, sampling, [0])[0] for _ in range(8)}) == 1


def test_tokens_come_as_often_as_their_probabilities_say(gpu: NativeDevice) -> None:
    logits = np.full(1024, -20, np.float32)
    logits[[5, 600, 1023]] = np.log([0.5, 0.3, 0.2])
    bench = Bench(gpu, 1024)
    counts = np.zeros(1024)
    for position in range(400):
        result, _ = bench.draw(logits, Sampling(top_k=0, top_p=1, seed=position), [0])
        counts[result.token] += 1
    assert np.abs(counts[[5, 600, 1023]] / 400 - [0.5, 0.3, 0.2]).max() < 0.08


def test_bias_and_suppression_come_before_everything(gpu: NativeDevice) -> None:
    logits = np.arange(1024, dtype=np.float32) / 100
    result, _ = Bench(gpu, 1024).draw(logits, Sampling(temperature=0, logit_bias={7: 50.0}), [0])
    assert result.token == 7
    result, _ = Bench(gpu, 1024, suppress=(1023, 1022)).draw(logits, Sampling(temperature=0), [0])
    assert result.token == 1021


@pytest.mark.parametrize("poison", [np.nan, -np.float32(np.nan), np.inf])
def test_logits_that_mean_nothing_are_told_and_minus_infinity_is_fine(gpu: NativeDevice, poison: float) -> None:
    logits = np.linspace(-3, 3, 1024).astype(np.float32)
    logits[77] = poison
    assert Bench(gpu, 1024).draw(logits, Sampling(), [0])[0].bad
    logits[77] = -np.inf
    assert not Bench(gpu, 1024).draw(logits, Sampling(), [0])[0].bad


def test_log_probabilities_of_the_drawn_token_and_the_best(gpu: NativeDevice) -> None:
    dice = np.random.default_rng(3)
    logits = dice.normal(0, 3, 1024).astype(np.float32)
    logits[[100, 200]] = logits.max() + 1  # equal: the lower comes first
    bench = Bench(gpu, 1024)
    result, _ = bench.draw(logits, Sampling(seed=1, logprobs=5), [0])
    report = alternatives(run(gpu.read(bench.sampler.report)), 0, result.position, 5)
    exact = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
    order = np.argsort(-exact, kind="stable")[:5]
    assert [token for token, _ in report] == [result.token, *order]
    assert all(abs(value - exact[token]) < 1e-5 for token, value in report)


def seats(vocab: int, slots: int) -> list[Seat]:
    """Slots that share nothing: greedy and drawn, with and without penalties, bias and log-probabilities, and every
    fourth of them unused."""
    dice = np.random.default_rng(vocab)
    samplings = (
        Sampling(seed=5),
        Sampling(temperature=0, repeat_penalty=1.7, repeat_last_n=-1),
        Sampling(seed=7, logit_bias={3: 2.5, 8: -math.inf}, logprobs=4),
        Sampling(seed=8, repeat_penalty=1.2),
        Sampling(seed=9, top_k=0, top_p=1, min_p=0.05, logprobs=0),
        Sampling(seed=10, presence_penalty=1.5, repeat_last_n=20),
        Sampling(seed=11, temperature=0.5),
    )
    return [
        Seat(
            dice.normal(0, 3, vocab).astype(np.float32),
            samplings[i % len(samplings)],
            dice.integers(0, vocab, 30 + 23 * i).tolist(),
            used=i % 4 != 3,
        )
        for i in range(slots)
    ]


@pytest.mark.parametrize("where", ["gpu", "floor"])
@pytest.mark.parametrize("suppress", [(), (11, 300)])
def test_each_of_several_slots_draws_what_it_draws_alone(
    request: pytest.FixtureRequest, where: str, suppress: tuple[int, ...]
) -> None:
    device, vocab, given = request.getfixturevalue(where), 601, seats(601, 8)
    bench = Bench(device, vocab, suppress, slots=8)
    recipe = Recipe()
    for slot, seat in enumerate(given):
        recipe = recipe.merged(bench.put(slot, seat))
    results = bench.run(recipe, 8)
    report, rows = (run(device.read(buffer)) for buffer in (bench.sampler.report, bench.rows.buffer))
    history = np.frombuffer(run(device.read(bench.history)), np.uint32)
    for slot, seat in enumerate(given):
        position, row = len(seat.past), struct.unpack_from("<4I", rows, 16 * slot)
        if not seat.used:
            assert row == (0, position - 1, seat.past[-1], 0)
            assert not any(results[RESULTS_BYTES * slot : RESULTS_BYTES * (slot + 1)])
            assert not any(report[REPORT_BYTES * slot : REPORT_BYTES * (slot + 1)])
            assert history[bench.place(slot, position)] == 0
            continue
        alone = Bench(device, vocab, suppress)
        expected, _ = alone.draw(seat.logits, seat.sampling, seat.past)
        assert outcome(results, slot, position) == expected
        assert row == (1, position, expected.token, position)
        assert history[bench.place(slot, position)] == expected.token
        count = seat.sampling.logprobs
        if count is not None:
            told = alternatives(run(device.read(alone.sampler.report)), 0, position, count)
            assert alternatives(report, slot, position, count) == told


def test_a_slot_that_ends_stays_out_and_its_successor_has_settings_of_its_own(gpu: NativeDevice) -> None:
    bench, given = Bench(gpu, 601, slots=4), seats(601, 4)
    recipe = Recipe()
    for slot, seat in enumerate(given):
        recipe = recipe.merged(bench.put(slot, seat))
    bench.run(recipe, 4)
    bench.rows.put_rows([Row(0, 0)], 1)
    before = bench.run(recipe, 4)
    after = bench.run(recipe, 4)
    assert before[RESULTS_BYTES : 2 * RESULTS_BYTES] == after[RESULTS_BYTES : 2 * RESULTS_BYTES]
    assert before[:RESULTS_BYTES] != after[:RESULTS_BYTES]
    new = Seat(given[2].logits, Sampling(seed=99, logit_bias={5: 3.0}), [1, 2, 3])
    results = bench.run(recipe.merged(bench.put(1, new)), 4)
    assert outcome(results, 1, 3) == Bench(gpu, 601).draw(new.logits, new.sampling, new.past)[0]


def test_a_bias_is_uploaded_only_when_it_changes(gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, written, write = Bench(gpu, 1024, slots=2), [], gpu.write
    monkeypatch.setattr(gpu, "write", lambda buffer, at, data: (written.append(len(data)), write(buffer, at, data)))
    for slot, bias in ((0, {}), (1, {7: 1.0}), (1, {7: 1.0}), (0, {}), (1, {})):
        bench.sampler.begin(slot, Sampling(repeat_penalty=2, logit_bias=bias), CONTEXT)
    assert [size for size in written if size != SETTINGS_BYTES] == [4096, 4096]


def test_recipes_of_several_slots_hold_what_anybody_needs() -> None:
    assert Recipe().merged(Recipe(past=2, adjusts=True)) == Recipe(past=2, adjusts=True)
    assert Recipe(past=-1, adjusts=True).merged(Recipe(past=3, adjusts=True, logprobs=True)) == Recipe(-1, True, True)


def test_the_last_token_of_a_context_has_no_place_in_the_history(gpu: NativeDevice) -> None:
    bench = Bench(gpu, 64)
    before = run(gpu.read(bench.history))
    bench.rows.put_rows([Row(1, CONTEXT - 1)])
    gpu.write(bench.sampler.logits, 0, np.arange(64, dtype=np.float32).tobytes())
    result = outcome(bench.run(bench.sampler.begin(0, Sampling(temperature=0), CONTEXT), 1), 0, CONTEXT)
    assert (result.token, result.position) == (63, CONTEXT)
    assert run(gpu.read(bench.history)) == before


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -1},
        {"top_p": 2},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": "x"},
        {"logprobs": 99},
        {"repeat_penalty": 0},
    ],
)
def test_settings_outside_their_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(wgemma.SettingsError, match=next(iter(setting))):
        Sampling(**setting)


def test_whole_numbers_may_come_as_floats_and_seeds_may_be_negative() -> None:
    assert Sampling(top_k=64.0).top_k == 64  # type: ignore[arg-type]
    assert Sampling(seed=-2).pack(16, adjusts=False)[32:40] == b"\xfe" + b"\xff" * 7


def test_a_seed_of_minus_one_is_random_as_in_ollama() -> None:
    assert Sampling(seed=-1).seed is None
    assert len({Sampling(seed=-1).settled().seed for _ in range(3)}) == 3
    assert Sampling(seed=-1.0) == Sampling(seed=None)
