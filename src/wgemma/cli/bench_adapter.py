"""What an adapter costs in decode, for `wgemma bench --adapter`: a random one on seven targets against none."""

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from wgemma.cli.bench_timing import warmed_up
from wgemma.engine.adapting import Adapters
from wgemma.engine.session import Session
from wgemma.files.adapters import AdapterFile, Pair
from wgemma.model.config import find_tensors
from wgemma.sync import run

TARGETS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NAME = "random"
_DICE = 4093  # random numbers drawn; the adapter repeats them


@dataclass(frozen=True, slots=True)
class Adapted:
    """Decode with and without an adapter, alternating."""

    rank: int
    depth: int
    tokens_per_s: float
    bare_tokens_per_s: float
    cost: float  # extra time per token, as a share of the time without
    dispatches: int
    bytes: int


def adapted(session: Session, rank: int, depth: int, tokens: int, repeat: int, decode: Callable[[], float]) -> Adapted:
    """`decode` returns the seconds for `tokens` tokens at `depth`, with whatever adapter the session uses."""
    engine = session.engine
    before, bare = engine.adapters, session.adapter
    run(engine.adapt(before.having(random_adapter(session, rank), NAME, 1.0)))
    try:
        setting = engine.adapters.choose(NAME)

        def both() -> tuple[float, float]:
            session.use(Adapters().choose(None))
            without = decode()
            session.use(setting)
            return without, decode()

        without, with_it = map(median, zip(*warmed_up(engine.device, both, repeat), strict=True))
        dispatches = session.decoding(depth + tokens)[0].dispatches
        size = engine.lows.nbytes if engine.lows else 0
    finally:
        session.use(bare)
        run(engine.adapt(before))
    return Adapted(rank, depth, tokens / with_it, tokens / without, with_it / without - 1, dispatches, size)


def random_adapter(session: Session, rank: int) -> AdapterFile:
    """An adapter of small random numbers on the usual targets."""
    engine, dice = session.engine, random.Random(0)
    some = array("f", (dice.gauss(0, 0.01) for _ in range(_DICE)))

    def numbers(count: int) -> "array[float]":
        return (some * -(-count // _DICE))[:count]

    pairs = {}
    for name, tensor in find_tensors(engine.config, engine.gguf.tensors).items():
        if name.startswith("blk.") and name.split(".")[2] in TARGETS and len(tensor.shape) == 2:
            columns, rows = tensor.shape
            pairs[name] = Pair(rank, columns, rows, numbers(rank * columns), numbers(rows * rank), 1.0)
    return AdapterFile(NAME, pairs, float(rank))
