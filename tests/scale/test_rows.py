"""Rows are read one by one, and whatever is wrong with one is told by its line."""

import io
import json
import tracemalloc

import pytest

from batch_files import chat
from wgemma.scale.job import Job
from wgemma.scale.results import Done, Record, Results
from wgemma.scale.rows import BadRow, Line, Request, read_lines, read_row, read_rows


def test_blank_lines_count_but_ask_for_nothing() -> None:
    file = io.BytesIO(b'\n{"a":1}\r\n   \n{"b":2}')
    assert list(read_lines(file)) == [Line(2, b'{"a":1}', 9), Line(4, b'{"b":2}', 7)]


def test_a_line_that_is_too_long_is_passed_over() -> None:
    file = io.BytesIO(b"1234567890123\n12\n123456789")
    assert list(read_lines(file, 5)) == [Line(1, None, 14), Line(2, b"12", 3), Line(3, None, 9)]
    assert isinstance(read_row(Line(1, None, 14)), BadRow)


def test_a_request_has_an_id_a_path_and_a_body() -> None:
    (row,) = read_rows(io.BytesIO(json.dumps(chat("a", "x")).encode()))
    assert isinstance(row, Request)
    assert (row.custom_id, row.path, row.body["max_tokens"]) == ("a", "/v1/chat/completions", 8)


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"custom_id": None}, "missing_custom_id", "custom_id"),
        ({"custom_id": 5}, "missing_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_method", "POST"),
        ({"url": "/v1/audio"}, "invalid_url", "/v1/embeddings"),
        ({"url": ["/v1/embeddings"]}, "invalid_url", "/v1/embeddings"),
        ({"body": []}, "invalid_body", "object"),
        ({"body": {"stream": True}}, "invalid_body", "stream"),
    ],
)
def test_a_bad_row_says_what_is_wrong(change: dict[str, object], code: str, word: str) -> None:
    row = read_row(Line(7, json.dumps({**chat("a", "x"), **change}).encode(), 99))
    assert isinstance(row, BadRow) and row.code == code
    assert row.message.startswith("Line 7") and word in row.message
    assert row.custom_id == (None if "custom_id" in change else "a")


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 200])
def test_what_is_no_json_object_is_a_bad_row(text: bytes) -> None:
    row = read_row(Line(3, text, len(text)))
    assert isinstance(row, BadRow) and row.code == "invalid_json_line" and "Line 3" in row.message


def test_memory_stays_flat_however_long_the_file_is() -> None:
    class Rows(io.RawIOBase):
        """Twenty thousand bad rows of 10 kB, made as they are read."""

        left = 20_000

        def readline(self, size: int | None = -1, /) -> bytes:
            self.left -= 1
            return b"" if self.left < 0 else b'{"custom_id":"%d","url":"%s"}\n' % (self.left, b"x" * 10_000)

    class Nowhere(io.BytesIO):
        def write(self, data: object, /) -> int:
            return 0

    job = Job(Rows(), Results(Nowhere(), Done()))  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        assert not list(job.requests())
        assert job.tally.failed == 20_000 and job.tally.size > 200_000_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_record_counts_once_per_id_and_once_per_line_without_one() -> None:
    done = Done()
    done.add(1, "a")
    done.add(2, None)
    assert done.has(9, "a") and done.has(2, None)
    assert not done.has(1, None) and not done.has(2, "2")
    assert len(done) == 2 and Record(b"", 0).failure == ""
