"""Files are written completely or not at all, and a header can be extended."""

import os
import stat
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from wgemma.files.gguf import Gguf
from wgemma.files.writing import growth, replacing, revised_header


def test_a_file_is_there_once_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x", b"new")]


@pytest.mark.parametrize("trouble", [OSError, KeyboardInterrupt])
def test_what_goes_wrong_leaves_the_old_file_alone(tmp_path: Path, trouble: type[BaseException]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(trouble), replacing(path) as file:
        file.write(b"new")
        raise trouble
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x", b"old")]


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, bool]] = []  # what was flushed, and whether the new name was there by then

    def fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        done.append((kind, (tmp_path / "x").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "x") as file:
        file.write(b"new")
    assert done == [("file", False), ("folder", True)]


def test_what_lies_in_the_way_is_removed_or_refused_but_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.part")
    with replacing(tmp_path / "x") as file:
        file.write(b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "x" / "y", tmp_path / "a\0b", Path("/"), Path("/dev/null")):
        with pytest.raises(OSError), replacing(path):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "x"]


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_longer_header_holds_one_tensor_more(alignment: int) -> None:
    metadata = {"general.alignment": alignment, "note": "a", "blk.1": "blk.1"}  # text that looks like the table
    tensors: dict[str, tuple[str, tuple[int, ...], bytes | None]] = {
        "blk.0": ("F32", (2, 2), bytes(range(16))), "blk.1": ("F32", (3,), bytes(range(12)))
    }  # fmt: skip
    data = write_gguf(metadata, tensors, alignment=alignment)
    old = Gguf.open(data)
    added = "more", old.tensors["blk.0"], "F32"
    head, start = revised_header(data, list(old.tensors.values()), {}, added, len(data), alignment)
    new = Gguf.open(head + data[start:] + bytes(-len(data) % alignment) + bytes(range(16, 32)))
    assert list(new.tensors) == ["blk.0", "blk.1", "more"]
    assert new.metadata == old.metadata
    assert [new.read(name) for name in new.tensors] == [
        bytes(range(16)), bytes(range(12)), bytes(range(16, 32))
    ]  # fmt: skip


@pytest.mark.parametrize("alignment", [32, 64])
def test_a_tensor_of_another_type_moves_those_behind_it(alignment: int) -> None:
    tensors: dict[str, tuple[str, tuple[int, ...], bytes | None]] = {
        "a": ("F32", (3,), bytes(range(12))), "b": ("F16", (32, 2), bytes(128)), "c": ("F32", (3,), bytes(range(12)))
    }  # fmt: skip
    data = write_gguf({"general.alignment": alignment}, tensors, alignment=alignment)
    old = Gguf.open(data)
    b = old.tensors["b"]
    head, start = revised_header(data, list(old.tensors.values()), {"b": "F32"}, None, len(data), alignment)
    assert growth(b, "F32", alignment) == 128
    new = Gguf.open(head + data[start : b.offset] + bytes(range(256)) + data[b.offset + b.nbytes :])
    assert [tensor.type for tensor in new.tensors.values()] == ["F32", "F32", "F32"]
    assert [new.read(name) for name in new.tensors] == [bytes(range(12)), bytes(range(256)), bytes(range(12))]


def test_a_table_of_other_tensors_is_noticed() -> None:
    data = write_gguf({}, {"a": ("F32", (8,), None), "b": ("F32", (8,), None)})
    tensors = Gguf.open(data).tensors
    for wrong in ([tensors["a"]], [tensors["b"], tensors["a"]]):
        with pytest.raises(ValueError, match="not the table's"):
            revised_header(data, wrong, {}, None, len(data), 32)
