"""A file in parts reads like the whole one, given any of them; parts that do not fit are refused with a sentence."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from typing import Any

import pytest

import wgemma
from gguf_parts import cut, part_name, write_parts
from gguf_writer import write_gguf
from range_server import send, serve
from wgemma.errors import Error, GgufError, SourceError
from wgemma.files.download import readable
from wgemma.files.gguf import Gguf
from wgemma.files.parts import JoinedSource, part_names, part_urls, whole_name
from wgemma.files.sources import MemorySource
from wgemma.sync import run

TENSORS = {f"blk.{i}.attn_norm.weight": ("F32", (3 + i,), bytes([i + 1] * 4 * (3 + i))) for i in range(6)}
WHOLE = write_gguf({"general.architecture": "gemma4", "general.name": "x", "list": [1, 2]}, TENSORS)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write_parts(tmp_path, Gguf.open(WHOLE), 3)


@pytest.mark.parametrize("given", range(3))
def test_any_part_opens_the_whole_file(parts: list[Path], given: int) -> None:
    whole = Gguf.open(WHOLE)
    with Gguf.open(parts[given]) as gguf:
        assert gguf.parts == 3
        assert gguf.metadata.items() >= whole.metadata.items()
        assert [(t.name, t.type, t.shape) for t in gguf.tensors.values()] == [
            (t.name, t.type, t.shape) for t in whole.tensors.values()
        ]
        assert all(gguf.read(name) == whole.read(name) for name in whole.tensors)


def test_a_list_names_all_parts_in_any_order(parts: list[Path]) -> None:
    with Gguf.open([parts[2], parts[0], parts[1]]) as gguf:
        assert gguf.read("blk.5.attn_norm.weight") == bytes([6] * 32)
        assert gguf.source.name == str(parts[0])


def test_the_first_part_may_hold_no_tensor(tmp_path: Path) -> None:
    numbers = {"split.count": 2, "split.tensors.count": len(TENSORS)}
    first = write_gguf({"general.architecture": "gemma4", "split.no": 0, **numbers})
    with Gguf.open((first, write_gguf({"split.no": 1, **numbers}, TENSORS))) as gguf:
        assert gguf.read("blk.0.attn_norm.weight") == bytes([1] * 12)


def renumbered(data: bytes, **numbers: int) -> bytes:
    """A part with other numbers."""
    part = run(Gguf._alone(data))
    held = {name: (t.type, t.shape, part.read(name)) for name, t in part.tensors.items()}
    return write_gguf({**part.metadata, **{key.replace("_", "."): number for key, number in numbers.items()}}, held)


BAD: dict[str, tuple[Callable[[list[bytes]], Sequence[bytes]], str]] = {
    "one is missing": (lambda p: p[:2], "3 parts, and part 3 is missing"),
    "one alone": (lambda p: p[1:2], "3 parts, and parts 1, 3 are missing"),
    "one is doubled": (lambda p: [p[0], p[1], p[1]], "are both part 2 of 3"),
    "one is from fewer parts": (
        lambda p: [p[0], renumbered(p[1], split_count=2), p[2]],
        "one of 2 parts, but .* is one of 3: they belong to different files",
    ),
    "one is a whole file": (lambda p: [*p[:2], WHOLE], "is not a part of a larger file"),
    "the first is a whole file": (lambda p: [WHOLE, *p[1:]], "is not a part of a larger file"),
    "a number beyond the count": (lambda p: [p[0], renumbered(p[1], split_no=7), p[2]], "not a part of a larger file"),
    "another model's tensors": (
        lambda p: [p[0], renumbered(p[0], split_no=1), p[2]],
        "both hold the tensor 'blk.0.attn_norm.weight'",
    ),
    "other metadata": (
        lambda p: [p[0], write_gguf({"general.architecture": "llama", "split.no": 1, "split.count": 3}), p[2]],
        "another file than .*'general.architecture' differ",
    ),
    "too few tensors": (
        lambda p: [p[0], write_gguf({"split.no": 1, "split.count": 3}), p[2]],
        "hold 4 tensors, but its split.tensors.count is 6",
    ),
    "one is cut off": (lambda p: [p[0], p[1][:-8], p[2]], "the file ends at .*Is the download complete"),
    "more than anyone has": (
        lambda p: [write_gguf({"split.no": 0, "split.count": 60000})],
        "one of 60000 parts .*at most 256",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_parts_that_do_not_fit_are_refused(case: str) -> None:
    change, message = BAD[case]
    with pytest.raises(GgufError, match=message):
        Gguf.open(list(change(cut(Gguf.open(WHOLE), 3))))


def test_a_part_without_a_name_knows_no_others() -> None:
    with pytest.raises(GgufError, match=r"one of 3 parts .*Open all of them together"):
        Gguf.open(cut(Gguf.open(WHOLE), 3)[1])


def test_a_blob_looks_for_no_others(parts: list[Path]) -> None:
    blob = parts[0].rename(parts[0].with_name(f"sha256-{'a' * 64}"))
    with pytest.raises(GgufError, match=r"one of 3 parts .* the others are missing. Get the model again"):
        Gguf.open(blob)


def test_a_list_of_one_part_looks_for_no_others(parts: list[Path]) -> None:
    with pytest.raises(GgufError, match="3 parts, and parts 2, 3 are missing"):
        Gguf.open([parts[0]])


def test_the_metadata_says_which_part_is_which(parts: list[Path]) -> None:
    contents = [path.read_bytes() for path in parts]
    for path, data in zip(parts, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(data)
    for path in parts:
        with Gguf.open(path) as gguf:
            assert gguf.metadata["general.name"] == "x"
            assert gguf.read("blk.5.attn_norm.weight") == bytes([6] * 32)


def test_a_missing_file_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(SourceError, match=f"is one of 3 parts, and one is missing. .*{parts[1].name}: no such file"):
        Gguf.open(parts[2])


def test_a_renamed_part_is_refused(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="its name does not say"):
        Gguf.open(parts[0].rename(tmp_path / "model.gguf"))
    parts[0].write_bytes(parts[1].read_bytes())
    with pytest.raises(GgufError, match="are both part 2 of 3"):
        Gguf.open(parts[0])


def test_nothing_stays_open_after_a_refusal(parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(Gguf, "close", lambda self: closed.append(self.source.name))
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(GgufError):
        Gguf.open(parts[0])
    assert sorted(closed) == sorted(map(str, parts))


def test_names_of_parts() -> None:
    assert part_names("a-00002-of-00003.gguf") == [f"a-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in ("a.gguf", "a-00001-of-00001.gguf", "a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-1-of-3.gguf"):
        assert part_names(name) == [name]
    assert part_names("a-00001-of-99999.gguf") == ["a-00001-of-99999.gguf"]
    assert part_names("A-00002-OF-00002.GGUF") == ["A-00001-OF-00002.GGUF", "A-00002-OF-00002.GGUF"]
    assert whole_name("a-00002-of-00003.gguf") == "a.gguf" and whole_name("a.gguf") == "a.gguf"


def test_urls_of_parts_keep_their_query_and_one_digest() -> None:
    url = f"https://host/a%20b/m-00001-of-00002.gguf?x=1#sha256={'a' * 64}"
    assert part_urls(url) == [url, "https://host/a%20b/m-00002-of-00002.gguf?x=1"]
    assert part_urls("http://[bad/m-00001-of-00002.gguf") == ["http://[bad/m-00001-of-00002.gguf"]


# -- reading


class Told(MemorySource):
    """Notes what is announced."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.told: list[Any] = []

    def expect(self, spans: Any) -> None:
        self.told.append(list(spans))

    def expect_rows(self, offsets: Sequence[int], length: int) -> None:
        self.told.append((list(offsets), length))


def test_a_joined_source_reads_within_its_parts() -> None:
    dice = Random(4)
    pieces = [dice.randbytes(n) for n in (5, 0, 17, 8)]
    joined, data = JoinedSource([MemorySource(piece) for piece in pieces]), b"".join(pieces)
    assert joined.size == 30
    for start, length in ((0, 5), (5, 17), (9, 3), (22, 8), (29, 1), (30, 0)):
        assert run(joined.read(start, length)) == data[start : start + length]
        assert run(joined.piece(start, length)) == data[start : start + length]
    assert run(joined.rows([7, 5, 20], 2)) == data[7:9] + data[5:7] + data[20:22] + bytes(2)
    for start, length in ((4, 2), (-1, 1), (30, 1), (0, 31)):
        with pytest.raises(SourceError):
            run(joined.read(start, length))


def test_a_part_reads_ahead_once_it_is_read_from() -> None:
    sources = [Told(bytes(10)) for _ in range(3)]
    joined = JoinedSource(sources)
    joined.expect([(2, 3), (12, 4), (6, 1)])
    assert [source.told for source in sources] == [[[(2, 3), (6, 1)]], [], [[]]]
    run(joined.piece(12, 4))
    run(joined.piece(2, 3))
    assert [source.told for source in sources] == [[[(2, 3), (6, 1)]], [[(2, 4)]], [[]]]
    joined.expect_rows([21, 25], 2)
    assert sources[2].told[-1] == ([1, 5], 2)


# -- from the web


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[str]:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        data = files.get(request.path.rpartition("/")[2])
        if data is None:
            request.send_error(404)
        else:
            send(request, start, data[start:stop], len(data))

    with serve(answer) as url:
        yield url.rpartition("/")[0]


def test_a_url_of_any_part_opens_the_whole_file() -> None:
    names = [part_name("m", i, 3) for i in (1, 2, 3)]
    files = dict(zip(names, cut(Gguf.open(WHOLE), 3), strict=True))
    with served(files) as folder:
        with Gguf.open(readable(f"{folder}/{names[1]}")) as gguf:
            assert gguf.read("blk.4.attn_norm.weight") == bytes([5] * 28)
        del files[names[2]]
        with pytest.raises(SourceError, match=f"one of 3 parts, and one is missing. .*{names[2]}.*404"):
            Gguf.open(f"{folder}/{names[0]}")


def test_a_part_named_in_a_query_knows_no_others() -> None:
    query = "download?file=" + part_name("m", 1, 2)
    with (
        served({query: cut(Gguf.open(WHOLE), 2)[0]}) as folder,
        pytest.raises(GgufError, match="does not say what the"),
    ):
        Gguf.open(f"{folder}/{query}")


def test_a_model_in_parts_answers_like_the_whole_one(blob: Path, tmp_path: Path) -> None:
    with Gguf.open(blob) as gguf:
        paths = write_parts(tmp_path, gguf, 4, "tiny")
    files = {path.name: path.read_bytes() for path in paths}
    ids = list(range(5, 25))
    with wgemma.load(blob, device="reference", context=128) as model:
        expected = model.logits(ids)
    with wgemma.load(paths[2], device="reference", context=128) as model:
        assert (model.logits(ids) == expected).all()
    with served(files) as folder, wgemma.load(f"{folder}/{paths[0].name}", device="reference", context=128) as model:
        assert (model.logits(ids) == expected).all()
    paths[3].unlink()
    with pytest.raises(Error, match=re.escape(paths[3].name)):
        wgemma.load(paths[0], device="reference")
