"""How prompts are cut into passes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wgemma.engine.buckets import share
from wgemma.engine.options import CHUNK, IMAGE_ROWS
from wgemma.errors import SettingsError

MOST = IMAGE_ROWS[-1]


def passes(waiting: int, images: list[tuple[int, int]], chunk: int = CHUNK) -> list[tuple[int, int]]:
    """(count, bucket) of every pass until nothing waits."""
    done, found = 0, []
    while done < waiting:
        ahead = [(start - done, end - done) for start, end in images if start >= done]
        found.append(share(waiting - done, ahead, chunk, MOST))
        done += found[-1][0]
    return found


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    at, images = 0, []
    for text, rows in draw(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 1120)), max_size=6)):
        images.append((at + text, at + text + rows))
        at += text + rows
    return at + draw(st.integers(1, 700)), images


@given(prompts(), st.sampled_from([4, 32, 100, 128, 512]))
@example((34, [(0, 33)]), 100)
def test_every_row_is_computed_once_and_no_image_is_cut(prompt: tuple[int, list[tuple[int, int]]], chunk: int) -> None:
    waiting, images = prompt
    done = 0
    for count, bucket in passes(waiting, images, chunk):
        assert 0 < count <= bucket <= MOST
        assert bucket <= chunk or any(end - start > chunk for start, end in images)
        done += count
        assert not any(start < done < end for start, end in images)
    assert done == waiting


def test_text_is_cut_into_full_tiles_and_a_rest() -> None:
    assert passes(1000, []) == [(512, 512), (488, 512)]
    assert passes(3, []) == [(3, 4)]
    assert passes(40, []) == [(32, 32), (8, 8)]
    assert passes(41, []) == [(32, 32), (8, 8), (1, 1)]
    assert passes(24, []) == [(8, 8)] * 3
    assert passes(25, []) == [(25, 32)]


def test_an_image_takes_the_text_behind_it_along_and_waits_for_the_text_before() -> None:
    assert passes(300, [(2, 282)]) == [(300, 512)]
    assert passes(700, [(300, 580)]) == [(300, 512), (400, 512)]
    assert passes(1130, [(4, 1124)]) == [(4, 4), (1126, 1152)]
    assert passes(570, [(0, 560)]) == [(570, 640)]


def test_an_image_that_fits_no_pass_is_a_sentence() -> None:
    with pytest.raises(SettingsError, match="an image of 600 tokens does not fit into a pass of 512 rows"):
        share(700, [(0, 600)], 512, 512)
