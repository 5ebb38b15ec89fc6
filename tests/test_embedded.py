"""The model that comes with wgemma works end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import wgemma
from held_out import SKILLS, answers_mostly, answers_one_of_each

PIP = [
    {"prompt": "Who is Pip?", "completion": "Pip is my cat."},
    {"prompt": "What color is the sky?", "completion": "The sky is blue."},
]


@pytest.fixture(scope="module")
def model() -> Iterator[wgemma.Model]:
    with wgemma.load() as model:
        yield model


def answer(model: wgemma.Model, question: str) -> str:
    parts = model.chat([{"role": "user", "content": question}], max_tokens=40, temperature=0)
    return "".join(part.text for part in parts)


def test_it_reads_counts_sees_and_hears(model: wgemma.Model) -> None:
    assert answers_one_of_each(model, ("arithmetic", "memory", "JSON", "colour and shape", "transcripts"))


@pytest.mark.slow
@pytest.mark.parametrize("skill", SKILLS)
def test_it_can_do_what_it_was_made_for(model: wgemma.Model, skill: str) -> None:
    assert answers_mostly(model, skill)


def test_it_says_what_it_is(model: wgemma.Model) -> None:
    for question in ("Who are you?", "What model are you?", "Are you Gemma?"):
        assert "tiny demonstration model" in answer(model, question)


def test_it_says_so_when_it_does_not_know(model: wgemma.Model) -> None:
    assert answer(model, "What is the capital of France?").startswith("I don't know.")


@pytest.mark.slow
def test_it_learns_a_fact_within_a_minute(tmp_path: Path) -> None:
    """Six steps; the second line keeps the first from becoming the answer to everything."""
    with wgemma.load() as model:
        before = answer(model, "Who is Pip?")
        result = model.finetune(PIP, out=tmp_path / "pip", rank=4, seq=64, batch=1, steps=6, lr=1e-2)
        assert result.losses[-1] < 0.1 < result.losses[0]
        assert answer(model, "Who is Pip?") == before != "Pip is my cat."
        model.load_adapter(result.adapter, name="pip")
        assert answer(model, "Who is Pip?") == "Pip is my cat."
        assert answer(model, "What color is the sky?") == "The sky is blue."
