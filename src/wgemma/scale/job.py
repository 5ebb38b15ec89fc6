"""A whole job: which rows are to do, the records that come, and how far it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from wgemma.scale.results import Done, Record, Results, refused
from wgemma.scale.rows import BadRow, Request, read_rows


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


class Job:
    """Rows of `file`, without those that `results` had before; `tell` is called after every record."""

    def __init__(self, file: BinaryIO, results: Results, tell: Callable[[Tally], None] = lambda tally: None) -> None:
        self._rows = read_rows(file)
        self._results = results
        self._tell = tell
        self.tally = Tally()

    def requests(self) -> Iterator[Request]:
        """Those to answer. Rows that are no requests, or repeat a custom_id, are recorded on the way."""
        before, seen = self._results.before, Done()
        for row in self._rows:
            if row.custom_id is not None and seen.has(0, row.custom_id):
                said = f"Line {row.line.number}: an earlier line has the same custom_id."
                row = BadRow(row.line, "duplicate_custom_id", said)
            if row.custom_id is not None:
                seen.add(0, row.custom_id)
            if before.has(row.line.number, row.custom_id):
                self.tally.skipped += 1
                self.tally.skipped_size += row.line.size
            elif isinstance(row, BadRow):
                self.add(refused(row))
            else:
                yield row

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
