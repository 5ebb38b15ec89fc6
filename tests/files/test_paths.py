"""Paths as users write them: whatever no file can be called is refused with a sentence."""

from pathlib import Path
from typing import Any

import pytest

from wgemma.errors import DataError, SourceError
from wgemma.files.paths import mode, user_path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a\0b", "zero byte"),
        (Path("a\0b"), "zero byte"),
        ("a\ud800b", "surrogate"),
        (b"a", "not a path"),
        (5, "not a path"),
        (None, "not a path"),
    ],
)
def test_what_no_file_can_be_called_is_refused(path: Any, why: str) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        user_path(path)
    str(caught.value).encode()  # can be printed


def test_the_caller_chooses_the_error() -> None:
    with pytest.raises(DataError, match="zero byte"):
        user_path("\0", DataError)


def test_a_path_is_taken_as_it_is_but_for_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_path("a/b") == Path("a/b")
    assert user_path(Path("~/b")) == tmp_path / "b"
    assert user_path("~nobody-of-that-name/b") == Path("~nobody-of-that-name/b")


def test_a_name_that_is_not_utf_8_is_a_path() -> None:
    assert user_path("\udcff") == Path("\udcff")


def test_what_cannot_be_reached_has_no_mode(tmp_path: Path) -> None:
    assert mode(tmp_path)
    assert not mode(tmp_path / "missing")
    assert not mode(Path("x" * 5000))
