"""Twenty thousand hostile inputs for the readers of outside bytes are read or refused. `make fuzz` tries a million."""

from collections.abc import Iterator

import pytest

from fuzz.containers import GGUFS, examine_gguf
from fuzz.harness import Reader, attack
from fuzz.readers import open_readers
from wgemma.errors import Error

SEED = 20_26
INPUTS = 20_000


@pytest.fixture(scope="module")
def readers() -> Iterator[dict[str, Reader]]:
    with open_readers() as opened:
        yield {reader.name: reader for reader in opened}


def test_shares_add_up(readers: dict[str, Reader]) -> None:
    assert sum(reader.share for reader in readers.values()) == 1000


NAMES = (
    *(
        "gguf",
        "parts",
        "safetensors",
        "adapter config",
        "adapter gguf",
        "session",
        "checkpoint",
        "image",
        "sound",
        "manifest",
    ),
    *("JSONL", "messages", "reply", "options", "URL", "server", "registry", "listing", "Modelfile", "body"),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_input_escapes(readers: dict[str, Reader], name: str) -> None:
    reader = readers[name]
    report = attack(reader, SEED, range(INPUTS * reader.share // 1000))
    assert report.escapes == []
    refused = report.outcomes.pop("refused", 0)
    if name not in ("reply", "JSONL", "URL"):  # a parser takes any reply, a bad line is skipped, nobody is at a URL
        assert min(refused, report.outcomes.total()) > 10, "the inputs are too wild or too tame to say anything"


def test_every_reader_is_attacked(readers: dict[str, Reader]) -> None:
    assert set(NAMES) == set(readers)


def test_the_good_files_are_good() -> None:
    assert [examine_gguf(file) for file in GGUFS] == [
        *("opened", "opened", "opened, vocabulary refused", "opened, vocabulary refused")
    ]


@pytest.mark.parametrize(
    ("examine", "escapes"),
    [
        (lambda case: "read", 0),
        (lambda case: _raise(Error("No.")), 0),
        (lambda case: _raise(Error("")), 1),
        (lambda case: _raise(ValueError("foreign")), 1),
        (lambda case: _wait_forever(), 1),
    ],
)
def test_the_harness_tells_an_escape_from_a_refusal(
    monkeypatch: pytest.MonkeyPatch, examine: object, escapes: int
) -> None:
    monkeypatch.setattr("fuzz.harness.MOST_SECONDS", 0.1)
    report = attack(Reader("test", 1, lambda dice: b"", examine), 1, range(1))  # type: ignore[arg-type]
    assert len(report.escapes) == escapes


def _raise(error: Exception) -> str:
    raise error


def _wait_forever() -> str:
    while True:
        pass
