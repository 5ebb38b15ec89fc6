"""How attention shares out its work: in turns that fit workgroup memory, in pieces where there is history enough."""

import re
from dataclasses import replace

import pytest

from fake_device import FakeDevice
from wgemma.gpu.device import DEFAULT_LIMITS
from wgemma.gpu.shaders import load_shader
from wgemma.model import attention_tile
from wgemma.model.attention import few_form, few_shape, heads_together, keys_at_a_time, splits_of
from wgemma.model.config import LayerConfig
from wgemma.model.rows import PAGE

SIZES = {"f32": 4, "vec2<f32>": 8, "vec4<f32>": 16}
SLIDING = LayerConfig(0, True, 512, 8, 1, 256, None, True, 10_000.0, 128, False, 64, False)
FULL = replace(SLIDING, sliding=False, window=None)
ARRAY = re.compile(r"var<workgroup> \w+: array<([\w<>]+), (.+)>;")
CONSTANT = re.compile(r"const (\w+) = (.+?);")


def workgroup_memory(code: str) -> int:
    """What the arrays of a shader take, their lengths being sums and products of constants."""
    known: dict[str, int] = {}

    def value(text: str) -> int:
        return int(eval(re.sub(r"(\d)u\b", r"\1", text).replace("/", "//"), {"max": max}, known))

    for name, text in CONSTANT.findall(code):
        if "e38" not in text and "0x" not in text:
            known[name] = value(text)
    return sum(SIZES[kind] * value(length) for kind, length in ARRAY.findall(code))


@pytest.mark.parametrize("memory", [16 << 10, 32 << 10])
@pytest.mark.parametrize("head", [32, 64, 128, 256, 512])
@pytest.mark.parametrize("f16", [True, False])
def test_the_heads_that_go_together_fit_workgroup_memory(memory: int, head: int, f16: bool) -> None:
    device = FakeDevice(replace(DEFAULT_LIMITS, workgroup_memory=memory))
    form = few_shape(head, heads_together(device, head, 8), 1, f16=f16)  # type: ignore[arg-type]
    constants = {"HEAD": head, "PAIRS": 16, "WORD": "vec4<f32>", "PER_WORD": 8 if f16 else 4, "F16_CACHE": f16}
    assert 4096 < workgroup_memory(load_shader("attention_few", constants | form)) <= memory


@pytest.mark.parametrize("head", [32, 64, 128, 256, 512])
@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize("lanes", [1, 4, 16, 32, 64])
def test_a_turn_leaves_no_thread_without_words_or_keys(head: int, f16: bool, lanes: int) -> None:
    form = few_shape(head, 1, lanes, f16=f16)
    words = head // (8 if f16 else 4)
    assert form["SHARE"] * form["EACH"] == words
    assert form["VALUES"] * form["THREADS"] // words == keys_at_a_time(form)


def test_a_history_is_cut_into_pieces_of_a_turn_at_least_and_a_window_always_alike() -> None:
    layer, full = SLIDING, FULL
    assert [splits_of(full, depth, 64) for depth in (64, 256, 4096, 131_072)] == [1, 4, 64, 128]
    assert [splits_of(full, 131_072, 64, rows) for rows in (1, 3, 8)] == [128, 42, 16]
    assert [splits_of(layer, depth, 128) for depth in (128, 512, 131_072)] == [4, 4, 4]
    assert splits_of(replace(layer, window=200), 4096, 128) == 2
    assert splits_of(replace(layer, window=1024), 131_072, 128) == 4


def test_the_rows_of_many_sequences_leave_few_pieces_for_each() -> None:
    rows = (1, 8, 16, 32, 64)
    assert [splits_of(FULL, 131_072, 32, each) for each in rows] == [128, 16, 8, 4, 2]
    assert [splits_of(SLIDING, 131_072, 32, each) for each in rows] == [4, 4, 4, 4, 2]
    assert splits_of(FULL, 131_072, 32, 500) == splits_of(SLIDING, 0, 32, 500) == 1


@pytest.mark.parametrize(("sequences", "depth", "sliding", "full"), [(1, 256, 1, 1), (7, 4096, 1, 4), (8, 256, 4, 4)])
def test_heads_read_their_keys_together_where_rows_fill_the_gpu_or_histories_are_deep(
    sequences: int, depth: int, sliding: int, full: int
) -> None:
    device = FakeDevice(replace(DEFAULT_LIMITS, workgroup_memory=32 << 10))
    for layer, heads in ((SLIDING, sliding), (FULL, full)):
        assert few_form(device, layer, depth, sequences, f16=True)["HEADS"] == heads  # type: ignore[arg-type]


@pytest.mark.parametrize("head", [32, 64, 128, 256, 512])
@pytest.mark.parametrize("lanes", [1, 8, 32])
def test_a_stretch_is_no_longer_than_a_page(head: int, lanes: int) -> None:
    for f16 in (True, False):
        form = few_shape(head, 1, lanes, f16=f16)
        own = (4, form["VALUES"], *([form["TURN"]] if form["STRETCH"] else []))
        assert max(own) <= PAGE
    assert max(attention_tile.KEYS, attention_tile.DIRECT_KEYS) <= PAGE
