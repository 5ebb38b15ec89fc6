"""How time grows with depth, rows, length and callers: `python bench/growth.py MODEL [--depths 0,4096 --rows 1,4 …]`.

Four figures, all including the wait for the device: milliseconds per decoded token at a given depth; per prefill pass
of a given number of rows after a short history, without the head, best of all tries; and per token of prompts of a
given length; and tokens per second of several sequences together, after short prompts and long ones. A pass is recorded
for one of a few numbers of rows (engine/buckets.py), so the table also says how many were computed.

Decoding and prompts are measured as in `wgemma bench`. The figures go to growth-ADAPTER-MODEL.json, and as line charts
to the .svg beside it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from time import perf_counter as clock
from typing import Any

from names import called, slug
from svg import Lines, drawing, line_chart, text

from wgemma import __version__
from wgemma.api import Model
from wgemma.cli.bench import (
    REPLAYS,
    Bencher,
    Decode,
    Prefill,
    figure,
    fitting,
    load_model,
    say,
    stream_bandwidth,
    whole_number,
    whole_numbers,
)
from wgemma.cli.bench_sequences import Sequences, Together
from wgemma.cli.bench_timing import warmed_up
from wgemma.engine.buckets import bucket
from wgemma.errors import Error
from wgemma.gpu.device import Device
from wgemma.loading import open_device

HISTORY = 64  # tokens before a pass
PROMPTS = (512, 4096)  # tokens before several sequences go on together
MOST = 1 << 17  # tokens of all their prompts
PASSING = 0.5  # seconds to repeat passes of one size
WIDTH, HEIGHT, HEAD, ACROSS = 960, 280, 40, 3


@dataclass(frozen=True, slots=True)
class Decoded:
    depth: int
    ms_per_token: float
    tokens_per_s: float
    gb_per_s: float
    share: float  # of the adapter's streaming bandwidth


@dataclass(frozen=True, slots=True)
class Passed:
    rows: int
    computed: int  # rows of the recordings replayed
    ms: float


@dataclass(frozen=True, slots=True)
class Read:
    tokens: int
    ms_per_token: float
    tokens_per_s: float
    first_token_ms: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="an Ollama name, a .gguf path or an http(s) URL")
    parser.add_argument("--depths", type=sizes(0), default=[0, 1024, 4096, 16384, 65536], metavar="N,N")
    parser.add_argument("--rows", type=sizes(1), default=[1, 2, 4, 8, 16], metavar="N,N")
    parser.add_argument("--prompts", type=sizes(1), default=[64, 256, 512, 2048, 8192], metavar="N,N")
    parser.add_argument("--sequences", type=sizes(1), default=[1, 2, 4, 8, 16, 32, 64], metavar="N,N")
    parser.add_argument("--tokens", type=whole_number(1), default=64, metavar="N", help="to decode at each depth")
    parser.add_argument(
        "--repeat", type=whole_number(1), default=3, metavar="N", help="measure so often, take the median"
    )
    parser.add_argument("--precision", choices=("fast", "exact"), default="fast")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="FOLDER")
    parser.set_defaults(kv="f16", ple="auto", context=None, projector=None, arena=None)  # other options loading needs
    options = parser.parse_args()
    try:
        device = open_device()
        try:
            report = measure(device, options)
        finally:
            device.close()
    except Error as error:
        print(f"growth: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"growth-{slug(report['adapter'])}-{slug(report['model'])}"
    file.with_name(f"{file.name}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    file.with_name(f"{file.name}.svg").write_text(charts(report))
    print(f"\nwritten: {file}.json, {file}.svg")
    return 0


def sizes(least: int) -> Callable[[str], list[int]]:
    """Ascending and unique, because a deeper history continues the one before."""
    parse = whole_numbers(least)
    return lambda numbers: sorted(set(parse(numbers)))


# -- measuring


def measure(device: Device, options: argparse.Namespace) -> dict[str, Any]:
    stream = stream_bandwidth(device)
    model, _ = load_model(device, options)
    with model:
        grower, notes = Grower(model.backend.runner, options.repeat), list[str]()
        context = model.backend.context
        depths = fitting(options.depths, context - 1 - max(options.tokens, REPLAYS), "a depth", notes)
        rows = fitting(options.rows, context - 1 - HISTORY, "a pass", notes)
        prompts = fitting(options.prompts, context - 2, "a prompt", notes)
        print(f"{called(model.name)} on {device.info.name}, {options.precision}, context {context}")
        return {
            "date": date.today().isoformat(),
            "model": called(model.name),
            "adapter": device.info.name,
            "backend": device.info.backend,
            "driver": device.info.driver,
            "precision": options.precision,
            "wgemma": __version__,
            "context": context,
            "history": HISTORY,
            "tokens": options.tokens,
            "stream_gb_per_s": stream / 1e9,
            "decode": told(Decoded, (grower.decoded(depth, options.tokens, stream) for depth in depths)),
            "passes": told(Passed, map(grower.passed, rows)),
            "prompts": told(Read, map(grower.read, prompts)),
            "together": told(Together, together(model, options, context)),
            "notes": notes,
        }


def together(model: Model, options: argparse.Namespace, context: int) -> Iterator[Together]:
    """Several sequences after prompts of different lengths."""
    sequences = Sequences(model, options.repeat)
    for prompt in PROMPTS:
        fitting = [count for count in options.sequences if count * prompt <= MOST and prompt + options.tokens < context]
        for count in fitting:
            say(f"measuring {count} sequences after {prompt} tokens each")
            yield sequences.measure(count, prompt, options.tokens)


def told(kind: type[Any], measured: Iterator[Any]) -> list[dict[str, Any]]:
    """The figures, printed as a table as they arrive."""
    print("\n" + " ".join(f"{field.name:>14}" for field in fields(kind)), flush=True)
    rows = []
    for one in measured:
        rows.append(asdict(one))
        cells = [str(value) if isinstance(value, int) else figure(value) for value in rows[-1].values()]
        print(" ".join(f"{cell:>14}" for cell in cells), flush=True)
    return rows


class Grower(Bencher):
    """`wgemma bench`'s bencher, extended to time single passes."""

    def decoded(self, depth: int, tokens: int, stream: float) -> Decoded:
        found: Decode = self.decode(depth, tokens, stream, profile=False)
        return Decoded(depth, 1e3 / found.tokens_per_s, found.tokens_per_s, found.gb_per_s, found.share)

    def read(self, count: int) -> Read:
        found: Prefill = self.prefill(count)
        return Read(count, 1e3 / found.tokens_per_s, found.tokens_per_s, 1e3 * found.first_token_s)

    def passed(self, rows: int) -> Passed:
        say(f"measuring a pass of {rows} rows")
        ids = self.ids(HISTORY + rows + 1)
        times, end = warmed_up(self.device, lambda: self._pass(ids), self.repeat), clock() + PASSING
        while clock() < end:
            times.append(self._pass(ids))
        return Passed(rows, sum(buckets(rows, self.runner.engine.options.chunk)), 1e3 * min(times))

    def _pass(self, ids: list[int]) -> float:
        """Seconds for what follows the history in `ids`; the history itself stays in the cache."""
        self.compute(ids[: HISTORY + 1])
        start = clock()
        self.compute(ids)
        return clock() - start


def buckets(rows: int, chunk: int) -> Iterator[int]:
    """The sizes of the recordings this many rows take."""
    while rows > 0:
        size = bucket(rows, chunk)
        yield size
        rows -= size


# -- drawing


def charts(report: dict[str, Any]) -> str:
    title = f"{report['model']} on {report['adapter']}"
    how = f"{report['precision']} · wgemma {report['wgemma']} · {report['driver']} · {report['date']}"
    panels = [
        Lines("decoding: ms per token", "tokens before it", points(report["decode"], "depth", "ms_per_token")),
        Lines("a pass: ms", f"rows, {report['history']} tokens before them", points(report["passes"], "rows", "ms")),
        Lines("a prompt: ms per token", "tokens of the prompt", points(report["prompts"], "tokens", "ms_per_token")),
        *(
            Lines(
                "together: tokens per second",
                f"sequences, {prompt} tokens before",
                points([one for one in report["together"] if one["prompt"] == prompt], "sequences", "tokens_per_s"),
            )
            for prompt in PROMPTS
        ),
    ]
    width, rows = WIDTH / ACROSS, -(-len(panels) // ACROSS)
    shapes = [text(16, 22, title, "bold"), text(WIDTH - 14, 22, how, "faint", "end")]
    for i, panel in enumerate(panels):
        shapes += line_chart(panel, i % ACROSS * width, HEAD + i // ACROSS * HEIGHT, width, HEIGHT)
    return drawing(WIDTH, HEAD + rows * HEIGHT, f"{title}: how time grows", shapes)


def points(figures: Sequence[dict[str, Any]], across: str, up: str) -> list[tuple[int, float]]:
    return [(one[across], one[up]) for one in figures]


if __name__ == "__main__":
    sys.exit(main())
