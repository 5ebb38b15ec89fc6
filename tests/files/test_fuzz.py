"""Twenty thousand mutated files raise nothing but `GgufError`. `make fuzz` runs more."""

from gguf_fuzzer import SLOWEST, examine, fuzz, seeds


def test_the_fuzzers_own_files_are_good() -> None:
    outcomes = [examine(file) for file in seeds()]
    assert outcomes == ["opened", "opened", "opened, vocabulary refused", "opened, vocabulary refused"]


def test_no_mutated_file_escapes() -> None:
    outcomes, escapes, slowest = fuzz(seed=20_26, count=20_000)
    assert escapes == []
    assert slowest < SLOWEST
    assert min(outcomes["refused"], outcomes["opened"]) > 500, "the mutations are too wild or too tame to say anything"
