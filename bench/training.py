"""Measures training speed and memory: `python bench/training.py [MODEL] [--seq 512 --batch 4 …]`.

One step is a batch of sequences of random tokens, all of them targets: forward, backward, clipping and AdamW. The first
step is excluded, because it compiles kernels. With --profile every kernel is also run by itself, repeatedly, to see
where a step's time goes; --json FILE saves the figures.
"""

import argparse
import json
import random
import time
from array import array
from collections import Counter
from pathlib import Path

from wgemma.engine.opening import open_engine
from wgemma.engine.options import Options
from wgemma.files.gguf import Gguf
from wgemma.files.locate import locate
from wgemma.gpu.device import Dispatch
from wgemma.gpu.ledger import Ledger
from wgemma.loading import open_device
from wgemma.model.config import Config
from wgemma.sync import run
from wgemma.train.batches import Pack
from wgemma.train.data import Example
from wgemma.train.fitting import open_learner
from wgemma.train.learner import Learner
from wgemma.train.settings import TrainingSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="an Ollama name or a .gguf file (default: the embedded model)")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="keep everything instead of computing layers again")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    settings = TrainingSettings(
        rank=options.rank, seq=options.seq, batch=options.batch, checkpointing=not options.plain, warmup=0
    )
    with Gguf.open(locate(options.model).model) as gguf:
        engine = run(
            open_engine(Ledger(open_device()), gguf, Config.from_gguf(gguf), Options(context=max(options.seq, 512)))
        )
        learner = run(open_learner(engine, settings))
        figures = measure(learner, options.steps)
        for name, value in figures.items():
            print(f"{name:28} {value}")
        if options.profile:
            figures["kernels"] = profile(learner)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure(learner: Learner, steps: int) -> dict[str, object]:
    settings, dice = learner.settings, random.Random(7)
    vocabulary = learner.weights.config.vocab_size
    ids = [array("i", [dice.randrange(vocabulary) for _ in range(settings.seq)]) for _ in range(settings.batch)]
    packs = [Pack((Example(sequence, sequence),)) for sequence in ids]
    targets = settings.batch * (settings.seq - 1)
    times, losses = [], []
    for step in range(steps + 1):
        begin = time.perf_counter()
        losses.append(run(learner.accumulate(packs, targets, step)) / targets)
        run(learner.update(settings.lr, step))
        run(learner.device.wait())
        times.append(time.perf_counter() - begin)
    best = min(times[1:])
    return {
        "adapter": learner.device.info.name,
        "sequences": f"{settings.batch} × {settings.seq}",
        "rows of a pass": learner.rows,
        "first step, s": round(times[0], 3),
        "step, s": round(best, 4),
        "tokens per second": round(settings.batch * settings.seq / best, 1),
        "weights, GB": round(learner.engine.weight_bytes / 1e9, 3),
        "beside them, GB": round(learner.nbytes / 1e9, 3),
        "loss, first and last": f"{losses[0]:.4f} {losses[-1]:.4f}",
    }


def profile(learner: Learner, times: int = 3) -> list[dict[str, object]]:
    """Each kernel's seconds per pass, with every dispatch run alone, and its number of dispatches."""
    seconds, counts, device = Counter[str](), Counter[str](), learner.device
    for tape in learner.tapes:
        for command in tape.placed():
            if not isinstance(command, Dispatch):
                continue
            program = device.program([command] * times, "profile")
            program.replay()
            run(device.wait())
            begin = time.perf_counter()
            program.replay()
            run(device.wait())
            seconds[command.kernel.name] += (time.perf_counter() - begin) / times
            counts[command.kernel.name] += 1
    table = [{"kernel": name, "count": counts[name], "ms": round(1e3 * s, 3)} for name, s in seconds.most_common()]
    for row in table:
        print(f"{row['kernel']:28} {row['count']:6} {row['ms']:10} ms")
    return table


if __name__ == "__main__":
    main()
