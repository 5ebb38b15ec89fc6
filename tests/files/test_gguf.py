"""Good files are read as by the `gguf` package; bad ones are refused with the offset and the reason."""

import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wgemma.files.gguf as reader
from gguf_writer import string, value, write_gguf
from wgemma import Gguf, GgufError
from wgemma.files.arrays import NumberArray, StringArray
from wgemma.files.gguf import MAX_ENTRIES, MAX_STRING
from wgemma.files.ollama import Store
from wgemma.files.quants import BLOCK_FORMATS
from wgemma.files.sources import FileSource, MemorySource, check_span

BIG = 2**64 - 1


def file(
    *, keys: bytes = b"", key_count: int = 1, tensors: bytes = b"", tensor_count: int = 0, rest: bytes = b""
) -> bytes:
    """A version 3 file from raw parts; the counts are claims."""
    head = b"GGUF" + struct.pack("<IQQ", 3, tensor_count, key_count) + keys + tensors
    return head + bytes(-len(head) % 32) + rest


def key(name: str | bytes, kind: int, body: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + body


def listing(name: str, kind: int, count: int, body: bytes = b"") -> bytes:
    return key(name, 9, struct.pack("<IQ", kind, count) + body)


def row(name: str | bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0, dims: int | None = None) -> bytes:
    rank = len(shape) if dims is None else dims
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", rank, *shape, kind, offset)


def table(*rows: bytes, rest: bytes = bytes(1024), keys: bytes = b"", key_count: int = 0) -> bytes:
    """A file whose tensor table holds exactly `rows`, followed by a kibibyte of data."""
    return file(keys=keys, key_count=key_count, tensors=b"".join(rows), tensor_count=len(rows), rest=rest)


def alignment(number: int) -> bytes:
    return file(keys=key("general.alignment", 11, struct.pack("<q", number)))


def text_claim(length: int) -> bytes:
    return file(keys=key("k", 8, struct.pack("<Q", length) + PAD))


PAD = bytes(64)  # so that a claim is refused for its value, not because the file ends

HOSTILE = {
    # the beginning
    "empty file": (b"", "at byte 0: the file ends inside the magic number"),
    "four bytes": (b"GGUF", "at byte 4: the file ends inside the version"),
    "another magic": (b"PK\3\4" + PAD, "at byte 0: this is not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + PAD, "at byte 4: GGUF version 1 is not supported"),
    "version 4": (b"GGUF" + struct.pack("<I", 4) + PAD, "at byte 4: GGUF version 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF version 50331648 is not supported.*It is big-endian"),
    # counts
    "too many tensors": (file(tensor_count=MAX_ENTRIES + 1) + PAD, "at byte 8: 65537 tensors are more than the 65536"),
    "tensors that do not fit": (file(tensor_count=9) + PAD, "at byte 8: 9 tensors do not fit in the"),
    "all tensors there are": (file(tensor_count=BIG) + PAD, f"at byte 8: {BIG} tensors are more"),
    "too many keys": (file(key_count=MAX_ENTRIES + 1) + PAD, "at byte 16: 65537 metadata keys are more than the 65536"),
    "keys that do not fit": (file(key_count=90) + PAD, "at byte 16: 90 metadata keys do not fit in the"),
    # keys and values
    "an empty key": (file(keys=key("", 0, b"\0") + PAD), "at byte 24: a metadata key is empty"),
    "an endless key": (file(keys=struct.pack("<Q", BIG) + PAD), f"at byte 24: a metadata key claims {BIG} bytes"),
    "a key too long": (file(keys=key("k" * 65536, 0, b"\0") + PAD), "a metadata key claims 65536 bytes; at most 65535"),
    "a key not in UTF-8": (file(keys=key(b"\xff\xfe", 0, b"\0") + PAD), "at byte 32: a metadata key is not UTF-8"),
    "a key twice": (file(keys=2 * key("k", 0, b"\1"), key_count=2), "at byte 38: the key 'k' appears twice"),
    "an unknown value type": (file(keys=key("k", 13, PAD)), "at byte 33: 'k' has unknown value type 13"),
    "a string past the end": (text_claim(999), "at byte 37: the value of 'k' claims 999"),
    "a wrapping string": (text_claim(BIG - 7), f"the value of 'k' claims {BIG - 7} bytes"),
    "a string not in UTF-8": (file(keys=key("k", 8, string(b"\xc3("))), "at byte 45: the value of 'k' is not UTF-8"),
    "a boolean of 2": (file(keys=key("k", 7, b"\2") + PAD), "at byte 37: 'k' is a boolean but holds 2"),
    "a value cut off": (file(keys=key("key", 12, b"\0"))[:44], "the file ends inside the value of 'key'.*complete"),
    # arrays
    "an array of arrays": (file(keys=listing("k", 9, 1) + PAD), "at byte 37: 'k' is an array of arrays"),
    "elements of no type": (file(keys=listing("k", 77, 1) + PAD), "at byte 37: 'k' has elements of unknown type 7"),
    "numbers that do not fit": (file(keys=listing("k", 12, 20) + PAD), "at byte 41: 20 elements of 'k' do not fit"),
    "numbers that wrap": (file(keys=listing("k", 10, 2**61) + PAD), "elements of 'k' are more than the 8388608"),
    "strings that do not fit": (file(keys=listing("k", 8, 20) + PAD), "at byte 41: 20 strings in 'k' do not fit"),
    "strings without number": (file(keys=listing("k", 8, BIG) + PAD), f"{BIG} strings in 'k' are more than the"),
    "a string in an array past the end": (
        file(keys=listing("k", 8, 2, string("a") + struct.pack("<Q", 999) + PAD)),
        "at byte 58: string 1 of 'k' claims 999 bytes; at most",
    ),
    "a wrapping string in an array": (
        file(keys=listing("k", 8, 1, struct.pack("<Q", BIG) + PAD)),
        f"at byte 49: string 0 of 'k' claims {BIG} bytes",
    ),
    "an array cut off": (
        file(keys=listing("k", 8, 2, string("abc") + string("abcdef")))[:66],
        "at byte 60: the file ends inside 'k'",
    ),
    "booleans of 2": (file(keys=listing("k", 7, 2, b"\1\2")), "at byte 49: 'k' holds booleans other than 0 and 1"),
    # alignment
    "alignment 0": (alignment(0), "general.alignment is 0; it must be a power"),
    "alignment 48": (alignment(48), "general.alignment is 48; it must be"),
    "alignment 8192": (alignment(8192), "general.alignment is 8192; .* up to 4096"),
    "alignment 2^31": (alignment(2**31), "general.alignment is 2147483648"),
    "alignment -32": (alignment(-32), "general.alignment is -32"),
    "alignment as text": (file(keys=key("general.alignment", 8, string("32"))), "general.alignment is '32'"),
    "alignment true": (file(keys=key("general.alignment", 7, b"\1")), "general.alignment is True"),
    "alignment as a list": (file(keys=listing("general.alignment", 4, 1, bytes(4))), r"general.alignment is \[0\]"),
    # the tensor table
    "an empty name": (table(row("", (4,)), PAD), "at byte 24: a tensor name is empty"),
    "a name of 65 bytes": (table(row("n" * 65, (4,))), "at byte 24: a tensor name claims 65 bytes; at most 64"),
    "a name not in UTF-8": (table(row(b"\xff", (4,))), "at byte 32: a tensor name is not UTF-8"),
    "a name twice": (table(row("t", (4,)), row("t", (4,), offset=32)), "at byte 57: the tensor 't' appears twice"),
    "no dimensions": (table(row("t", (), dims=0), PAD), "at byte 33: 't' has 0 dimensions; 1 to 4 are allowed"),
    "five dimensions": (table(row("t", (1,) * 5)), "at byte 33: 't' has 5 dimensions"),
    "all dimensions there are": (table(row("t", (1,), dims=2**32 - 1)), "'t' has 4294967295 dimensions"),
    "an empty dimension": (table(row("t", (4, 0))), r"at byte 37: 't' has an empty dimension: \[4, 0\]"),
    "a type nobody knows": (table(row("t", (4,), kind=99)), "at byte 45: 't' has type number 99, which"),
    "a type wgemma lacks": (table(row("t", (256,), kind=16)), "IQ2_XXS, which wgemma cannot read; Q2_K would work"),
    "a row of half blocks": (table(row("t", (48,), kind=8)), "'t' has rows of 48 values, but Q8_0 blocks hold 32"),
    "an offset out of step": (table(row("t", (4,), offset=4)), "'t' starts at 4, not a multiple of 32"),
    "a span past the end": (table(row("t", (257,))), "'t' needs 1028 bytes, but the file ends at"),
    "an offset past the end": (table(row("t", (1,), offset=2**63)), "'t' needs 4 bytes, but the file ends at"),
    "a shape whose bytes wrap": (table(row("t", (2**62, 4))), f"'t' needs {2**66} bytes"),
    "a shape whose elements wrap": (table(row("t", (2**32,) * 4)), f"'t' needs {2**130} bytes"),
    "quantised bytes that wrap": (table(row("t", (2**63,), kind=2)), f"'t' needs {2**63 // 32 * 18} bytes"),
    "one tensor on another": (table(row("a", (16,)), row("b", (4,), offset=32)), "'b' overlaps 'a'"),
    "two tensors in one place": (table(row("a", (4,)), row("b", (4,))), "overlaps"),
    "a table cut off": (table(row("t", (4, 4)))[:60], "at byte 57: the file ends inside the offset of 't'"),
    # splits
    "one part of several": (
        write_gguf({"split.no": 1, "split.count": 3}),
        r"one of 3 parts \(split.count\). Open all of them together",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_with_the_place_and_the_reason(case: str) -> None:
    data, message = HOSTILE[case]
    with pytest.raises(GgufError, match=message):
        Gguf.open(data)


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"hello, this is text")
    with pytest.raises(GgufError, match=r"model\.gguf: at byte 0: this is not a GGUF file"):
        Gguf.open(path)


def test_a_refusal_is_short_and_carries_no_control_characters() -> None:
    for data in (
        file(keys=key("\x1b[2J" * 9000, 13, PAD)),
        table(row("\x1b[31m\nred", (4,), kind=99)),
        write_gguf({"general.alignment": "\x1b[2J" * 90_000}),
    ):
        with pytest.raises(GgufError) as refusal:
            Gguf.open(data)
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 300


def test_a_string_of_an_array_that_is_not_text_is_refused_when_it_is_read() -> None:
    opened = Gguf.open(file(keys=listing("k", 8, 2, string("fine") + string(b"\xff"))))
    strings = opened.metadata["k"]
    assert strings[0] == "fine"
    for read in (lambda: strings[1], lambda: list(strings), lambda: repr(strings)):
        with pytest.raises(GgufError, match="at byte 69: a string in an array is not UTF-8"):
            read()


def test_a_character_cut_in_two_by_the_end_of_a_string_is_no_text() -> None:
    """Not even if the next string's length would complete it."""
    strings = Gguf.open(file(keys=listing("k", 8, 2, string(b"\xe2\x96") + string("x" * 0x81)))).metadata["k"]
    with pytest.raises(GgufError, match="at byte 57: a string in an array is not UTF-8"):
        list(strings.batches())


def test_a_string_in_an_array_has_the_same_cap_as_any_other() -> None:
    data = listing("k", 8, 1, struct.pack("<Q", MAX_STRING + 1) + bytes(MAX_STRING + 1))
    with pytest.raises(GgufError, match=f"at most {MAX_STRING} are possible"):
        Gguf.open(file(keys=data))


class Pieces:
    """A source that returns little at first, like a slow server, and counts its reads."""

    def __init__(self, data: bytes, first_read: int, *, views: bool) -> None:
        self.name, self.size, self.first_read, self.reads = "<pieces>", len(data), first_read, 0
        self._data = memoryview(data)
        self._views = views
        self.furthest = 0

    async def read(self, offset: int, length: int) -> bytes | memoryview:
        check_span(self, offset, length)
        self.reads += 1
        self.furthest = max(self.furthest, offset + length)
        piece = self._data[offset : offset + length]
        return piece if self._views else bytes(piece)

    def close(self) -> None: ...


# -- bounds


@pytest.mark.parametrize("count", [2**31, 2**32, 2**61, BIG])
@pytest.mark.parametrize("kind", [0, 4, 8, 12])
def test_a_huge_claim_costs_no_memory(kind: int, count: int) -> None:
    data = file(keys=listing("k", kind, count) + PAD)
    tracemalloc.start()
    try:
        with pytest.raises(GgufError):
            Gguf.open(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_claims_in_a_sparse_file_of_a_tebibyte_are_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(file(keys=key("k", 8, struct.pack("<Q", 2**39))))
    with path.open("r+b") as sparse:
        sparse.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(GgufError, match="claims 549755813888 bytes; at most 16777216"):
            Gguf.open(path)
        assert tracemalloc.get_traced_memory()[1] < FileSource.first_read + (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_header_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER", 1 << 20)
    keys = [key(f"{i:04}", 0, b"\1") for i in range(65_000)]
    source = Pieces(file(keys=b"".join(keys), key_count=len(keys)), 4096, views=False)
    with pytest.raises(GgufError, match=r"at byte 1048568: .* at most 0 are possible"):
        Gguf.open(source)
    assert source.furthest == 1 << 20


# -- sources


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("first_read", [1, 3, 7, 64, 4096])
def test_a_file_that_comes_in_small_pieces_is_the_same(first_read: int, views: bool) -> None:
    data = write_gguf(
        {"general.name": "x" * 500, "words": ["a", "", "bcd" * 40] * 50, "flags": [True, False], "n": 3},
        {f"t{i}": ("F32", (i + 1,), bytes(4 * i + 4)) for i in range(40)},
    )
    whole = Gguf.open(data)
    source = Pieces(data, first_read, views=views)
    pieces = Gguf.open(source)
    assert pieces.metadata == whole.metadata
    assert pieces.tensors == whole.tensors
    assert source.reads <= 2 + math.ceil(math.log2(len(data)))


def test_offsets_past_four_gibibytes_are_exact() -> None:
    rows = 5 << 28
    header = table(row("big", (4, rows)), row("after", (8,), offset=16 * rows), rest=b"")

    class Huge:
        name, first_read = "<huge>", 1 << 20
        size = len(header) + 16 * rows + 32

        async def read(self, offset: int, length: int) -> bytes:
            check_span(self, offset, length)
            if offset < len(header):
                return header[offset : offset + length].ljust(length, b"\0")
            return bytes((offset + i) % 251 for i in range(length))

        def close(self) -> None: ...

    opened = Gguf.open(Huge())
    after = opened.tensor("after")
    assert opened.tensor("big").nbytes == 16 * rows > 1 << 34
    assert after.offset == len(header) + 16 * rows
    assert opened.read("after") == bytes((after.offset + i) % 251 for i in range(32))


def test_a_tensor_that_is_not_there_is_named() -> None:
    with pytest.raises(GgufError, match=r"there is no tensor 'blk\.0\.x' in this file"):
        Gguf.open(write_gguf()).read("blk.0.x")


def test_opening_closes_what_it_refuses() -> None:
    source = MemorySource(b"nonsense")
    with pytest.raises(GgufError):
        Gguf.open(source)
    assert source.size == 0


# -- good files


def test_version_2_has_the_same_layout() -> None:
    metadata, tensors = {"general.name": "x"}, {"t": ("F16", (3, 2), b"0123456789ab")}
    old, new = Gguf.open(write_gguf(metadata, tensors, version=2)), Gguf.open(write_gguf(metadata, tensors))
    assert (old.version, new.version) == (2, 3)
    assert (old.metadata, old.tensors, old.read("t")) == (new.metadata, new.tensors, b"0123456789ab")


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_every_power_of_two_up_to_4096_aligns(alignment: int) -> None:
    tensors = {"a": ("F32", (1,), b"aaaa"), "b": ("F32", (1,), b"bbbb")}
    opened = Gguf.open(write_gguf({"general.alignment": alignment}, tensors, alignment=alignment))
    assert (opened.read("a"), opened.read("b")) == (b"aaaa", b"bbbb")
    assert all(tensor.offset % alignment == 0 for tensor in opened.tensors.values())


def test_a_whole_file_may_say_that_it_is_the_only_part() -> None:
    assert Gguf.open(write_gguf({"split.count": 1})).metadata == {"split.count": 1}


def test_arrays_behave_as_sequences() -> None:
    metadata = Gguf.open(write_gguf({"n": [1, 2, 3], "b": [True, False], "s": ["x", "", "▁é"], "e": []})).metadata
    numbers, flags, words = metadata["n"], metadata["b"], metadata["s"]
    assert isinstance(numbers, NumberArray)
    assert isinstance(words, StringArray)
    assert (list(numbers), numbers[-1], numbers[1:]) == ([1, 2, 3], 3, [2, 3])
    assert flags[0] is True
    assert flags[:] == [True, False]
    assert [repr(flag) for flag in flags] == ["True", "False"]
    assert words.utf8(2) == "▁é".encode()
    assert [*words.batches()] == [[b"x", b"", "▁é".encode()]]
    assert StringArray.of(words) == words
    assert (list(words), words[-1], words[:2], "▁é" in words) == (["x", "", "▁é"], "▁é", ["x", ""], True)
    assert (numbers == (1, 2, 3), numbers == "123", words == ["x"]) == (True, False, False)
    assert repr(numbers) == "[1, 2, 3]"
    for sequence in (numbers, words):
        with pytest.raises(IndexError):
            sequence[3]


KEYS = st.text(min_size=1, max_size=20)
SCALARS = st.one_of(
    st.text(max_size=40), st.booleans(), st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False)
)
VALUES = st.one_of(
    SCALARS,
    st.lists(st.text(max_size=12), max_size=8),
    st.lists(st.integers(0, 2**32 - 1), max_size=8),
    st.lists(st.booleans(), max_size=8),
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...], bytes | None]]:
    found: dict[str, tuple[str, tuple[int, ...], bytes | None]] = {}
    for name in draw(st.lists(st.text("abc.é", min_size=1, max_size=12), unique=True, max_size=5)):
        block = draw(st.sampled_from(BLOCK_FORMATS))
        rest = draw(st.lists(st.integers(1, 4), max_size=3))
        found[name] = (block.name, (block.elements * draw(st.integers(1, 3)), *rest), None)
    return found


@given(st.dictionaries(KEYS.filter(lambda k: not k.startswith(("general.", "split."))), VALUES, max_size=6), tensors())
def test_what_was_written_is_what_is_read(metadata: dict[str, Any], written: Any) -> None:
    opened = Gguf.open(write_gguf(metadata, written))
    assert opened.metadata == metadata
    assert {name: (t.type, t.shape) for name, t in opened.tensors.items()} == {n: t[:2] for n, t in written.items()}


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7)]),
)
@settings(max_examples=400)
def test_random_bytes_open_or_are_refused(noise: bytes, start: bytes) -> None:
    try:
        Gguf.open(start + noise)
    except GgufError as refusal:
        assert "at byte" in str(refusal)


NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from([2**31, 2**32, 2**63, BIG]), st.integers(0, BIG))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=6), st.integers(0, 14), st.binary(max_size=24)), max_size=4),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(NUMBERS, min_size=1, max_size=4), st.integers(0, 42), NUMBERS),
        max_size=4,
    ),
    st.integers(0, 5),
)
@settings(max_examples=400)
def test_files_of_the_right_form_with_wild_fields_open_or_are_refused(keys: Any, rows: Any, extra: int) -> None:
    data = file(
        keys=b"".join(key(*entry) for entry in keys),
        key_count=len(keys) + extra // 5,
        tensors=b"".join(row(name, tuple(shape), kind, offset) for name, shape, kind, offset in rows),
        tensor_count=len(rows) + extra // 4 % 2,
        rest=bytes(256),
    )
    try:
        opened = Gguf.open(data)
    except GgufError:
        return
    for tensor in opened.tensors.values():
        assert len(opened.read(tensor.name)) == tensor.nbytes <= len(data)


# -- agreement with the gguf package


def assert_agreement(path: Path) -> None:
    theirs, ours = gguf.GGUFReader(path), Gguf.open(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        value = field.contents()
        assert ours.metadata[name] == value or (value != value and ours.metadata[name] != ours.metadata[name]), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist())
        assert (mine.type, mine.offset, mine.nbytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert ours.read(tensor.name) == tensor.data.tobytes()
    ours.close()


@pytest.mark.parametrize("name", ["gemma4:tiny", "gemma4:legacy", "hf.co/acme/gemma4-micro-GGUF:Q8_0", "llama-mini"])
def test_a_model_of_the_store_is_read_as_the_gguf_package_reads_it(name: str, data: Path) -> None:
    model = Store(data / "ollama-store").model(name)
    for path in (model.model, *model.projectors):
        assert_agreement(path)


def test_all_shared_models_and_adapters_are_read_as_the_gguf_package_reads_them(shared: Path) -> None:
    paths = [*sorted((shared / "models").glob("*.gguf")), *sorted((shared / "lora" / "adapters").glob("*.gguf"))]
    assert len(paths) >= 25
    for path in paths:
        assert_agreement(path)


def test_a_written_value_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(write_gguf({"a": "é", "b": [1, 2], "c": ["x"], "d": True}, {"t": ("Q8_0", (32, 2), None)}))
    assert value(True) == b"\7\0\0\0\1"
    assert_agreement(path)
