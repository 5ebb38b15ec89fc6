"""Look-ups match the file's lists, however odd they are; the first of equal entries wins."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_writer import write_gguf
from growth import growth
from wgemma import GgufError, Tokenizer
from wgemma.files import arrays
from wgemma.files.arrays import StringArray
from wgemma.text.vocabulary import Index, Memo, Vocabulary

TEXTS = st.lists(st.text(" ab\0é▁", max_size=4), max_size=20)


def vocabulary(tokens: list[str], merges: list[str]) -> Vocabulary:
    return Vocabulary(StringArray.of(tokens), StringArray.of(merges), lambda batch: None)


@given(TEXTS, TEXTS)
def test_a_string_is_found_where_it_stands_first_and_no_other_is_found(strings: list[str], others: list[str]) -> None:
    index = Index(StringArray.of(strings))
    for text in strings + others:
        assert index.find(text.encode()) == (strings.index(text) if text in strings else -1)


def test_more_strings_than_are_read_at_once_are_found_and_shown_in_order() -> None:
    strings = [str(number).encode() for number in range(10_000)]
    shown: list[bytes] = []
    index = Index(StringArray.of(map(bytes.decode, strings)), shown.extend)
    assert shown == strings
    assert [*map(index.find, strings)] == [*range(10_000)]


def listed(tokens: list[str], merges: list[str]) -> dict[tuple[int, int], tuple[int, int]]:
    """The definition: every merge split at its first space after the first character."""
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, merge in enumerate(merges):
        cut = merge.find(" ", 1)
        parts = merge[:cut], merge[cut + 1 :], merge[:cut] + merge[cut + 1 :]
        if cut > 0 and all(part in tokens for part in parts):
            left, right, joined = map(tokens.index, parts)
            pairs.setdefault((left, right), (rank, joined))
    return pairs


@given(TEXTS, TEXTS, st.data())
def test_pairs_join_as_their_merges_say(tokens: list[str], merges: list[str], data: st.DataObject) -> None:
    if tokens:
        text = st.sampled_from(tokens)
        merges += data.draw(st.lists(st.builds("{} {}".format, text, text), max_size=10))
        tokens += [merge.replace(" ", "", 1) for merge in merges]
    found, pairs = vocabulary(tokens, merges), listed(tokens, merges)
    firsts = {tokens.index(token) for token in tokens}
    for left in firsts:
        for right in firsts:
            assert found.join(left, right) == pairs.get((left, right))


def test_a_space_in_a_left_part_belongs_to_the_right_one() -> None:
    tokens = ["a", "b", "a b", "b c", "c", "ab c", "a bc", " ", " c", ""]
    found = vocabulary(tokens, ["a b c", "  c", " b", "a b c"])
    assert found.join(0, 3) == (0, 5)
    assert found.join(2, 4) is None
    assert found.join(7, 4) == (1, 8)
    assert found.join(9, 1) is None


def test_one_merge_listed_many_times_costs_no_more_than_many_merges() -> None:
    same, different = ["a b"] * 50_000, [f"a{number} b" for number in range(50_000)]
    assert growth(lambda: vocabulary(["a"], different), lambda: vocabulary(["a"], same), 2) < 2
    assert vocabulary(["a", "b", "ab"], same).join(0, 1) == (0, 2)


@pytest.mark.parametrize("batch", [1, 2, 4096])
@pytest.mark.parametrize("column", ["tokens", "merges"])
def test_a_vocabulary_that_is_not_text_is_refused(column: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BATCH", batch)
    metadata: dict[str, Any] = {
        "general.architecture": "gemma4",
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.token_type": [1, 1, 1],
        "tokenizer.ggml.merges": ["d", "e", "f"],
    }
    metadata[f"tokenizer.ggml.{column}"][1] = "?!?"
    data = write_gguf(metadata)
    wrong = data.replace(b"?!?", b"\xe2\x96\xff")
    with pytest.raises(GgufError, match=f"^at byte {data.index(b'?!?')}: a string in an array is not UTF-8"):
        Tokenizer.from_gguf(wrong)


def test_a_memo_asks_once_and_starts_anew_when_it_is_full() -> None:
    asked: list[int] = []

    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    memo = Memo(double, 2)
    assert [memo[1], memo[1], memo[2], memo[3], memo[1]] == [2, 2, 4, 6, 2]
    assert asked == [1, 2, 3, 1]
    assert len(memo) == 2
