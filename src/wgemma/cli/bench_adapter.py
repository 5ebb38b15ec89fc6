"""What an adapter costs in decode, for `wgemma bench --adapter`: a random one on seven targets against none."""

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from wgemma.cli.bench_timing import warmed_up
from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.engine import Engine
from wgemma.engine.runner import Runner
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


def adapted(
    runner: Runner, rank: int, depth: int, tokens: int, repeat: int, decode: Callable[[Setting], float]
) -> Adapted:
    """`decode` returns the seconds for `tokens` tokens at `depth` with a setting."""
    engine, before = runner.engine, runner.engine.adapters
    beside = engine.ledger.nbytes
    run(engine.adapt(before.having(random_adapter(engine, rank), NAME, 1.0)))
    try:
        setting, size = engine.adapters.choose(NAME), engine.ledger.nbytes - beside
        times = warmed_up(engine.device, lambda: (decode(BARE), decode(setting)), repeat)
        without, with_it = map(median, zip(*times, strict=True))
        dispatches = runner.programs.decoding(depth + tokens, adapted=True)[0].dispatches
    finally:
        run(engine.adapt(before))
    return Adapted(rank, depth, tokens / with_it, tokens / without, with_it / without - 1, dispatches, size)


def random_adapter(engine: Engine, rank: int) -> AdapterFile:
    """An adapter of small random numbers on the usual targets."""
    dice = random.Random(0)
    some = array("f", (dice.gauss(0, 0.01) for _ in range(_DICE)))

    def numbers(count: int) -> "array[float]":
        return (some * -(-count // _DICE))[:count]

    pairs = {}
    for name, tensor in find_tensors(engine.config, engine.gguf.tensors).items():
        if name.startswith("blk.") and name.split(".")[2] in TARGETS and len(tensor.shape) == 2:
            columns, rows = tensor.shape
            pairs[name] = Pair(rank, columns, rows, numbers(rank * columns), numbers(rows * rank), 1.0)
    return AdapterFile(NAME, pairs, float(rank))
