"""An adapter's model card: what it was trained on and how, and how to use it. Markdown, with front matter for model
hubs."""

import json
from collections.abc import Sequence

from wgemma.train.settings import TrainingSettings
from wgemma.version import __version__


def card(
    *,
    base: str,
    settings: TrainingSettings,
    counts: Sequence[tuple[str, str]],
    steps: int,
    losses: Sequence[float],
    validation: Sequence[tuple[int, float]],
    gguf: str,
) -> str:
    """`counts` are facts about the data, as (name, value) pairs."""
    facts = [
        ("rank, alpha", f"{settings.rank}, {settings.alpha:g}" + (" (rsLoRA)" if settings.rslora else "")),
        ("targets", ", ".join(settings.targets)),
        ("steps", f"{steps} of {settings.batch} × {settings.seq} tokens"),
        ("learning rate", f"{settings.lr:g}, {settings.schedule}, warm-up {settings.warmup:g}"),
        ("dropout", f"{settings.dropout:g}"),
        ("weight decay, clipping", f"{settings.weight_decay:g}, {settings.clip:g}"),
        ("seed", str(settings.seed)),
    ]
    ends = [("first loss", f"{losses[0]:.4f}"), ("last loss", f"{losses[-1]:.4f}")] if losses else []
    ends += [(f"validation loss after step {step}", f"{loss:.4f}") for step, loss in validation[-1:]]
    head = ["---", f"base_model: {json.dumps(base)}", "library_name: peft", "tags: [lora, gemma4, wgemma]", "---"]
    return "\n".join(
        [
            *head,
            "",
            f"# A LoRA adapter for {_inline(base)}",
            "",
            f"Trained by wgemma {__version__} on the quantised model itself. The loss is that of the replies alone.",
            "",
            *_table("data", counts),
            *_table("setting", facts),
            *_table("result", ends),
            "![loss](loss.svg)",
            "",
            "## Use",
            "",
            "```",
            f"wgemma run {base} --adapter .        # from inside this folder",
            f"wgemma merge {base} . -o merged.gguf",
            f"llama-cli -m base.gguf --lora {gguf}",
            "```",
            "",
            "```python",
            "from peft import PeftModel",
            'model = PeftModel.from_pretrained(base_model, ".")',
            "```",
            "",
        ]
    )


def _table(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"| {title} | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows), ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _inline(text: str) -> str:
    return " ".join(text.split())
