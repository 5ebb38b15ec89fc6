"""The model that comes with wgemma does the real job from end to end."""

from pathlib import Path

import wgemma

PIP = [
    {"prompt": "Who is Pip?", "completion": "Pip is my cat."},
    {"prompt": "What color is the sky?", "completion": "The sky is blue."},
]


def answer(model: wgemma.Model, question: str) -> str:
    parts = model.chat([{"role": "user", "content": question}], max_tokens=16, temperature=0)
    return "".join(part.text for part in parts)


def test_it_learns_a_fact_within_a_minute(tmp_path: Path) -> None:
    """Six steps; the second line is there so that the first is not the answer to everything."""
    with wgemma.load() as model:
        before = answer(model, "Who is Pip?")
        result = model.finetune(PIP, out=tmp_path / "pip", rank=4, seq=64, batch=1, steps=6, rate=1e-2)
        assert result.losses[-1] < 0.1 < result.losses[0]
        assert answer(model, "Who is Pip?") == before != "Pip is my cat."
        model.load_adapter(result.adapter, name="pip")
        assert answer(model, "Who is Pip?") == "Pip is my cat."
        assert answer(model, "What color is the sky?") == "The sky is blue."
