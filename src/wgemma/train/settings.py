"""Training settings, checked before anything is loaded."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import PurePath
from typing import Any

from wgemma.errors import SettingsError
from wgemma.files.adapter_names import MODULES

# The matrices an adapter may change: a short name, and the tensor's name in a block ("attn_q").
_SHORT = ("q", "k", "v", "o", "gate", "up", "down", "ple_gate", "ple_projection")
TARGETS = dict(zip(_SHORT, MODULES.values(), strict=True))
USUAL = _SHORT[:7]
SELDOM = 250  # steps
SCHEDULES = ("cosine", "linear", "constant")
# Settings that may differ on resume: those that do not affect the result, those to lower after a run diverged, and the
# length of the run. The schedule follows the new length from the next step on.
FREE = ("save_every", "checkpointing", "lr", "clip", "steps", "epochs")

_MANY = 10**9  # far above any real one, and every float holds it
_WHOLE = {  # minimum and maximum
    "rank": (1, 1024),
    "epochs": (1, 10_000),  # all are laid out beforehand, to count the steps
    "steps": (1, _MANY),
    "batch": (1, _MANY),
    "seq": (2, _MANY),
    "seed": (0, 2**32 - 1),
    "save_every": (1, _MANY),
}
_OPTIONAL = ("steps", "save_every")
_LARGE = 1e9  # far above any real one, and nothing derived from it overflows float32
_NUMBERS = {  # all from 0 to below these
    "alpha": _LARGE,
    "dropout": 1.0,
    "lr": _LARGE,
    "warmup": _LARGE,
    "weight_decay": _LARGE,
    "clip": _LARGE,
    "eps": _LARGE,
}
_POSITIVE = ("alpha", "lr", "eps")


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """An adapter adds alpha / rank · B (A x) to each target's W x; only A and B are learnt."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = USUAL  # names of TARGETS or PEFT's; "all" is all of them
    rslora: bool = False  # alpha / √rank instead
    dropout: float = 0.0  # share of each target's inputs that A does not see
    lr: float = 2e-4
    schedule: str = "cosine"
    warmup: float = 0.05  # a share of the steps if below 1, otherwise steps
    epochs: int = 3
    steps: int | None = None  # instead of epochs
    batch: int = 8  # packs per step
    seq: int = 1024  # tokens per pack, and so the most per example
    packing: bool = True  # several examples in a pack
    seed: int = 0
    # Off by default: B starts at zero and the rank already bounds what can be learnt, and shrinking A and B separately
    # is not the same as shrinking their product.
    weight_decay: float = 0.0
    clip: float = 1.0  # the largest norm of all gradients together; 0: no clipping
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    validation: float | str = 0.0  # a share of the examples, or a separate file
    save_every: int | None = None  # steps between checkpoints and validations; None: see `every`
    checkpointing: bool = True  # keep only the layers' inputs and recompute the rest in the backward pass

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", _targets(self.targets))
        if isinstance(self.validation, PurePath):
            object.__setattr__(self, "validation", str(self.validation))
        object.__setattr__(self, "betas", tuple(self.betas) if isinstance(self.betas, list) else self.betas)
        for name, (least, most) in _WHOLE.items():
            _check_whole(name, getattr(self, name), least, most)
        for name, below in _NUMBERS.items():
            _check_number(name, getattr(self, name), below)
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise SettingsError(
                f"schedule is {_told(self.schedule)}; it must be {', '.join(SCHEDULES[:-1])} or constant."
            )
        for name in ("packing", "rslora", "checkpointing"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {_told(getattr(self, name))}; it must be True or False.")
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise SettingsError(f"betas is {_told(self.betas)}; it must be two numbers.")
        for beta in self.betas:
            _check_number("betas", beta, 1.0)
        if not isinstance(self.validation, str):
            _check_number("validation", self.validation, 1.0)
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise SettingsError(f"warmup is {self.warmup}; it must be a share below 1, or a whole number of steps.")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "TrainingSettings":
        """Settings from a dict; raises `SettingsError` for an unknown name."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise SettingsError(f"there is no setting {_told(unknown[0])}. Known: {', '.join(sorted(known))}.")
        return cls(**given)

    @property
    def scale(self) -> float:
        """The factor of B (A x)."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def every(self, steps: int) -> int:
        """Steps between checkpoints: ten checkpoints per run, but at least one every SELDOM steps."""
        return self.save_every or min(-(-steps // 10), SELDOM)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, out of `steps`: linear warm-up, then the schedule down to 0."""
        warm = int(self.warmup) if self.warmup >= 1 else round(self.warmup * steps)
        warm = min(warm, steps)
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(steps - warm, 1)
        match self.schedule:
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
            case "linear":
                return self.lr * max(1 - done, 0.0)
            case _:
                return self.lr

    def record(self) -> dict[str, Any]:
        """The settings for JSON; `of` reads them back."""
        return {**asdict(self), "targets": list(self.targets), "betas": list(self.betas)}

    def differences(self, other: "TrainingSettings") -> list[str]:
        """The differences that prevent resuming with other settings, such as "rank 16, now 8"."""
        names = [field.name for field in fields(self) if field.name not in FREE]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [f"{name} {_shown(mine)}, now {_shown(theirs)}" for name, mine, theirs in pairs if mine != theirs]


def _told(value: Any) -> str:
    """A value that was refused, short enough for a sentence."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, or another's `__repr__`
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _targets(given: Any) -> tuple[str, ...]:
    """Short names in the order of TARGETS, without duplicates."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"targets is {_told(given)}; it must be names such as q,k,v,o,gate,up,down, or all.")
    wanted = {name.strip() for name in names}
    if "all" in wanted:
        return tuple(TARGETS)
    peft = {module.rpartition(".")[2]: tensor for module, tensor in MODULES.items()}
    known = {name: short for short, tensor in TARGETS.items() for name in (short, tensor)}
    known |= {name: known[tensor] for name, tensor in peft.items()}
    unknown = sorted(wanted - set(known))
    if unknown or not wanted:
        told = f"has {_told(unknown[0])}" if unknown else "is empty"
        raise SettingsError(f"targets {told}; known are {', '.join(TARGETS)}, and all.")
    short = {known[name] for name in wanted}
    return tuple(name for name in TARGETS if name in short)


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if type(value) is not int or not least <= value <= most:
        raise SettingsError(f"{name} is {_told(value)}; it must be a whole number from {least} to {most}.")


def _check_number(name: str, value: Any, below: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < below or (value == 0 and name in _POSITIVE):  # NaN is not below anything
        least = "above 0" if name in _POSITIVE else "from 0"
        raise SettingsError(f"{name} is {_told(value)}; it must be a number {least} to below {below:g}.")
