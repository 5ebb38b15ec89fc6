"""Patterns match what `re` matches, in bounded time; what they do not support is refused by name."""

import random
import re
import time

import pytest

from wgemma.errors import AdapterError
from wgemma.files import patterns
from wgemma.files.patterns import Patterns

PATHS = [
    f"{start}layers.{layer}.{part}"
    for start in ("model.language_model.", "model.", "")
    for layer in (0, 3, 12, 30)
    for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "experts.down_proj")
] + ["model.embed_tokens", "lm_head", "", ".", "a..b"]

TYPICAL = [
    "q_proj",
    "down_proj",
    "proj",
    "^lm_head",
    "^q_proj",
    r"^model\.layers\.3\.self_attn\.q_proj",
    "model.layers.3.self_attn.q_proj",
    re.escape("model.language_model.layers.12.mlp.gate_proj"),
    r".*\.self_attn\..*",
    r"layers\.(0|3)\..*",
    r"layers\.[0-9]\.(?:self_attn|mlp)\.\w+",
    r"layers\.\d{2}\.mlp\.[^d]\w+?",
    r"layers\.\d+\.(?P<part>self_attn|mlp)\.(q|k|v|gate)_proj$",
    r"[qkvo]_proj|lm_head",
    r"(layers\.){1,3}3\.mlp\.(gate|down)_proj",
    r"\Amodel\.embed_tokens\Z",
    r"layers\.{1,}3.{,9}[]_a-z-]{6,}",
    r"x{|{}|a{b",
    "",
    "(|a)+",
    "(a*)*$",
]


def matched(pattern: str, path: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", path) is not None


@pytest.mark.parametrize("pattern", TYPICAL)
def test_typical_patterns_match_what_re_matches(pattern: str) -> None:
    found = Patterns([pattern])
    assert [found.first(path) is not None for path in PATHS] == [matched(pattern, path) for path in PATHS]


def test_random_patterns_match_what_re_matches() -> None:
    chance = random.Random(7)
    pieces = ["a", "b", ".", r"\.", "(", "(?:", ")", "|", "*", "+", "?", "{2}", "{1,2}", "{,1}", "^", "$", "[ab]"]
    pieces += ["[^a]", r"\w", r"\W", "*?", "[a-", "]"]
    texts = ["", *("".join(chance.choices("ab.", k=k)) for k in range(1, 8) for _ in range(4))]
    compared = 0
    for _ in range(4000):
        pattern = "".join(chance.choices(pieces, k=chance.randint(1, 7)))
        try:
            re.compile(pattern)
            found = Patterns([pattern])
        except (re.error, AdapterError):
            continue
        compared += 1
        for text in texts:
            assert (found.first(text) is not None) == matched(pattern, text), (pattern, text)
    assert compared > 500


def test_what_re_compiles_of_the_supported_kind_is_not_refused() -> None:
    chance = random.Random(8)
    pieces = ["a", ".", r"\.", "(", "(?:", ")", "|", "*", "?", "{2}", "[ab]", r"\d"]
    for _ in range(2000):
        pattern = "".join(chance.choices(pieces, k=chance.randint(1, 6)))
        try:
            re.compile(pattern)
        except re.error:
            with pytest.raises(AdapterError, match="cannot be used"):
                Patterns([pattern])
        else:
            Patterns([pattern])


def test_the_first_pattern_that_matches_wins() -> None:
    found = Patterns(["k_proj", r".*\.3\..*", "q_proj"])
    assert found.first("layers.3.self_attn.q_proj") == 1
    assert found.first("layers.4.self_attn.q_proj") == 2
    assert found.first("layers.4.self_attn.o_proj") is None


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", r"\(\?=a"),
        ("(?<!a)b", "does not support"),
        ("(?i)a", "does not support"),
        (r"(a)\1", r"\\1"),
        (r"\bq_proj", r"\\b"),
        ("a*+", "repeats a repetition"),
        ("a**", "repeats a repetition"),
        ("*a", "nothing to repeat"),
        ("^*", "repeats an anchor"),
        ("a{3,2}", "3 to 2"),
        ("(a", "close a group"),
        ("a)|(b", "did not open"),
        ("[a", "ends too early"),
        ("[b-a]", "range"),
        ("a\\", "ends too early"),
        ("(" * 100 + ")" * 100, "nests deeper"),
        ("a" * 257, "longer than"),
        ("a{999999999}", "too many states"),
        ("((((((a{99}){99}){99}){99}){99}){99})", "too many states"),
        ("((((((){9999}){9999}){9999}){9999}){9999})", "too many states"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(AdapterError, match=why) as caught:
        Patterns([pattern])
    assert repr(pattern[:80]) in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [".?" * 60, "a?" * 60 + "a" * 60, "(a*)*" * 20, "(a|a)*b", "((a+)+)+$", ".*" * 60 + "x", "(.*\\.)*" * 10 + "x"],
)
def test_hostile_patterns_take_no_longer_than_others(pattern: str) -> None:
    began = time.perf_counter()
    assert Patterns([pattern]).first("a" * 400 + "!") is None
    assert time.perf_counter() - began < 1


def test_a_pattern_per_matrix_of_a_large_model_is_quick() -> None:
    paths = [
        f"model.language_model.layers.{layer}.{part}"
        for layer in range(60)
        for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj")
    ]
    began = time.perf_counter()
    for spelled in (re.escape, str, lambda path: f"^{path}"):
        found = Patterns([spelled(path) for path in paths])
        assert [found.first(path) for path in paths] == list(range(len(paths)))
    assert time.perf_counter() - began < 2


def test_matching_gives_up_after_a_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_STEPS", 10_000)
    found = Patterns([f"(.*{i % 10}.{{{i}}})*" for i in range(20)])
    with pytest.raises(AdapterError, match="takes too long"):
        for number in range(1000):
            found.first(f"layers.{number}.self_attn.q_proj")
