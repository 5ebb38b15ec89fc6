"""Merging matches the definition of byte-pair encoding, on sensible tables and on absurd ones."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from growth import growth
from wgemma.text.bpe import _PIECE, _SCAN, MAX_IDS, Merges

Table = list[tuple[int, int, int]]


def ranked(table: Table) -> dict[tuple[int, int], tuple[int, int]]:
    """The first rank of every pair, and what it merges to."""
    ranks: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (left, right, joined) in enumerate(table):
        ranks.setdefault((left, right), (rank, joined))
    return ranks


def merging(table: Table) -> Merges:
    ranks = ranked(table)
    return Merges(lambda left, right: ranks.get((left, right)), len(table))


def naive(symbols: list[int], table: Table) -> list[int]:
    """The definition: join the pair with the lowest rank, leftmost first, until none is left."""
    ranks = ranked(table)
    symbols = list(symbols)
    while found := min(
        ((*ranks[pair], at) for at in range(len(symbols) - 1) if (pair := (symbols[at], symbols[at + 1])) in ranks),
        key=lambda merge: (merge[0], merge[2]),
        default=None,
    ):
        _, joined, at = found
        symbols[at : at + 2] = [joined]
    return symbols


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Every way to join two texts to a third, in any order: a whole may rank before its parts or lack some of them."""
    texts = list(draw(st.sampled_from(["ab", "abc"])))
    for _ in range(draw(st.integers(0, 12))):
        joined = draw(st.sampled_from(texts)) + draw(st.sampled_from(texts))
        if joined not in texts and len(joined) <= 40:
            texts.append(joined)
    ids = {text: number for number, text in enumerate(texts)}
    cuts = [
        (ids[text[:at]], ids[text[at:]], ids[text])
        for text in texts
        for at in range(1, len(text))
        if text[:at] in ids and text[at:] in ids
    ]
    order = draw(st.permutations(cuts)) if cuts else []
    return order[: draw(st.integers(len(order) // 2, len(order)))]


def doublings(count: int, *, letter: int = 0) -> Table:
    """a a → aa, aa aa → aaaa, …: tokens longer than any piece."""
    ids = [letter, *range(10, 10 + count)]
    return [(ids[i], ids[i], ids[i + 1]) for i in range(count)]


SHORT = st.lists(st.integers(-1, 2), max_size=_SCAN + 4)
LONG = st.one_of(
    st.lists(st.integers(-1, 2), min_size=_SCAN + 1, max_size=8 * _PIECE),
    # a repetition with a flaw in it
    st.builds(
        lambda unit, times, fault, tail: unit * times + fault + unit * times + tail,
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.integers(_SCAN, 60),
        st.lists(st.integers(-1, 2), max_size=2),
        st.lists(st.integers(0, 2), max_size=3),
    ),
)


@given(tables(), SHORT)
@settings(max_examples=200)
def test_short_words_merge_by_the_definition(table: Table, symbols: list[int]) -> None:
    assert merging(table).apply(symbols) == naive(symbols, table)


@given(tables(), LONG)
@settings(max_examples=200, deadline=None)
@example(doublings(9), [0] * 700)
@example(doublings(3), [0] * (8 * _PIECE + 5))
def test_long_runs_merge_by_the_definition_whichever_way_is_taken(table: Table, symbols: list[int]) -> None:
    merges, expected = merging(table), naive(symbols, table)
    assert merges.apply(symbols) == expected
    assert merges._drain(symbols) == expected
    assert merges._stitch(symbols) in (None, expected)


def test_pieces_are_stitched_where_tokens_are_short_and_drained_where_they_are_long() -> None:
    assert merging(doublings(3))._stitch([0] * 1000) == [12] * 125
    assert merging(doublings(12))._stitch([0] * 10_000) is None


def test_nothing_is_done_to_what_was_handed_in() -> None:
    for length in (0, 1, 2, 10, 100, 1000):
        symbols = [0] * length
        merging(doublings(12)).apply(symbols)
        assert symbols == [0] * length


def test_symbols_below_zero_belong_to_no_pair() -> None:
    table = [(0, 0, 3), (MAX_IDS - 1, MAX_IDS - 1, 4)]
    symbols = [-1, -1, 0, -1, 0, 0, ~0x10FFFF, -1]
    for repeats in (1, 40):
        assert merging(table).apply(symbols * repeats) == naive(symbols * repeats, table)


def test_the_largest_ids_and_an_empty_table_work() -> None:
    top = MAX_IDS - 1
    assert merging([(top, top - 1, top - 2)]).apply([top, top - 1]) == [top - 2]
    assert merging([]).apply([0, 1] * 50) == [0, 1] * 50


def test_more_pairs_than_the_cache_holds_stay_right() -> None:
    symbols = [number for pair in zip(range(70_000), range(70_000, 140_000), strict=True) for number in pair]
    table = [(69_999, 139_999, 140_000)]
    assert merging(table).apply(symbols) == [*symbols[:-2], 140_000]


def test_tokens_of_any_length_do_not_make_merging_quadratic() -> None:
    """A snowball, as in a hostile vocabulary: every token is the previous one plus a letter."""
    snowball = [*((9 + length, 0, 10 + length) for length in range(8000, 0, -1)), (0, 0, 10)]
    assert merging(snowball).apply([0] * 500) == [508]
    small, large = (lambda: merging(snowball).apply([0] * 800), lambda: merging(snowball).apply([0] * 8000))
    assert growth(small, large, 25) < 25
