"""The results file. A record is one line, appended and flushed as soon as it is known, so whatever ends the job, even
`kill -9`, leaves a file to go on with: complete lines count, and half a line at the end is removed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from wgemma.errors import Error, SettingsError, SourceError
from wgemma.files.json_text import parse_json
from wgemma.files.locks import locked
from wgemma.scale.rows import BadRow, Request
from wgemma.serve.wire import dumps, fresh_id

_START = b'{"id":"batch_req_'  # how every record begins


@dataclass(frozen=True, slots=True)
class Record:
    """One row's result. `text` is what the file gets; the tokens are for the rates."""

    text: bytes
    size: int  # of the row, in bytes
    failure: str = ""  # what went wrong, in a sentence
    prompt_tokens: int = 0
    tokens: int = 0


def answered(request: Request, status: int, body: dict[str, Any]) -> Record:
    """The record of a request that the server's code answered, be it with an error."""
    response = {"status_code": status, "request_id": fresh_id("req_"), "body": body}
    text = _text(request.line.number, request.custom_id, response, None)
    if status != 200:
        return Record(text, request.line.size, f"{request.custom_id}: {body['error']['message']}")
    used = body.get("usage") or {}
    prompt, written = (
        used.get(name) or used.get(other) or 0
        for name, other in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    )
    return Record(text, request.line.size, "", prompt, written)


def refused(row: BadRow) -> Record:
    """The record of a row that is no request."""
    text = _text(row.line.number, row.custom_id, None, {"code": row.code, "message": row.message})
    return Record(text, row.line.size, row.message)


def _text(number: int, custom_id: str | None, response: Any, error: Any) -> bytes:
    record = {"id": f"batch_req_{number}", "custom_id": custom_id, "response": response, "error": error}
    return dumps(record).encode() + b"\n"


class Done:
    """Which rows are done: those with a custom_id by that, others by the number of their line. Eight bytes of a hash
    stand for each: two of a million are mistaken for each other with a chance of 1 in 10⁷."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, number: int, custom_id: str | None) -> None:
        self._hashes.add(_hash(number, custom_id))

    def has(self, number: int, custom_id: str | None) -> bool:
        return _hash(number, custom_id) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)


def _hash(number: int, custom_id: str | None) -> int:
    key = f"line {number}" if custom_id is None else f"id {custom_id}"
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())


class Results:
    """An open results file, and which rows it had before."""

    def __init__(self, file: IO[bytes], before: Done) -> None:
        self._file = file
        self.before = before

    def add(self, record: Record) -> None:
        self._file.write(record.text)
        self._file.flush()


@contextmanager
def open_results(path: Path, *, resume: bool, again: str) -> Iterator[Results]:
    """The file, locked against a second job. One that exists is only continued if asked to; `again` is the command
    that does."""
    if path.exists() and path.stat().st_size and not resume:
        raise SettingsError(f"{path} exists. To do only what it lacks: `{again}`. To begin anew, remove it.")
    lock = locked(path.with_name(path.name + ".lock"), lambda who: _taken(path, who))
    with _told(path), lock, path.open("r+b" if path.exists() else "x+b") as file:
        before, end = read_results(file, path)
        file.truncate(file.seek(end))
        try:
            yield Results(file, before)
        except BaseException:
            if not file.seek(0, os.SEEK_END):  # nothing came of it
                with suppress(OSError):
                    path.unlink()
            raise
        os.fsync(file.fileno())


def read_results(file: IO[bytes], path: Path, most: int = sys.maxsize) -> tuple[Done, int]:
    """Which rows a results file has, and where its last complete line ends. What comes after `most` bytes does not
    count."""
    done, end = Done(), 0
    for number, line in enumerate(file, 1):
        if end >= most:
            break
        if not line.endswith(b"\n"):
            if not (line.startswith(_START) or _START.startswith(line)):
                raise SettingsError(f"{path} ends with something else than results. Choose another -o.")
            break
        try:
            record = parse_json(line) if line.startswith(_START) else {}
            done.add(int(record["id"].removeprefix("batch_req_")), record["custom_id"])
        except (ValueError, KeyError):
            raise SettingsError(f"{path}, line {number}, is no result of a batch. Choose another -o.") from None
        end += len(line)
    return done, end


def _taken(path: Path, who: str) -> Error:
    return SettingsError(f"{path} is being written by another job, {who}.")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as trouble:
        raise SourceError(f"{path} cannot be written: {trouble.strerror or trouble}.") from None
