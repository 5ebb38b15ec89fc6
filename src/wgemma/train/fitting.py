"""How many rows a pass of training takes, so that it fits; and what to say when nothing does."""

from dataclasses import replace

from wgemma.engine.engine import Engine
from wgemma.errors import OutOfMemory, TrainingError
from wgemma.train.batches import bucket
from wgemma.train.learner import Learner
from wgemma.train.ledger import Ledger
from wgemma.train.settings import Settings

MOST_ROWS = 2048  # of a pass, unless one example has more


async def open_learner(engine: Engine, settings: Settings) -> Learner:
    """A learner whose passes take as many rows as there is room for, or the reason why there is none."""
    refused: OutOfMemory | None = None
    for rows in capacities(engine, settings):
        try:
            return await Learner.begin(engine, settings, rows)
        except OutOfMemory as error:
            refused = error
    needed = estimate(engine, settings, bucket(settings.seq)).nbytes
    hint = _what_would_fit(engine, settings, needed)
    told = f" ({refused})" if refused else ""
    raise TrainingError(f"training takes {needed / 1e9:.1f} GB beside the model, more than there is{told}. {hint}")


def capacities(engine: Engine, settings: Settings) -> list[int]:
    """Rows of a pass to try, the most first: no more than a step has or bindings allow, no fewer than a pack has."""
    least = bucket(settings.seq)
    most = max(least, min(bucket(settings.batch * settings.seq), MOST_ROWS))
    sizes = sorted({bucket(rows) for rows in (most, most // 2, most // 4, least) if bucket(rows) >= least})
    return [rows for rows in reversed(sizes) if fits(engine, settings, rows)]


def fits(engine: Engine, settings: Settings, rows: int) -> bool:
    """Whether bindings span what a pass of so many rows has, and memory its sum where it is limited."""
    needed, limits = estimate(engine, settings, rows), engine.device.limits
    room = engine.options.memory
    within = room is None or engine.nbytes + needed.nbytes <= room
    return needed.largest <= min(limits.binding, limits.buffer) and within


def estimate(engine: Engine, settings: Settings, rows: int) -> Ledger:
    """What training would allocate with passes of so many rows."""
    ledger = Ledger()
    Learner(engine, settings, rows, ledger)
    return ledger


def _what_would_fit(engine: Engine, settings: Settings, needed: int) -> str:
    if not settings.checkpointing:
        return "Turn checkpointing on."
    shorter = bucket(settings.seq) // 2
    while shorter >= 64 and not fits(engine, replace(settings, seq=shorter), shorter):
        shorter //= 2
    if shorter < 64:
        return f"Not even examples of 64 tokens fit at rank {settings.rank}: take a lower rank or a smaller model."
    share = estimate(engine, replace(settings, seq=shorter), shorter).nbytes / needed
    return f"With seq {shorter} it would take {share:.0%} of that."
