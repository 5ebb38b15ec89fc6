"""JSON from files: right, or refused with a reason."""

import pytest

from wgemma.files.json_text import parse_json


def test_json_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, 2.5, null, "\\u00fc"]}') == {"a": [1, 2.5, None, "ü"]}
    assert parse_json(b"[" * 31 + b"{}" + b"]" * 31)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"\xff\xfe[\0]\0", "is not valid JSON"),
        (b"9" * 5000, "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[" * 33 + b"]" * 33, "nests deeper than 32 levels"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nests deeper than 32 levels"),
    ],
)
def test_anything_else_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        parse_json(data)
