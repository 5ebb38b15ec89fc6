"""A whole job: which rows are to do, the records that come, and how far it is."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from wgemma.scale.results import Done, Record, Results, refused
from wgemma.scale.rows import BadRow, Request, Row, read_rows


@dataclass(slots=True)
class Tally:
    """What was done so far. `size` is in bytes of the requests file, whose rows are not counted in advance."""

    requests: int = 0
    failed: int = 0
    skipped: int = 0  # done by an earlier run
    size: int = 0
    skipped_size: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    first_failure: str = ""


def pending(rows: Iterable[Row], before: Done) -> Iterator[tuple[Row, bool]]:
    """The rows, and whether each was done before. One that repeats a custom_id is a bad one."""
    seen = Done()
    for row in rows:
        if row.custom_id is not None and seen.has(0, row.custom_id):
            said = f"Line {row.line.number}: an earlier line has the same custom_id."
            row = BadRow(row.line, "duplicate_custom_id", said)
        elif row.custom_id is not None:
            seen.add(0, row.custom_id)
        yield row, before.has(row.line.number, row.custom_id)


class Job:
    """Rows of `file`, without those that `results` had before; `tell` is called after every record."""

    def __init__(self, file: IO[bytes], results: Results, tell: Callable[[Tally], None] = lambda tally: None) -> None:
        self._rows = read_rows(file)
        self._results = results
        self._tell = tell
        self.tally = Tally()

    def requests(self) -> Iterator[Request]:
        """Those to answer. Rows that are no requests are recorded on the way."""
        for row, done in pending(self._rows, self._results.before):
            if done:
                self.skip(1, row.line.size)
            elif isinstance(row, BadRow):
                self.add(refused(row))
            else:
                yield row

    def skip(self, count: int, size: int) -> None:
        """Counts rows that an earlier run has done."""
        self.tally.skipped += count
        self.tally.skipped_size += size

    def add(self, record: Record) -> None:
        """Writes a record and counts it."""
        self._results.add(record)
        tally = self.tally
        tally.requests += 1
        tally.size += record.size
        tally.prompt_tokens += record.prompt_tokens
        tally.tokens += record.tokens
        if record.failure:
            tally.failed += 1
            tally.first_failure = tally.first_failure or record.failure
        self._tell(tally)
