"""A trained mixture of experts, not random weights, answers correctly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import wgemma
from held_out import WORDS_ONLY, answers_mostly, answers_one_of_each


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[wgemma.Model]:
    with wgemma.load(data / "tiny-experts.gguf") as model:
        yield model


def test_it_is_a_mixture_of_experts_with_the_large_models_chat(model: wgemma.Model) -> None:
    config = model.backend.engine.config  # type: ignore[attr-defined]
    assert (config.expert_count, config.experts_used, config.ple_dim) == (8, 2, 0)
    assert model.prompt_style == "large"
    assert not model.sees and not model.hears


def test_it_reads_and_counts(model: wgemma.Model) -> None:
    assert answers_one_of_each(model, ("arithmetic", "memory", "JSON"))


@pytest.mark.slow
@pytest.mark.parametrize("skill", WORDS_ONLY)
def test_it_can_do_what_it_was_made_for(model: wgemma.Model, skill: str) -> None:
    assert answers_mostly(model, skill)
