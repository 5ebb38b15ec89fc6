"""Good files are read and written by the format; bad ones are refused in one sentence."""

import io
import json
import math
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wgemma import AdapterError, SourceError
from wgemma.files.safetensors import MAX_HEADER, Safetensors, write_safetensors


def file(header: Any, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def written() -> bytes:
    out = io.BytesIO()
    tensors = {"b": ((2, 3), array("f", range(6))), "a": ((1,), array("f", [0.5]))}
    write_safetensors(out, tensors, {"format": "pt"})
    return out.getvalue()


def test_what_is_written_is_read_back() -> None:
    with Safetensors.open(written()) as opened:
        assert opened.metadata == {"format": "pt"}
        assert list(opened.tensors) == ["a", "b"]
        assert opened.tensors["b"].shape == (2, 3)
        assert (opened.read("a"), opened.read("b")) == (array("f", [0.5]), array("f", range(6)))


def test_the_data_of_a_written_file_is_aligned() -> None:
    (length,) = struct.unpack_from("<Q", written())
    assert length % 8 == 0


def test_a_shape_that_does_not_fit_its_numbers_is_not_written() -> None:
    with pytest.raises(ValueError, match="takes 4"):
        write_safetensors(io.BytesIO(), {"a": ((2, 2), array("f", [1]))})


@pytest.mark.parametrize(("dtype", "kind"), [("F32", "<f4"), ("F16", "<f2")])
def test_floats_of_any_width_become_float32(dtype: str, kind: str) -> None:
    values = np.array([[1, -2], [0.5, 65504]], dtype=kind)
    data = file({"x": entry(dtype, [2, 2], [0, values.nbytes])}, values.tobytes())
    assert Safetensors.open(data).read("x").tobytes() == values.astype(np.float32).tobytes()


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    data = file({"x": entry("BF16", [2], [2, 6])}, struct.pack("<3H", 0, 0x3F80, 0xC040))
    assert list(Safetensors.open(data).read("x")) == [1, -3]


def test_every_adapter_of_the_fixtures_is_read_as_its_gguf_has_it(shared: Path) -> None:
    with Safetensors.open(shared / "lora/adapters/e2b-lora7/adapter_model.safetensors") as opened:
        assert len(opened.tensors) == 72
        assert {entry.dtype for entry in opened.tensors.values()} == {"F32"}


BAD = {
    "no file": (b"", "too short"),
    "cut length": (b"\0\0\0\0", "too short"),
    "a long header": (struct.pack("<Q", MAX_HEADER + 1) + bytes(64), "claims"),
    "a header beyond the file": (struct.pack("<Q", 100) + b"{}", "ends inside its header"),
    "no JSON": (file(b"{'a'"), "is not JSON"),
    "no UTF-8": (file(b'{"\xff": 1}'), "is not UTF-8"),
    "deep JSON": (file(b"[" * 100_000), "is not JSON"),
    "a list": (file([]), "not a JSON object"),
    "metadata that is text": (file({"__metadata__": "x"}), "not a JSON object"),
    "a name twice": (file(b'{"a": {}, "a": {}}'), "'a' appears twice"),
    "no name": (file({"": entry()}), "not a valid tensor name"),
    "an entry that is none": (file({"a": 1}), "'a' is not a JSON object"),
    "whole numbers": (file({"a": entry("I64")}), "type 'I64'; wgemma reads F32, F16, BF16"),
    "a type that is a list": (file({"a": entry(["F32"])}), "has type"),
    "a negative size": (file({"a": entry(shape=[-2, -2])}), "not a matrix"),
    "a size that is no number": (file({"a": entry(shape=[True, 4])}), "not a matrix"),
    "an empty matrix": (file({"a": entry(shape=[0, 2], offsets=[0, 0])}), "not a matrix"),
    "no shape": (file({"a": entry(shape=[], offsets=[0, 4])}), "not a matrix"),
    "too many dimensions": (file({"a": entry(shape=[1] * 5, offsets=[0, 4])}), "not a matrix"),
    "one offset": (file({"a": entry(offsets=[16])}), "not a span"),
    "a span the wrong way round": (file({"a": entry(offsets=[16, 0])}), "not a span"),
    "a span beyond the file": (file({"a": entry(offsets=[56, 72])}), "Is the download complete"),
    "a huge span": (file({"a": entry(shape=[1 << 60], offsets=[0, 1 << 62])}), "Is the download complete"),
    "a span no file has": (file({"a": entry(offsets=[0, 10**400])}), "not a span"),
    "a number of thousands of digits": (file(b'{"a": ' + b"9" * 5000 + b"}"), "is not JSON"),
    "an infinite span": (file({"a": entry(offsets=[0, math.inf])}), "a number is not finite"),
    "a span that is not a number": (file({"a": entry(offsets=[0, math.nan])}), "a number is not finite"),
    "a fraction of a span": (file({"a": entry(offsets=[0, 16.0])}), "not a span"),
    "a shape no file has": (file({"a": entry(shape=[10**400, 1])}), "not a matrix"),
    "sizes that are lists": (file({"a": entry(shape=[[[4]], 4])}), "not a matrix"),
    "nested metadata": (file(b'{"__metadata__":' + b"[" * 900 + b"]" * 900 + b"}"), "nested deeper"),
    "half a character": (file(b'{"\\ud800": {}}'), "not a valid tensor name"),
    "a terminal's own codes": (file({"\x1b[31m": entry()}), "not a valid tensor name"),
    "a span that is too long": (file({"a": entry(offsets=[0, 20])}), "takes 20 bytes"),
    "an overlap": (file({"a": entry(), "b": entry(offsets=[12, 28])}), "'b' overlaps 'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_sentence(case: str) -> None:
    data, reason = BAD[case]
    with pytest.raises(AdapterError, match=reason) as caught:
        Safetensors.open(data)
    assert str(caught.value).startswith("<bytes>: ")
    assert len(str(caught.value)) < 300


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        Safetensors.open(tmp_path / "x.safetensors")


@settings(max_examples=200)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 200))
def test_damage_never_escapes_as_anything_else(place: int, value: int, cut: int) -> None:
    data = bytearray(written())
    data[place % len(data)] = value
    try:
        with Safetensors.open(bytes(data[: len(data) - cut])) as opened:
            for name in opened.tensors:
                opened.read(name)
    except AdapterError:
        pass
