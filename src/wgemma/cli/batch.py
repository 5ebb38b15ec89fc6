"""`wgemma batch REQUESTS -o RESULTS`: answers a file of requests in OpenAI's batch format, as fast as the GPU can."""

import argparse
import asyncio
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wgemma.checks import counted, whole
from wgemma.cli.batch_progress import BatchProgress, rates
from wgemma.cli.output import as_json
from wgemma.cli.ray_option import add_ray_option, shared_model
from wgemma.cli.words import MODEL, add_device_option, add_precision_option
from wgemma.engine.options import MOST_SLOTS
from wgemma.errors import Error, SettingsError
from wgemma.files.paths import user_path
from wgemma.files.reading import regular_file

if TYPE_CHECKING:
    from wgemma.scale.job import Job, Tally
    from wgemma.serve.settings import Settings

STDIN = "-"


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("batch", help="answer a file of requests in OpenAI's batch format")
    verb.add_argument("requests", metavar="REQUESTS", help="a JSONL file of requests, or - for standard input")
    verb.add_argument("-o", "--output", metavar="RESULTS", required=True, help="write results to this file")
    verb.add_argument("--resume", action="store_true", help="go on with RESULTS: do only what is missing there")
    verb.add_argument("-m", "--model", metavar="MODEL", help=f"answer all requests with {MODEL.partition(' (')[0]}")
    verb.add_argument(
        "--slots",
        type=int,
        default=MOST_SLOTS,
        metavar="N",
        help=f"write up to N answers at once (default: {MOST_SLOTS})",
    )
    verb.add_argument("--context", type=int, metavar="N", help="load the model with this context")
    add_precision_option(verb)
    add_device_option(verb)
    add_ray_option(verb)
    verb.add_argument("--workers", type=int, metavar="N", help="with --ray: use N GPUs (default: all)")
    verb.add_argument("--json", action="store_true", help="print the summary as JSON")
    verb.set_defaults(do=batch)


def batch(options: argparse.Namespace) -> int:
    from wgemma.scale.job import Job
    from wgemma.scale.results import open_results
    from wgemma.serve.settings import Settings

    logging.basicConfig(format="wgemma: %(message)s", level=logging.ERROR)
    out, again = user_path(options.output), _again(options)
    if options.workers is not None and options.ray is None:
        raise SettingsError("--workers is for Ray: add --ray.")
    settings = Settings(
        slots=whole("--slots", options.slots, 1, MOST_SLOTS),
        context=None if options.context is None else whole("--context", options.context, 1, 1 << 24),
        precision=options.precision,
        device=options.device,
    )
    with (
        _requests(options.requests) as (requests, file),
        open_results(out, resume=options.resume, again=again) as results,
        BatchProgress(os.fstat(file.fileno()).st_size, quiet=options.json) as progress,
    ):
        job = Job(file, results, progress.tell)
        try:
            if options.ray is None:
                asyncio.run(_here(job, settings, options.model, progress))
            else:
                _by_ray(job, requests, out, settings, options, progress)
        except (KeyboardInterrupt, Error) as trouble:
            progress.end()
            if job.tally.requests:
                print(f"{out} has {counted(job.tally.requests, 'new record')}. To go on: {again}", file=sys.stderr)
            if isinstance(trouble, Error):
                raise
            return 130
        seconds = progress.seconds
    _report(job.tally, seconds, options)
    return 0


async def _here(job: "Job", settings: "Settings", model: str | None, progress: BatchProgress) -> None:
    """The job on this machine."""
    from wgemma.scale.desk import Desk

    progress.say(f"loading {model}" if model else "")
    async with Desk(settings, model) as desk:
        progress.begin()
        async for record in desk.records(job.requests()):
            job.add(record)


def _by_ray(
    job: "Job", requests: Path, out: Path, settings: "Settings", options: argparse.Namespace, progress: BatchProgress
) -> None:
    """The job on the workers of a cluster, which find a file of this machine by its whole path if they share it."""
    from wgemma.scale.ray_cluster import LOCAL, cluster, engines

    progress.say("starting Ray" if options.ray == LOCAL else f"connecting to {options.ray}")
    with cluster(options.ray):
        from wgemma.scale.ray_batch import answer_by_ray

        workers = engines(None if options.workers is None else whole("--workers", options.workers, 1, 10_000))
        progress.say(f"starting {counted(workers, 'worker')}")
        progress.begin()
        answer_by_ray(job, requests.absolute(), out.absolute(), settings, shared_model(options.model), workers)


@contextmanager
def _requests(name: str) -> Iterator[tuple[Path, IO[bytes]]]:
    """The requests file. Standard input is copied to a temporary file first, which can wait for the GPU."""
    if name != STDIN:
        with regular_file(name, sys.maxsize) as file:
            yield user_path(name), file
        return
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        yield Path(copy.name), copy.file


def _again(options: argparse.Namespace) -> str:
    """The command that goes on where this one ends."""
    words = ["wgemma", "batch", options.requests, "-o", options.output, "--resume"]
    words += ["-m", options.model] if options.model is not None else []
    for name in ("slots", "context", "precision", "device"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value not in (None, MOST_SLOTS, "fast") else []
    words += ["--ray", options.ray] if options.ray is not None else []
    words += ["--workers", str(options.workers)] if options.workers is not None else []
    return shlex.join(words)


def _told(tally: "Tally") -> str:
    return counted(tally.requests, "request")


def _report(tally: "Tally", seconds: float, options: argparse.Namespace) -> None:
    if options.json:
        as_json(
            {
                "requests": tally.requests,
                "failed": tally.failed,
                "skipped": tally.skipped,
                "seconds": seconds,
                "prompt_tokens": tally.prompt_tokens,
                "tokens": tally.tokens,
                "requests_per_s": tally.requests / seconds if seconds else None,
                "tokens_per_s": tally.tokens / seconds if seconds else None,
                "first_failure": tally.first_failure or None,
            }
        )
        return
    before = f", {tally.skipped} done before" if tally.skipped else ""
    speed = f": {rates(tally, seconds)}" if tally.requests else ""
    print(f"{_told(tally)}{before}, {tally.failed} failed{speed}.")
    if tally.failed:
        print(f"The first failure: {tally.first_failure}")
        if options.model is None and "not found" in tally.first_failure:
            print("With -m MODEL one model answers all requests, whatever they name.")
