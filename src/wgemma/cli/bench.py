"""`wgemma bench [MODEL]`: measures how fast a model runs here, and what share of the memory bandwidth it uses.

A decoded token reads every weight once and all keys and values it attends to, so bytes per token × tokens per second is
compared with what this adapter streams when it does nothing else. All figures are medians after a warm-up.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter as clock
from typing import TypeVar

from wgemma.api import Model
from wgemma.checks import counted, human_bytes
from wgemma.cli.bench_adapter import Adapted, adapted
from wgemma.cli.bench_reads import KernelTime, Reads, grouped
from wgemma.cli.bench_sequences import Sequences, Together
from wgemma.cli.bench_timing import typical, warmed_up
from wgemma.cli.bench_towers import Listen, Look, listens, looks
from wgemma.cli.output import ON_THE_PROCESSOR, Bar, as_json, progress, table
from wgemma.cli.words import MODEL, add_precision_option
from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.batch import Batch
from wgemma.engine.opening import Plan
from wgemma.engine.request import PromptProgress, Request
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.towers import Encoder, heard_by
from wgemma.errors import ModelError
from wgemma.files.locate import locate
from wgemma.gpu.device import Buffer, Device, Dispatch, Program, Span
from wgemma.gpu.tape import Tape
from wgemma.loading import load, open_device
from wgemma.sync import iterate, run
from wgemma.version import __version__

T = TypeVar("T")

GREEDY = Sampling(temperature=0, seed=0)
REPLAYS = 8  # recordings timed for the host's share; a profile does fewer runs
STREAM_GROUP = 32 << 10  # bytes one workgroup of kernels/stream.wgsl reads
STREAM_SECONDS = 0.5


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("bench", help="measure how fast a model runs here")
    verb.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    verb.add_argument(
        "--prompt", type=whole_numbers(1), default=[512, 2048], metavar="N,N", help="prefill prompts of N tokens"
    )
    verb.add_argument("--depth", type=whole_numbers(0), default=[0, 4096], metavar="N,N", help="decode after N tokens")
    verb.add_argument("--tokens", type=whole_number(1), default=64, metavar="N", help="decode N tokens at each depth")
    verb.add_argument(
        "--repeat", type=whole_number(1), default=3, metavar="N", help="measure N times and take the median"
    )
    verb.add_argument("--kv", choices=("f16", "f32"), default="f16", help="set the KV cache type (default: f16)")
    add_precision_option(verb)
    verb.add_argument(
        "--ple", choices=("auto", "gpu", "host"), default="auto", help="keep the per-layer table there (default: auto)"
    )
    verb.add_argument(
        "--sequences",
        type=whole_numbers(1),
        default=[],
        metavar="N,N",
        help="decode N sequences at once, after prompts of the first --prompt",
    )
    verb.add_argument(
        "--arena", type=whole_number(1), metavar="BYTES", help="limit the keys and values of all sequences to BYTES"
    )
    verb.add_argument("--context", type=whole_number(1), metavar="N", help="limit the context to N tokens")
    verb.add_argument("--profile", action="store_true", help="time each kernel of one decoded token")
    verb.add_argument("--image", action="store_true", help="time encoding an image")
    verb.add_argument("--audio", action="store_true", help="time encoding a sound")
    verb.add_argument(
        "--adapter",
        type=whole_number(1),
        nargs="?",
        const=16,
        metavar="RANK",
        help="time a LoRA adapter of this rank (default: 16)",
    )
    verb.add_argument("--projector", metavar="FILE", help="load the vision and audio towers from this file")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=bench)


def whole_number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}, below a billion")

    return parse


def whole_numbers(least: int) -> Callable[[str], list[int]]:
    one = whole_number(least)
    return lambda text: [one(part) for part in text.split(",")]


# -- what is measured


@dataclass(frozen=True, slots=True)
class Load:
    """Loading the model onto a device that is already open."""

    seconds: float
    bytes: int
    mb_per_s: float


@dataclass(frozen=True, slots=True)
class Prefill:
    tokens: int
    tokens_per_s: float
    first_token_s: float  # until the first token after the prompt is on the host


@dataclass(frozen=True, slots=True)
class Decode:
    depth: int
    tokens: int
    tokens_per_s: float
    host_ms: float  # per token, to record its commands
    dispatches: int
    weight_bytes: int  # read per token
    kv_bytes: int  # read per token, halfway through the measurement
    gb_per_s: float
    share: float  # of the streaming bandwidth
    profile: list[KernelTime] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    wgemma: str
    adapter: dict[str, str]
    context: int
    kv: str
    precision: str
    ple: str | None  # where the per-layer table is: gpu, host, or None for a model without one
    load: Load
    stream_gb_per_s: float
    prefill: list[Prefill]
    decode: list[Decode]
    images: list[Look]
    audio: list[Listen]
    lora: list[Adapted]
    sequences: list[Together]
    notes: list[str]  # what was left out, and why


def bench(options: argparse.Namespace) -> int:
    locate(options.model)  # a wrong name is reported before anything is measured
    device = open_device()
    if device.info.kind == "CPU":
        say(ON_THE_PROCESSOR)
    try:
        report = measure(device, options)
    finally:
        device.close()
    if options.json:
        as_json(asdict(report))
    else:
        _print(report)
    return 0


def measure(device: Device, options: argparse.Namespace) -> Report:
    """All figures."""
    say("measuring memory bandwidth")
    stream = stream_bandwidth(device)
    model, loading = load_model(device, options)
    with model:
        runner = model.backend.runner
        engine, bencher, notes = runner.engine, Bencher(runner, options.repeat), list[str]()
        prompts = fitting(options.prompt, engine.context - 2, "a prompt", notes)
        depths = fitting(options.depth, engine.context - 1 - max(options.tokens, REPLAYS), "a depth", notes)
        if options.profile and "timestamp-query" not in device.features:
            _note(f"{device.info.name} lacks timestamp-query, so its kernels cannot be timed one by one.", notes)
        return Report(
            model=model.name,
            wgemma=__version__,
            adapter=asdict(device.info),
            context=engine.context,
            kv=engine.options.kv,
            precision=engine.options.precision,
            ple=None if engine.weights.inputs is None else "host" if engine.fetches_rows else "gpu",
            load=loading,
            stream_gb_per_s=stream / 1e9,
            prefill=[bencher.prefill(count) for count in prompts],
            decode=[bencher.decode(depth, options.tokens, stream, options.profile) for depth in depths],
            images=_towers("an image", looks, model, options.repeat, notes) if options.image else [],
            audio=_towers("a sound", listens, model, options.repeat, notes) if options.audio else [],
            lora=[bencher.adapted(depth, options.tokens, options.adapter) for depth in depths if options.adapter],
            sequences=_sequences(model, options, notes) if options.sequences else [],
            notes=notes,
        )


def _sequences(model: Model, options: argparse.Namespace, notes: list[str]) -> list[Together]:
    prompts = fitting(options.prompt[:1], model.backend.context - options.tokens - 2, "a prompt of sequences", notes)
    measured, several = [], Sequences(model, options.repeat)
    for prompt in prompts:
        for count in options.sequences:
            say(f"measuring {counted(count, 'sequence')} of {counted(prompt, 'token')}")
            measured.append(several.measure(count, prompt, options.tokens))
    return measured


def _towers(
    what: str,
    measure: Callable[[Device, Encoder[Buffer], int], Iterable[T]],
    model: Model,
    repeat: int,
    notes: list[str],
) -> list[T]:
    """How long media take to encode; a model without that tower leaves a note."""
    say(f"measuring {what}")
    runner = model.backend.runner
    assert runner.senses is not None
    model.backend.towers.watch = heard_by(lambda nbytes: None)
    try:
        return list(measure(runner.device, runner.senses.towers, repeat))
    except ModelError as error:
        _note(f"{what} was left out: {error}", notes)
        return []


def load_model(device: Device, options: argparse.Namespace) -> tuple[Model, Load]:
    done, bars = 0, list[Bar]()
    with ExitStack() as stack:

        def announce(planned: Plan) -> None:
            bars.append(stack.enter_context(progress("loading", planned.reads)))

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if bars:
                bars[0](amount)

        names = ("kv", "precision", "ple", "context", "projector", "arena")
        settings = {name: getattr(options, name) for name in names}
        if options.sequences:
            settings["slots"] = max(options.sequences)
        start = clock()
        model = load(options.model, device=device, announce=announce, progress=advance, **settings)
        run(device.wait())
        seconds = clock() - start
    return model, Load(seconds, done, done / seconds / 1e6)


def fitting(sizes: Sequence[int], most: int, what: str, notes: list[str]) -> list[int]:
    for size in sizes:
        if size > most:
            _note(f"{what} of {counted(size, 'token')} was left out: the context has room for {max(most, 0)}.", notes)
    return [size for size in sizes if size <= most]


def _note(sentence: str, notes: list[str]) -> None:
    notes.append(sentence)
    say(sentence)


def say(line: str) -> None:
    print(line, file=sys.stderr)


def stream_bandwidth(device: Device) -> float:
    """Bytes per second of a kernel that only reads; the best of all runs."""
    size = (64 if device.info.kind == "CPU" else 512) << 20
    size = min(size, device.limits.buffer // STREAM_GROUP * STREAM_GROUP)
    span = min(size, device.limits.binding // STREAM_GROUP * STREAM_GROUP)
    words, found = device.buffer(size, "stream"), device.buffer(4, "stream result")
    tape = Tape(device, "stream")
    for offset in range(0, size, span):
        part = Span(words, offset, min(span, size - offset))
        tape.run("stream", [part.size // STREAM_GROUP], {"words": part, "found": found})
    program = tape.program()
    best, passes, end = 0.0, 1, clock() + STREAM_SECONDS
    while clock() < end:
        seconds = _timed(device, program, passes)
        best = max(best, passes * size / seconds)
        if seconds < STREAM_SECONDS / 10:  # so short that launch and wait overhead matter
            passes *= 2
    tape.free()
    device.free(words)
    device.free(found)
    return best


def _timed(device: Device, program: Program, passes: int) -> float:
    start = clock()
    for _ in range(passes):
        program.replay()
    run(device.wait())
    return clock() - start


class Bencher:
    """Measures one sequence, restarting it each time. Token ids are random but the same every time."""

    def __init__(self, runner: Runner, repeat: int) -> None:
        self.runner = runner
        self.batch = Batch(runner)
        self.device = runner.device
        self.repeat = repeat
        self.reads = Reads(runner)

    def prefill(self, count: int) -> Prefill:
        say(f"measuring a prompt of {counted(count, 'token')}")
        ids = self.ids(count + 1)  # the last one belongs to the first decode step
        times = warmed_up(self.device, lambda: self._prompt(ids), self.repeat)
        return Prefill(count, count / median(read for read, _ in times), median(first for _, first in times))

    def _prompt(self, ids: list[int]) -> tuple[float, float]:
        """Seconds until the prompt is computed, and until the first token."""
        self.runner.paging.prefixes.clear()
        start = clock()
        self.compute(ids)
        read = clock() - start
        self._generate(ids, 1)
        return read, clock() - start

    def decode(self, depth: int, tokens: int, stream: float, profile: bool) -> Decode:
        say(f"measuring {counted(tokens, 'token')} at depth {depth}")
        ids = self.ids(depth + 1)
        seconds = typical(self.device, lambda: self._decoding(ids, tokens), self.repeat)
        tape, program = self.runner.programs.decoding(depth + tokens, adapted=False)
        dispatches = [command for command in tape.commands if isinstance(command, Dispatch)]
        with self._poised(ids):
            host = median(self._recording_seconds(program) for _ in range(REPLAYS))
        reads = [self.reads.of(dispatch, depth + tokens // 2) for dispatch in dispatches]
        weights, kv = sum(read.weights for read in reads), sum(read.kv for read in reads)
        speed = (weights + kv) * tokens / seconds
        return Decode(
            depth=depth,
            tokens=tokens,
            tokens_per_s=tokens / seconds,
            host_ms=1e3 * host,
            dispatches=len(dispatches),
            weight_bytes=weights,
            kv_bytes=kv,
            gb_per_s=speed / 1e9,
            share=speed / stream,
            profile=self._profile(ids, tape) if profile else [],
        )

    def adapted(self, depth: int, tokens: int, rank: int) -> Adapted:
        say(f"measuring an adapter of rank {rank} at depth {depth}")
        ids = self.ids(depth + 1)
        return adapted(self.runner, rank, depth, tokens, self.repeat, lambda s: self._decoding(ids, tokens, s))

    def _decoding(self, ids: list[int], tokens: int, adapter: Setting = BARE) -> float:
        """Seconds to generate `tokens` after `ids`: the whole loop, including sampling and reading back."""
        self.compute(ids, adapter)
        start = clock()
        self._generate(ids, tokens, adapter)
        return clock() - start

    def _recording_seconds(self, program: Program) -> float:
        start = clock()
        program.replay()
        seconds = clock() - start
        run(self.device.wait())
        return seconds

    def _profile(self, ids: list[int], tape: Tape) -> list[KernelTime]:
        from wgemma.gpu.native import NativeDevice

        if not isinstance(self.device, NativeDevice) or "timestamp-query" not in self.device.features:
            return []
        with self._poised(ids):
            times = self.device.profile(tape.placed())
        positions = len(ids) + 1
        reads = [self.reads.of(command, positions) for command in tape.commands if isinstance(command, Dispatch)]
        return grouped(times, reads)

    # -- driving the sequence

    def ids(self, count: int) -> list[int]:
        dice, vocab = random.Random(0), self.runner.engine.config.vocab_size
        return [dice.randrange(vocab) for _ in range(count)]

    def compute(self, ids: list[int], adapter: Setting = BARE) -> None:
        """Computes all but the last of `ids`, printing progress if it takes long."""
        said = clock()

        def tell(progress: PromptProgress) -> None:
            nonlocal said
            if clock() - said > 1:
                said = clock()
                say(f"  {progress.done} of {progress.total} tokens")

        self._drain(Request(ids, 0, GREEDY, adapter, progress=tell))

    def _generate(self, ids: list[int], tokens: int, adapter: Setting = BARE) -> None:
        self._drain(Request(ids, tokens, GREEDY, adapter))

    def _drain(self, request: Request) -> None:
        for _ in iterate(self.batch.drive(request)):
            pass

    @contextmanager
    def _poised(self, ids: list[int]) -> Iterator[None]:
        """Brings the GPU to the step after `ids`, where the recording can be replayed by itself."""
        paging, slots = self.runner.paging, self.runner.slots
        self.compute(ids)
        sequence = run(paging.begin(ids, BARE, ()))
        try:
            run(paging.reach(sequence, len(ids) + REPLAYS))
            slots.put(0, sequence, ids[-1], GREEDY)
            yield
        finally:
            slots.clear(0)
            paging.drop(sequence)


# -- for people


def _print(report: Report) -> None:
    device = "in memory" if report.adapter["kind"] == "CPU" else "on the GPU"
    place = {"gpu": f", per-layer table {device}", "host": ", per-layer table on the host"}.get(report.ple or "", "")
    loading = report.load
    how = f"{report.precision}, kv {report.kv}, context {report.context}{place}"
    print(f"{report.model} on {report.adapter['name']}, {how}")
    print(f"loaded {human_bytes(loading.bytes)} in {loading.seconds:.2f} s ({loading.mb_per_s:.0f} MB/s)")
    print(f"this adapter streams {report.stream_gb_per_s:.1f} GB/s")
    if report.prefill:
        print()
        rows = [[str(p.tokens), figure(p.tokens_per_s), f"{1e3 * p.first_token_s:.1f} ms"] for p in report.prefill]
        table(["PROMPT", "TOKENS/S", "FIRST TOKEN"], rows)
    if report.decode:
        print()
        table(
            ["DEPTH", "TOKENS/S", "READ/TOKEN", "OF WHICH KV", "GB/S", "SHARE", "DISPATCHES", "RECORDING"],
            [_decode_row(decode) for decode in report.decode],
        )
    if report.images:
        print()
        table(["IMAGE", "TIME"], [[f"{look.tokens} tokens", f"{look.ms:.1f} ms"] for look in report.images])
    if report.audio:
        print()
        rows = [[f"{sound.seconds:.0f} s", str(sound.tokens), f"{sound.ms:.1f} ms"] for sound in report.audio]
        speeds = [figure(sound.times_real_time) for sound in report.audio]
        table(["SOUND", "TOKENS", "TIME", "× REAL TIME"], [[*row, x] for row, x in zip(rows, speeds, strict=True)])
    if report.lora:
        print()
        table(["ADAPTER", "DEPTH", "TOKENS/S", "WITHOUT", "COST", "DISPATCHES"], [_lora_row(a) for a in report.lora])
    if report.sequences:
        print()
        table(["SEQUENCES", "TOKENS/S", "STREAMED", "ALL PREFILLS"], [_sequences_row(s) for s in report.sequences])
    for decode in report.decode:
        if decode.profile:
            _print_profile(decode)


def _decode_row(decode: Decode) -> list[str]:
    return [
        str(decode.depth),
        figure(decode.tokens_per_s),
        human_bytes(decode.weight_bytes + decode.kv_bytes),
        human_bytes(decode.kv_bytes),
        figure(decode.gb_per_s),
        f"{100 * decode.share:.1f} %",
        str(decode.dispatches),
        f"{decode.host_ms:.2f} ms",
    ]


def _lora_row(measured: Adapted) -> list[str]:
    speeds = [figure(measured.tokens_per_s), figure(measured.bare_tokens_per_s)]
    what = f"rank {measured.rank}, {human_bytes(measured.bytes)}"
    return [what, str(measured.depth), *speeds, f"{100 * measured.cost:.1f} %", str(measured.dispatches)]


def _sequences_row(measured: Together) -> list[str]:
    speeds = [figure(measured.tokens_per_s), figure(measured.streamed_tokens_per_s)]
    return [str(measured.sequences), *speeds, f"{measured.prefill_s:.2f} s"]


def _print_profile(decode: Decode) -> None:
    total = sum(kernel.microseconds for kernel in decode.profile)
    print(f"\none token at depth {decode.depth}, dispatches timed one by one: {total:.0f} µs")
    rows = [
        [
            kernel.kernel,
            kernel.what,
            str(kernel.count),
            f"{kernel.microseconds:.1f}",
            f"{100 * kernel.share:.1f} %",
            figure(kernel.gb_per_s) if kernel.gb_per_s else "",
        ]
        for kernel in decode.profile
    ]
    table(["KERNEL", "READS", "COUNT", "µS", "SHARE", "GB/S"], rows)


def figure(number: float) -> str:
    """Three significant digits."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
