"""A job over the workers of a Ray cluster: Ray Data carries rows to them and records back.

    the driver's machine: reads rows in chunks  →  workers: one engine each, a chunk in, its records out  →  the driver

A block holds one chunk, so a chunk is Ray's unit of work, and what is done again when a worker is lost. A worker has
several in hand, so that its engine does not run dry between two. The driver alone writes the results file.
"""

import asyncio
import json
import logging
import platform
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import ray
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask, read_datasource
from ray.data._internal.execution.streaming_executor import StreamingExecutor
from ray.data.block import BlockMetadata

from wgemma.errors import Error
from wgemma.scale.desk import Desk
from wgemma.scale.job import Job, pending
from wgemma.scale.ray_cluster import RayError, first_line, own_device, resources
from wgemma.scale.results import Record, read_results, refused
from wgemma.scale.rows import BadRow, Line, Request, Row, read_rows
from wgemma.serve.settings import Settings

IN_HAND = 4  # chunks a worker answers at the same time
AHEAD = 2  # and those that lie ready


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows, and those before them that were skipped because an earlier run has done them."""

    number: int
    rows: list[Row]
    skipped: int
    skipped_size: int

    @classmethod
    def unpacked(cls, data: bytes) -> "Chunk":
        told = json.loads(data)
        return cls(**told | {"rows": list(map(_row, told["rows"]))})


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a chunk; or the `trouble` of a worker that cannot work."""

    chunk: int
    records: list[Record]
    skipped: int
    skipped_size: int
    trouble: str = ""

    @classmethod
    def unpacked(cls, data: bytes) -> "Reply":
        told = json.loads(data)
        return cls(**told | {"records": [Record(**one | {"text": one["text"].encode()}) for one in told["records"]]})


def _packed(value: Chunk | Reply) -> bytes:
    """As JSON, for the way through Ray."""
    return json.dumps(asdict(value), default=bytes.decode).encode()


def _row(told: dict[str, Any]) -> Row:
    told["line"] = Line(**told["line"])
    return Request(**told) if "path" in told else BadRow(**told)


def answer_by_ray(job: Job, requests: Path, results: Path, settings: Settings, model: str | None, workers: int) -> None:
    """The whole job, by the cluster that Ray is connected to."""
    context = DataContext.get_current()
    context.target_max_block_size = 1  # a chunk to a block
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    size = max(2 * settings.slots // IN_HAND, 1)
    here = {f"node:{ray.util.get_node_ip_address()}": 1e-3}  # every machine has one of these
    chunks = read_datasource(Chunks(requests, results, size), num_cpus=0, resources=here)
    pool = ActorPoolStrategy(
        size=workers,
        max_tasks_in_flight_per_actor=IN_HAND + AHEAD,
        max_concurrent_calls_per_actor=IN_HAND,
        enable_true_multi_threading=True,
    )
    replies = chunks.map(Worker, compute=pool, fn_constructor_args=(settings, model), **resources())
    # Without prefetching: its thread would outlive the job, and use Ray when that is over.
    tables = iter(replies.iter_batches(prefetch_batches=0, batch_size=None, batch_format="pyarrow"))
    try:
        _gather(job, (cell.as_py() for table in tables for cell in table["reply"]))
    except ray.exceptions.RayError as trouble:
        raise RayError(f"the cluster failed: {first_line(trouble)}") from None
    finally:
        _end(tables)


def _end(tables: Any) -> None:
    """Stops what is still running. Ray's threads must be over before Ray is: they would end the whole process."""
    if hasattr(tables, "close"):
        tables.close()
    for thread in threading.enumerate():
        if isinstance(thread, StreamingExecutor):
            thread.shutdown(force=True)
            thread.join(30)


def _gather(job: Job, replies: Iterator[bytes]) -> None:
    seen = set[int]()
    for packed in replies:
        reply = Reply.unpacked(packed)
        if reply.trouble:
            raise RayError(reply.trouble)
        if reply.chunk in seen:
            continue  # done twice because its worker seemed to be lost
        seen.add(reply.chunk)
        job.skip(reply.skipped, reply.skipped_size)
        for record in reply.records:
            job.add(record)


class Chunks(Datasource):  # type: ignore[misc]
    """The rows of a requests file that the results file does not have yet, `size` to a chunk. Both files are read on
    the driver's machine, by one task. It gives the same chunks again if it has to start over: what is appended to the
    results in the meantime does not count."""

    def __init__(self, requests: Path, results: Path, size: int) -> None:
        super().__init__()
        self._requests = requests
        self._read = partial(_chunks, requests, results, results.stat().st_size, size)

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        return [ReadTask(self._read, BlockMetadata(None, self.estimate_inmemory_data_size(), None))]

    def estimate_inmemory_data_size(self) -> int:
        return self._requests.stat().st_size


def _chunks(requests: Path, results: Path, known: int, size: int) -> Iterator[pyarrow.Table]:
    with results.open("rb") as file:
        before, _ = read_results(file, results, known)
    with requests.open("rb") as file:
        rows, number, skipped, skipped_size = list[Row](), 0, 0, 0
        for row, done in pending(read_rows(file), before):
            if done:
                skipped, skipped_size = skipped + 1, skipped_size + row.line.size
            else:
                rows.append(replace(row, line=replace(row.line, text=None)))  # it is read; that is enough
            if len(rows) == size or skipped == 1000 * size:
                yield _cell("chunk", Chunk(number, rows, skipped, skipped_size))
                rows, number, skipped, skipped_size = [], number + 1, 0, 0
        yield _cell("chunk", Chunk(number, rows, skipped, skipped_size))


def _cell(name: str, value: Chunk) -> pyarrow.Table:
    return pyarrow.table({name: pyarrow.array([_packed(value)], pyarrow.large_binary())})


class Worker:
    """An engine in a process of its own. It loads its model once and answers several chunks at a time, by one event
    loop. What it cannot do it says in a reply, so that the user reads a sentence and not a traceback of Ray's."""

    def __init__(self, settings: Settings, model: str | None) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._trouble = ""
        try:
            device = own_device(settings.device if isinstance(settings.device, str) else None)
            self._desk = Desk(replace(settings, device=device), model)
            self._wait(self._desk.__aenter__())
        except Error as error:
            self._trouble = str(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, bytes]:
        chunk = Chunk.unpacked(row["chunk"])
        records = list[Record]()
        if not self._trouble:
            try:
                records = self._wait(self._answer(chunk))
            except Error as error:
                self._trouble = str(error)
        trouble = f"the worker on {platform.node()} cannot go on: {self._trouble}" if self._trouble else ""
        return {"reply": _packed(Reply(chunk.number, records, chunk.skipped, chunk.skipped_size, trouble))}

    async def _answer(self, chunk: Chunk) -> list[Record]:
        return list(await asyncio.gather(*map(self._record, chunk.rows)))

    async def _record(self, row: Row) -> Record:
        return refused(row) if isinstance(row, BadRow) else await self._desk.record(row)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
