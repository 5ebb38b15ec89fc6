"""Only regular files of a bounded size are read, and only JSON is JSON."""

import os
from pathlib import Path

import pytest

from wgemma.errors import DataError, SourceError
from wgemma.files.reading import regular_file


def refusal(path: Path | str, most: int = 10) -> str:
    with pytest.raises(DataError) as caught, regular_file(path, most, DataError):
        pass
    return str(caught.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    with regular_file(tmp_path / "x", 10) as file:
        assert file.read() == b"0123456789"


def test_whatever_may_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in refusal(tmp_path / "pipe")
    assert "is a device or a pipe" in refusal("/dev/zero")
    assert "is a folder" in refusal(tmp_path)


def test_a_file_too_large_is_refused_with_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 2000)
    assert refusal(tmp_path / "x", 1999).endswith("has 2,000 bytes; the limit is 1,999.")


def test_what_is_not_there_or_no_path_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing").endswith("cannot be read: No such file or directory.")
    assert refusal(str(tmp_path / "x") + "/y\0").endswith("it contains a zero byte.")
    (tmp_path / "file").write_bytes(b"")
    assert "cannot be read" in refusal(tmp_path / "file" / "x")


def test_a_disk_that_fails_meanwhile_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(SourceError, match="Input/output error"), regular_file(tmp_path / "x", 1):
        raise OSError(5, "Input/output error")
