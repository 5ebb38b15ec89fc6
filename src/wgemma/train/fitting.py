"""How many rows a training pass has, so that it fits into memory, and the error if none fits."""

from dataclasses import replace

from wgemma.engine.engine import Engine
from wgemma.errors import OutOfMemory, TrainingError
from wgemma.gpu.ledger import Ledger
from wgemma.train.batches import bucket
from wgemma.train.learner import Learner
from wgemma.train.settings import TrainingSettings

MOST_ROWS = 2048  # per pass, unless one example has more


async def open_learner(engine: Engine, settings: TrainingSettings) -> Learner:
    """A learner with as many rows per pass as fit into memory; raises `TrainingError` if none do."""
    refused: OutOfMemory | None = None
    for rows in capacities(engine, settings):
        try:
            return await Learner.begin(engine, settings, rows)
        except OutOfMemory as error:
            refused = error
    needed = estimate(engine, settings, bucket(settings.seq)).nbytes
    hint = _what_would_fit(engine, settings, needed)
    told = f" ({refused})" if refused else ""
    raise TrainingError(f"training needs {needed / 1e9:.1f} GB beside the model, more than is available{told}. {hint}")


def capacities(engine: Engine, settings: TrainingSettings) -> list[int]:
    """Rows per pass to try, largest first: at most what a step has and bindings allow, at least what a pack has."""
    least = bucket(settings.seq)
    most = max(least, min(bucket(settings.batch * settings.seq), MOST_ROWS))
    sizes = sorted({bucket(rows) for rows in (most, most // 2, most // 4, least) if bucket(rows) >= least})
    return [rows for rows in reversed(sizes) if fits(engine, settings, rows)]


def fits(engine: Engine, settings: TrainingSettings, rows: int) -> bool:
    """Whether a pass of this many rows fits the bindings, and all of it the memory limit, if there is one."""
    needed, limits = estimate(engine, settings, rows), engine.device.limits
    left = engine.ledger.left
    within = left is None or needed.nbytes <= left
    return needed.largest <= min(limits.binding, limits.buffer) and within


def estimate(engine: Engine, settings: TrainingSettings, rows: int) -> Ledger:
    """What training would allocate with this many rows per pass."""
    ledger = Ledger(engine.device, plans=True)
    Learner(engine, settings, rows, ledger)
    return ledger


def _what_would_fit(engine: Engine, settings: TrainingSettings, needed: int) -> str:
    if not settings.checkpointing:
        return "Turn checkpointing on."
    shorter = bucket(settings.seq) // 2
    while shorter >= 64 and not fits(engine, replace(settings, seq=shorter), shorter):
        shorter //= 2
    if shorter < 64:
        return f"Not even examples of 64 tokens fit at rank {settings.rank}. Use a lower rank or a smaller model."
    share = estimate(engine, replace(settings, seq=shorter), shorter).nbytes / needed
    return f"With seq {shorter} it would need {share:.0%} of that."
