"""Stop strings, however the text is cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wgemma.engine.stops import StopStrings

LETTERS = st.text("ab<|", max_size=30)


@given(LETTERS, st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 30), max_size=6))
def test_any_cut_shows_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    filter_ = StopStrings(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = ""
    for begin, end in pairwise(edges):
        shown += filter_.feed(text[begin:end])
        if filter_.found:
            break
    else:
        shown += filter_.finish()
    if not filter_.found:
        assert shown == text and not places
    else:
        assert filter_.found in stops and text.startswith(shown + filter_.found)
        # The stop that completes first ends the text, wherever the cuts are.
        assert any(text.startswith(shown + stop) for stop in stops)


def test_what_may_become_a_stop_is_held_back() -> None:
    filter_ = StopStrings(["END"])
    assert filter_.feed("the E") == "the "
    assert filter_.feed("N") == ""
    assert filter_.feed("T") == "ENT"
    assert filter_.feed("END more") == ""
    assert filter_.found
