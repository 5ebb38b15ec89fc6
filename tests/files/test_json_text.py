"""JSON from files: right, or refused with a reason."""

import pytest

from wgemma.files.json_text import parse_json


def test_json_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2.5e3, null, true, "\\u00fc"]}') == {"a": [1, -2500.0, None, True, "ü"]}
    assert parse_json(b"[" * 63 + b"{}" + b"]" * 63)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON: Expecting value at column 1"),
        (b'{\n "a": x}', "not JSON: Expecting value at line 2, column 7"),
        (b"\xff", "not UTF-8"),
        (b"\xff\xfe[\0]\0", "not UTF-8"),
        (b"9" * 5000, "not JSON: a number is too long"),
        (b"1e999", "not JSON: a number is too large"),
        (b"NaN", "not JSON: a number is not finite"),
        (b"[-Infinity]", "not JSON: a number is not finite"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b'{"a":' * 100_000, "not JSON: nested too deeply"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64 levels"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested deeper than 64 levels"),
    ],
)
def test_anything_else_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        parse_json(data)
