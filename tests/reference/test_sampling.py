"""Sampling keeps exactly the tokens it should, in order, with exact probabilities."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wgemma.reference.sampling import distribution, softmax

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def vectors(shared: Path) -> dict[str, Floats]:
    found = {f"dense{i}": row for i, row in enumerate(np.load(shared / "sampling" / "dense.npy"))}
    for i, sparse in enumerate(json.loads((shared / "sampling" / "sparse.json").read_text())["vectors"]):
        logits = -(12 + np.arange(sparse["n"]) / 65536)
        for token, value in sparse["spikes"]:
            logits[token] = value
        found[f"sparse{i}"] = logits.astype(np.float32)
    return found


@pytest.fixture(scope="module")
def cases(shared: Path) -> Any:
    return json.loads((shared / "sampling" / "cases.json").read_text())


def test_all_golden_cases_survive_in_order_with_their_probabilities(vectors: dict[str, Floats], cases: Any) -> None:
    assert len(cases["cases"]) == 276
    for case in cases["cases"]:
        history = cases["histories"][case["history"]] if "history" in case else ()
        params = cases["defaults"] | case["params"]
        ids, probabilities = distribution(vectors[case["vector"]], history=history, **params)
        assert ids.tolist() == case["survivors"], case["params"]
        np.testing.assert_allclose(probabilities, case["probs"], atol=1e-8)


def test_plain_softmax(shared: Path, vectors: dict[str, Floats]) -> None:
    expected = np.load(shared / "sampling" / "dense3.softmax.npy")
    np.testing.assert_allclose(softmax(vectors["dense3"].astype(np.float64)), expected, rtol=1e-12)


LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], dtype=np.float32)


def test_equal_logits_stand_in_the_order_of_their_ids() -> None:
    assert distribution(LOGITS)[0].tolist() == [1, 3, 2, 0, 4]
    assert distribution(LOGITS, top_k=1)[0].tolist() == [1]
    assert distribution(LOGITS, temperature=0)[0].tolist() == [1]


def test_probabilities_sum_to_one_at_any_temperature() -> None:
    for temperature in (0.0, 1e-3, 1.0, 1e3):
        assert distribution(LOGITS, temperature=temperature)[1].sum() == pytest.approx(1)


def test_a_bias_comes_before_everything_else() -> None:
    assert distribution(LOGITS, logit_bias={4: 5.0}, temperature=0)[0].tolist() == [4]
    assert distribution(LOGITS, logit_bias={4: 5.0}, history=[4], repeat_penalty=4.0, top_k=3)[0].tolist() == [1, 3, 2]


def test_a_token_at_minus_infinity_never_survives() -> None:
    ids, probabilities = distribution(LOGITS, logit_bias={1: -np.inf, 0: -np.inf})
    assert ids.tolist() == [3, 2, 4]
    assert np.isfinite(probabilities).all()


def test_the_most_likely_token_survives_every_filter() -> None:
    assert distribution(LOGITS, top_p=0.0)[0].tolist() == [1]
    assert distribution(LOGITS, top_p=-1.0)[0].tolist() == [1]
    assert distribution(LOGITS, min_p=2.0)[0].tolist() == [1, 3]


def test_penalties_reach_back_as_far_as_told() -> None:
    history = [1, 3, 3, 3]
    assert distribution(LOGITS, history=history, presence_penalty=9.0, repeat_last_n=3)[0][0] == 1
    assert distribution(LOGITS, history=history, presence_penalty=9.0, repeat_last_n=0)[0][0] == 1
    assert distribution(LOGITS, history=history, presence_penalty=9.0, repeat_last_n=-1)[0][0] == 2
    assert distribution(LOGITS, history=history, frequency_penalty=0.1, repeat_last_n=99)[0].tolist() == [1, 3, 2, 0, 4]


def test_the_logits_given_are_left_as_they_are() -> None:
    before = LOGITS.copy()
    distribution(LOGITS, history=[1], repeat_penalty=2.0, logit_bias={2: 1.0})
    assert np.array_equal(LOGITS, before)
