"""Every kind of adapter file gives the same pairs, round-trips, and is refused by models it does not fit."""

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapter_maker import adapter, difference, largest_error, pair
from gguf_writer import write_gguf
from range_server import good, serve
from wgemma import AdapterError, Gguf
from wgemma.files.adapter_peft import open_peft
from wgemma.files.adapters import (
    AdapterFile,
    Pair,
    aread_adapter,
    check_fits,
    fitting_adapter,
    open_adapter,
    read_adapter,
    read_peft,
    write_gguf_adapter,
    write_peft,
)
from wgemma.files.locate import locate
from wgemma.files.sources import MemorySource
from wgemma.sync import run

ADAPTERS = {
    "e2b-lora7": "tiny-e2b", "e2b-lora9": "tiny-e2b", "e2b-rslora": "tiny-e2b", "31b-lora7": "tiny-31b",
    "31b-pattern": "tiny-31b", "26b-lora7": "tiny-26b-a4b",
}  # fmt: skip


@pytest.fixture
def folder(shared: Path) -> Path:
    return shared / "lora" / "adapters"


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_folder_and_the_gguf_of_an_adapter_are_the_same(folder: Path, name: str) -> None:
    peft, gguf = read_adapter(folder / name), read_adapter(str(folder / f"{name}.gguf"))
    assert peft.name == gguf.name == name
    assert list(peft.pairs) == list(gguf.pairs)
    assert largest_error(gguf, peft) < 1e-6
    assert peft.base == ADAPTERS[name]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_written_as_it_was_read(folder: Path, tmp_path: Path, name: str) -> None:
    original = read_adapter(folder / name)
    write_peft(original, tmp_path)
    write_gguf_adapter(original, tmp_path / f"{name}.gguf")
    assert read_adapter(tmp_path, name).pairs == original.pairs
    again = read_adapter(tmp_path / f"{name}.gguf")
    assert (again.name, again.base) == (name, original.base)
    assert largest_error(again, original) < 1e-6
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", f"{name}.gguf"}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_fits_its_own_base_alone(shared: Path, folder: Path, name: str) -> None:
    read = read_adapter(folder / name)
    for base in set(ADAPTERS.values()):
        with Gguf.open(shared / "models" / f"{base}-Q4_K_M.gguf") as model:
            if base == ADAPTERS[name]:
                check_fits(read, model.tensors)
            else:
                with pytest.raises(AdapterError):
                    check_fits(read, model.tensors)


def test_patterns_give_single_modules_their_own_rank_and_scale(folder: Path) -> None:
    pairs = read_adapter(folder / "31b-pattern").pairs
    found = {name: (pairs[f"blk.1.{name}.weight"].rank, pairs[f"blk.1.{name}.weight"].scale) for name in (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"
    )}  # fmt: skip
    assert found == {
        "attn_q": (8, 4), "attn_k": (4, 2), "attn_v": (4, 4), "attn_output": (3, 8 / 3), "ffn_down": (2, 0.5)
    }  # fmt: skip


def test_ollamas_adapter_layer_is_read(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    files = locate("someone/mygemma:v1")
    read = read_adapter(files.adapters[0], "mygemma")
    assert read.name == "mygemma"
    assert {name: (pair.rank, pair.scale) for name, pair in read.pairs.items()} == {
        "blk.0.attn_q.weight": (4, 2), "blk.3.ffn_down.weight": (4, 2)
    }  # fmt: skip
    with Gguf.open(files.model) as model:
        check_fits(read, model.tensors)


# -- where an adapter comes from


def made() -> AdapterFile:
    return adapter(blk__0__attn_q=pair(8, 6))


def test_a_file_of_a_peft_folder_stands_for_the_folder(tmp_path: Path) -> None:
    write_peft(made(), tmp_path / "mine")
    for name in ("mine", "mine/adapter_model.safetensors", "mine/adapter_config.json"):
        read = read_adapter(str(tmp_path / name))
        assert (read.name, read.pairs) == ("mine", made().pairs)


def test_the_folder_one_is_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_peft(made(), tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    assert read_adapter(".").name == "mine"


def test_a_page_reads_from_a_source(tmp_path: Path) -> None:
    write_gguf_adapter(made(), tmp_path / "x.gguf")
    source = MemorySource((tmp_path / "x.gguf").read_bytes(), "mine.gguf")
    read = run(aread_adapter(source))
    assert (read.name, read.pairs) == ("mine", made().pairs)
    write_peft(made(), tmp_path)
    config, weights = [(tmp_path / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")]
    assert run(read_peft(config, weights, "mine")).pairs == made().pairs


def test_an_adapter_may_lie_on_the_web(tmp_path: Path) -> None:
    write_gguf_adapter(made(), tmp_path / "x.gguf")
    with serve(good((tmp_path / "x.gguf").read_bytes())) as url:
        read = read_adapter(url)
    assert (read.name, read.pairs) == ("model", made().pairs)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no adapter_config.json in this folder. An adapter is a PEFT folder or a .gguf file."),
        ({"adapter_config.json": b"{}"}, "no adapter_model.safetensors in this folder."),
        ({"adapter_config.json": b"{}", "adapter_model.bin": b""}, "could run code"),
        ({"adapter_config.json": b" " * (5 << 20), "adapter_model.safetensors": b""}, "is too large"),
        ({"adapter_config.json": b"{", "adapter_model.safetensors": b""}, "is not JSON"),
        ({"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": b""}, "too short"),
    ],
)
def test_a_folder_that_is_no_adapter_says_why(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(AdapterError) as caught:
        read_adapter(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert str(caught.value).count(str(tmp_path)) == 1
    assert reason in str(caught.value)


def test_an_unfinished_training_names_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (9, 22):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/adapter_config.json").write_bytes(b"{}")
    with pytest.raises(AdapterError, match=r"Training has left checkpoint-22 in it: name that\.$"):
        read_adapter(tmp_path)


def test_what_is_not_there_and_what_is_no_gguf_are_told_once(tmp_path: Path) -> None:
    with pytest.raises(AdapterError) as caught:
        read_adapter(tmp_path / "x.gguf")
    assert str(caught.value) == f"{tmp_path / 'x.gguf'}: no such file."
    (tmp_path / "x.gguf").write_bytes(b"no such format")
    with pytest.raises(AdapterError, match="is not a GGUF file") as caught:
        read_adapter(tmp_path / "x.gguf")
    assert str(caught.value).count("x.gguf") == 1


@pytest.mark.parametrize("write", [write_peft, write_gguf_adapter])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, write: Callable[[AdapterFile, Path], None]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AdapterError, match="cannot be written: Not a directory"):
        write(made(), tmp_path / "file" / "x")


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    bad = made()
    bad.pairs["blk.0.attn_q.weight"].b[3] = float("nan")
    write_peft(bad, tmp_path)
    with pytest.raises(AdapterError, match=r"the adapter of blk\.0\.attn_q\.weight contains NaN or Inf"):
        read_adapter(tmp_path)


# -- whether it fits


MODEL = Gguf.open(
    write_gguf(
        {},
        {
            "token_embd.weight": ("F32", (8, 10), None),
            "blk.0.attn_q.weight": ("F32", (8, 6), None),
            "blk.0.attn_k.weight": ("F32", (8, 6), None),
            "blk.1.attn_q.weight": ("F32", (8, 6), None),
            "blk.1.ffn_down_exps.weight": ("F32", (4, 8, 3), None),
        },
    )
).tensors


def test_what_fits_passes() -> None:
    fitting = adapter(
        token_embd=pair(8, 10),
        blk__1__attn_q=pair(8, 6),
        blk__1__ffn_down_exps=pair(4, 8, experts=3),
        output=pair(8, 10),  # the embedding is also the output matrix
    )
    check_fits(fitting, MODEL)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"blk__1__attn_k": pair(8, 6)}, "not have: that layer shares its keys or values with another."),
        ({"blk__7__attn_q": pair(8, 6)}, "blk.7.attn_q.weight, which this model does not have: it has 2 layers."),
        ({"blk__0__inp_gate": pair(8, 6)}, "made changes blk.0.inp_gate.weight, which this model does not have."),
        ({"blk__0__attn_q": pair(8, 7)}, "a blk.0.attn_q.weight of shape [8, 7], but the model's is [8, 6]."),
        ({"blk__0__attn_q": pair(6, 8)}, "of shape [6, 8], but the model's is [8, 6]."),
        ({"blk__1__ffn_down_exps": pair(4, 8, experts=2)}, "of shape [4, 8, 2], but the model's is [4, 8, 3]."),
        ({"blk__0__attn_q": pair(8, 6, rank=9)}, "blk.0.attn_q.weight with rank 9; more than 8 adds nothing."),
        ({"token_embd": pair(8, 10, rank=9)}, "token_embd.weight with rank 9; more than 8 adds nothing."),
        ({"output": pair(8, 9)}, "a output.weight of shape [8, 9], but the model's is [8, 10]."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(changed: dict[str, Pair], reason: str) -> None:
    with pytest.raises(AdapterError) as caught:
        check_fits(adapter(**changed), MODEL)
    assert reason in str(caught.value)


def sparse_gguf(path: Path) -> Path:
    """An adapter of 96 GB that takes no room on the disk."""
    kinds = {"general.type": "adapter", "general.architecture": "gemma4", "adapter.type": "lora"}
    a = ("F32", (8, 2), None)
    b = ("F32", (2, 12 << 30), b"")
    data = write_gguf(kinds, {"blk.0.attn_q.weight.lora_a": a, "blk.0.attn_q.weight.lora_b": b})
    path.write_bytes(data)
    os.truncate(path, len(data) + (96 << 30))
    return path


def sparse_peft(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    q = "base_model.model.model.layers.0.self_attn.q_proj"
    sizes = {"A": [2, 8], "B": [12 << 30, 2]}
    spans = {"A": [0, 64], "B": [64, 64 + (96 << 30)]}
    entries = {
        f"{q}.lora_{half}.weight": {"dtype": "F32", "shape": sizes[half], "data_offsets": spans[half]} for half in "AB"
    }
    header = json.dumps(entries).encode()
    path = folder / "adapter_model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 64 + (96 << 30))
    return folder


@pytest.mark.parametrize("make", [sparse_gguf, sparse_peft])
def test_a_huge_adapter_of_the_wrong_shape_is_not_read(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "huge")
    assert open_adapter(path).rank == 2
    tracemalloc.start()
    try:
        with pytest.raises(AdapterError, match=r"huge does not fit this model.*\[8, 12884901888\]"):
            run(fitting_adapter(MODEL, path, None))
        with pytest.raises(AdapterError, match="huge does not fit this model"):
            run(fitting_adapter(MODEL, open_adapter(path), None))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_an_adapter_that_is_open_or_read_fits_like_its_file(tmp_path: Path) -> None:
    write_gguf_adapter(made(), tmp_path / "x.gguf")
    for target in (tmp_path / "x.gguf", open_adapter(tmp_path / "x.gguf"), read_adapter(tmp_path / "x.gguf")):
        assert run(fitting_adapter(MODEL, target, None)).pairs == made().pairs


def test_a_file_that_shrinks_before_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf_adapter(made(), path)
    opened = open_adapter(path)
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(AdapterError, match=r"x\.gguf is shorter than before") as caught:
        run(opened.read())
    assert str(caught.value).count("x.gguf") == 1


@pytest.mark.parametrize("target", ["a\0b", "x" * 5000, "~nobody-of-that-name/x.gguf", 5, None, "\ud800"])
def test_what_is_no_path_is_refused_in_a_sentence(target: Any) -> None:
    with pytest.raises(AdapterError):
        read_adapter(target)
    if isinstance(target, str) and "\0" in target:
        with pytest.raises(AdapterError, match="zero byte"):
            write_peft(made(), target)
        with pytest.raises(AdapterError, match="zero byte"):
            write_gguf_adapter(made(), target)


def test_an_adapter_of_many_experts_opens_quickly(tmp_path: Path) -> None:
    one = {"dtype": "F32", "shape": [1, 1]}
    entries = {
        f"model.layers.{layer}.experts.lora_{half}.weight": {**one, "data_offsets": [at, at + 4]}
        for layer in range(4000)
        for half, at in (("A", 8 * layer), ("B", 8 * layer + 4))
    }
    header = json.dumps(entries).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(32_000)
    settings = {"peft_type": "LORA", "r": 1, "target_parameters": ["experts.down_proj", *map(str, range(100_000))]}
    began = time.perf_counter()
    assert len(run(open_peft(json.dumps(settings).encode(), weights, "many")).pairs) == 4000
    assert time.perf_counter() - began < 4


def test_a_pair_knows_its_own_shape() -> None:
    assert pair(8, 6, rank=3, scale=8 / 3).alpha == 8
    with pytest.raises(ValueError, match="its shape takes"):
        Pair(2, 8, 7, pair(8, 6).a, pair(8, 6).b, 1.0)


def test_an_adapter_counts_itself() -> None:
    made = adapter(blk__0__attn_q=pair(8, 6, rank=3), blk__1__attn_q=pair(8, 6, rank=2))
    assert (made.rank, made.parameters) == (3, 14 * 3 + 14 * 2)
    assert difference(made.pairs["blk.0.attn_q.weight"]).shape == (6, 8)


def test_an_old_adapter_stays_when_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    write_peft(made(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "adapter_model.safetensors.part").mkdir()  # so the second file cannot be opened
    with pytest.raises(AdapterError, match="cannot be written"):
        write_peft(adapter(blk__1__attn_q=pair(8, 6)), tmp_path)
    (tmp_path / "adapter_model.safetensors.part").rmdir()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_two_files_of_a_folder_read_as_the_folder_does(folder: Path) -> None:
    """A page has no folders, only files the user picked."""
    config, weights = (
        MemorySource((folder / "e2b-lora7" / name).read_bytes())
        for name in ("adapter_config.json", "adapter_model.safetensors")
    )
    assert run(aread_adapter((config, weights), "mine")).pairs == read_adapter(folder / "e2b-lora7").pairs
    with pytest.raises(AdapterError, match="too large to be an adapter_config"):
        run(aread_adapter((MemorySource(bytes((4 << 20) + 1)), weights)))
