"""Range headers are parsed exactly, however they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgemma.web.ranges import Unsatisfiable, parse_range

SIZE = 5_000_000_000


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, SIZE)),
        ("bytes=10-19", (10, 20)),
        ("BYTES= 10-19 ", (10, 20)),
        ("bytes=4999999999-", (SIZE - 1, SIZE)),
        ("bytes=4294967296-4294967299", (1 << 32, (1 << 32) + 4)),
        ("bytes=10-99999999999999999999999999999999", (10, SIZE)),
        ("bytes=-1", (SIZE - 1, SIZE)),
        ("bytes=-99999999999999999999999999999999", (0, SIZE)),
        ("bytes=0000000000000000000000000000000000010-19", (10, 20)),
        (None, None),
        ("lines=1-2", None),
        ("", None),
    ],
)
def test_what_is_asked_for(header: str | None, span: tuple[int, int] | None) -> None:
    assert parse_range(header, SIZE) == span


@pytest.mark.parametrize(
    "header",
    [
        "bytes=", "bytes=-", "bytes=-0", "bytes=5000000000-", "bytes=20-10", "bytes=0-1,4-5", "bytes=0-1,", "bytes=a-b",
        "bytes=0x10-0x20", "bytes=+1-2", "bytes=1-2-3", "bytes=--1", "bytes=1 - 2", "bytes=٣-٤", "bytes=1",
        "bytes=99999999999999999999999999999999-", "bytes=" + "9" * 10_000 + "-", "bytes=1.0-2.0",
    ],
)  # fmt: skip
def test_what_cannot_be_given(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(header, SIZE)


def test_an_empty_file_has_no_ranges() -> None:
    for header in ("bytes=0-", "bytes=-1", "bytes=0-0"):
        with pytest.raises(Unsatisfiable):
            parse_range(header, 0)


@given(st.text(alphabet="bytes=-, 0123456789\t", max_size=30), st.integers(0, 1 << 40))
def test_any_header_is_a_span_inside_the_file_or_refused(header: str, size: int) -> None:
    try:
        span = parse_range(header, size)
    except Unsatisfiable:
        return
    assert span is None or 0 <= span[0] < span[1] <= size
