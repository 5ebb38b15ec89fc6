"""Answers stay within their constraint, whatever the model would like to write."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wgemma
from losing import lose_at
from wgemma.constraints import Constraints, Wanted
from wgemma.engine.backend import GpuBackend
from wgemma.engine.batch import Batch
from wgemma.engine.constraint import Constraint, State
from wgemma.engine.request import Request, Token
from wgemma.engine.sampling import RESULT_BYTES, RESULTS_BYTES, RING, Sampler, Sampling
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.rows import PAGE, Row, RowBuffer
from wgemma.reference.sampling import distribution
from wgemma.sync import iterate, run
from wgemma.text.grammar import compile_choice, compile_regex, compile_schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
    },
}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {}}}


@pytest.fixture(scope="module")
def model(blob: Path, gpu: NativeDevice) -> Iterator[wgemma.Model]:
    with wgemma.load(blob, device=gpu, slots=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def constraints(model: wgemma.Model) -> Constraints:
    return Constraints(model.tokenizer)


def backend_of(model: wgemma.Model) -> GpuBackend:
    assert isinstance(model.backend, GpuBackend)
    return model.backend


def request_of(model: wgemma.Model, constraint: Constraint | None, max_tokens: int = 300, **settings: Any) -> Request:
    ids = [2, *np.random.default_rng(3).integers(60, 1000, 30).tolist()]
    return Request(ids, max_tokens, Sampling(**settings), ends=model.tokenizer.stop_ids, constraint=constraint)


def tokens_of(model: wgemma.Model, request: Request) -> list[Token]:
    return list(iterate(model.backend.generate(request)))


def text_of(model: wgemma.Model, tokens: Sequence[Token]) -> str:
    ends = model.tokenizer.stop_ids
    return model.tokenizer.decode([token.id for token in tokens if token.id not in ends])


def walked(constraint: Constraint, text: str, *, in_thought: bool = False) -> State | None:
    """The state after a text with markup."""
    written = constraint.alphabet.tokenizer.encode(text, special=True)
    return constraint.start(in_thought=in_thought, written=written)


# -- places


def test_text_follows_its_grammar_and_calls_theirs(constraints: Constraints) -> None:
    person = constraints.of(Wanted(compile_schema(PERSON)))
    assert person is not None
    assert walked(person, '{"name": "Bo", "age": 7}<turn|>') == State("over")
    for wrong in ('{"age": 7}', '{"name": "Bo", "age": 7<turn|>', "<|channel>", "<|tool_call>", "<eos>", "Sure"):
        assert walked(person, wrong) is None
    both = constraints.of(Wanted(compile_schema(PERSON)), [ADD, STOP])
    assert both is not None
    assert walked(both, '<|tool_call>call:add{a:1,b:<|"|>x<|"|>}<tool_call|><|tool_call>call:stop{}<tool_call|><turn|>')
    assert walked(both, '{"name": "Bo", "age": 7}<turn|>')
    for wrong in (
        "<|tool_call>call:sub",
        "<|tool_call>call:add{a:<|",
        '{"<|tool_call>',
        "<|tool_call>call:stop{}<eos>",
    ):
        assert walked(both, wrong) is None
    assert walked(both, "<|tool_call>call:stop{}<tool_call|>Done") is None


def test_a_thought_is_free_and_comes_first(constraints: Constraints) -> None:
    person = constraints.of(Wanted(compile_schema(PERSON), thinks=True))
    assert person is not None
    assert walked(person, '<|channel>thought\nLet me see. {"no<channel|>{"name": "Bo", "age": 7}<turn|>')
    assert walked(person, 'yes?<channel|>{"name": "Bo", "age": 7}<turn|>', in_thought=True)
    for wrong in ("<|channel>thought\n<turn|>", "<|channel>x<channel|><|channel>", '{"name": "<|channel>', "Hm"):
        assert walked(person, wrong) is None


def test_the_choice_of_tools(constraints: Constraints) -> None:
    def following(text: str, choice: str | None, *, thinks: bool = False, parallel: bool = True) -> State | None:
        constraint = constraints.of(Wanted(thinks=thinks), [ADD, STOP], choice, parallel)
        assert constraint is not None
        return walked(constraint, text)

    call, other = "<|tool_call>call:stop{}<tool_call|>", '<|tool_call>call:add{a:1,b:<|"|>x<|"|>}<tool_call|>'
    assert following(f"Well. {call} And {other}<turn|>", "auto")
    assert following("Nothing to do.<turn|>", None)
    assert following("Nothing to do.<turn|>", "none")
    assert following(f"Well. {call}", "none") is None
    assert following(f"{call}{other}<turn|>", "required")
    for wrong in ("Well", "<turn|>", f"{call}Done", "<|channel>"):
        assert following(wrong, "required") is None
    assert following(f"<|channel>Hm<channel|>{call}<turn|>", "required", thinks=True)
    assert following(f"{call}<turn|>", "stop")
    assert following(other, "stop") is None
    assert following(call + call, "stop") is None
    assert following(f"{call}{other}", "required", parallel=False) is None
    assert following(f"Well. {call} Done. <turn|>", "auto", parallel=False)
    assert following(f"Well. {call} Once more: {call}", "auto", parallel=False) is None


def test_a_mask_is_what_the_steps_allow(constraints: Constraints) -> None:
    vocab = len(constraints.alphabet().texts)
    both = constraints.of(Wanted(compile_schema(PERSON), thinks=True), [ADD, STOP])
    auto, none = constraints.of(Wanted(), [ADD, STOP], parallel=False), constraints.of(Wanted(), [ADD], "none")
    required = constraints.of(Wanted(), [ADD], "required")
    assert both and auto and none and required
    beginnings = ("", "<|channel>Hm", "<|channel>Hm<channel|>", '{"', '{"name": "Bo', "<|tool_call>call:", '{"name": "')
    found = 0
    for constraint in (both, auto, none, required):
        for text in (*beginnings, "<|tool_call>call:stop{}<tool_call|>", "Well"):
            state = walked(constraint, text)
            if state is not None:
                bits = np.unpackbits(np.frombuffer(constraint.mask(state), np.uint8), count=vocab, bitorder="little")
                assert bits.tolist() == [constraint.step(state, token) is not None for token in range(vocab)]
                found += 1
    assert found > 15


def test_forced_text_is_canonical_and_leaves_its_last_token(constraints: Constraints) -> None:
    tokenizer = constraints.alphabet().tokenizer
    person, named = constraints.of(Wanted(compile_schema(PERSON))), constraints.of(Wanted(), [ADD], "add")
    assert person is not None and named is not None
    start = person.start(in_thought=False)
    assert start is not None
    whole = tokenizer.encode('{"name": "')
    assert person.forced(start, 99) == whole[:-1]
    assert person.forced(start, 3) == whole[:3]
    quiet = constraints.of(Wanted(compile_schema(PERSON), forces=False))
    assert quiet is not None and quiet.forced(start, 99) == []
    begun = named.start(in_thought=False)
    assert begun is not None
    assert tokenizer.decode(named.forced(begun, 99)).startswith("<|tool_call>call:add{a")
    only = constraints.of(Wanted(compile_choice(["certainly, without any doubt"])))
    assert only is not None
    ids = only.forced(State("ready", only.text.start if only.text else None), 99)
    assert tokenizer.decode(ids[:-1]) == "certainly, without any doubt"
    assert ids[-1] in tokenizer.stop_ids


# -- what is drawn


def drawn(gpu: NativeDevice, logits: Any, allowed: Any, sampling: Sampling, count: int) -> Counter[int]:
    """The tokens that so many seeds draw."""
    slots, vocab, position = 64, len(logits), 9
    ledger = Ledger(gpu)
    try:
        rows = RowBuffer(ledger, slots, PAGE, several=True, label="rows")
        config: Any = SimpleNamespace(vocab_size=vocab, suppress_tokens=())
        sampler = Sampler(ledger, config, rows, ledger.buffer(4 * PAGE, "history"), slots)
        padded = np.zeros((slots, sampler.stride), np.float32)
        padded[:, :vocab] = logits
        gpu.write(sampler.logits, 0, padded.tobytes())
        for slot in range(slots):
            recipe = sampler.begin(slot, sampling, PAGE)
            sampler.put_mask(slot, position, np.packbits(allowed, bitorder="little").tobytes())
        tape = Tape(gpu, "draws")
        sampler.record(tape, recipe, PAGE, slots)
        sampler.record_again(tape, recipe, slots)
        program = tape.program()
        found: Counter[int] = Counter()
        for first in range(0, count, slots):
            settings = [replace(sampling, seed=first + i).pack(PAGE, adjusts=False) for i in range(slots)]
            gpu.write(sampler.settings, 0, b"".join(settings))
            rows.put_rows([Row(1, position - 1)] * slots)
            program.replay()
            data = np.frombuffer(run(gpu.read(sampler.results)), "<u4").reshape(slots, RESULTS_BYTES // 4)
            found.update(data[:, position % RING * RESULT_BYTES // 4].tolist())
        tape.free()
        return found
    finally:
        ledger.free()


SETTINGS = {"all": Sampling(top_k=0, top_p=1), "top": Sampling(temperature=1.3, top_k=15, top_p=0.9)}


@pytest.fixture(scope="module")
def compact() -> Iterator[NativeDevice]:
    """As the adapter likes it: with few threads per draw."""
    with closing(NativeDevice()) as device:
        yield device


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("legal", ["half", "unlikely"])
@pytest.mark.parametrize("draws", [6400, pytest.param(100_032, marks=pytest.mark.slow)])
def test_the_distribution_is_the_defined_one(compact: NativeDevice, settings: str, legal: str, draws: int) -> None:
    dice = np.random.default_rng(7)
    logits = dice.normal(0, 1, 40).astype(np.float32)
    allowed = dice.random(40) < 0.5
    if legal == "unlikely":  # none of them survives top-k
        allowed &= logits < np.sort(logits)[20]
    sampling = SETTINGS[settings]
    found = drawn(compact, logits, allowed, sampling, draws)
    how = {"top_k": sampling.top_k, "top_p": sampling.top_p, "temperature": sampling.temperature}
    ids, shares = distribution(logits, allowed=allowed, **how)  # type: ignore[arg-type]
    assert set(found) <= set(ids.tolist())
    expected = shares * draws
    square = sum((found[int(token)] - mean) ** 2 / mean for token, mean in zip(ids, expected, strict=True))
    degrees = len(ids) - 1
    # The 99.9th percentile, by Wilson and Hilferty.
    assert square < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert degrees >= 3


def test_greedy_is_the_likeliest_of_what_is_allowed(model: wgemma.Model, constraints: Constraints) -> None:
    person = constraints.of(Wanted(compile_schema(PERSON), forces=False))
    assert person is not None
    request = request_of(model, person, temperature=0)
    tokens = tokens_of(model, request)
    logits = model.logits([*request.ids, *(token.id for token in tokens)])
    state = request.state()
    for place, token in enumerate(tokens, len(request.ids) - 1):
        assert state is not None
        mask = np.frombuffer(person.mask(state), np.uint8)
        allowed = np.unpackbits(mask, count=logits.shape[1], bitorder="little").astype(bool)
        best = np.where(allowed, logits[place], -np.inf)
        assert best[token.id] > best.max() - 1e-3
        state = person.step(state, token.id)
    assert text_of(model, tokens).startswith('{"name": "')
    assert "again" in {token.origin for token in tokens}


def test_a_fault_ends_its_own(model: wgemma.Model, constraints: Constraints, monkeypatch: pytest.MonkeyPatch) -> None:
    other = model.backend.generate(request_of(model, None, 60, seed=1))
    run(anext(other))
    for method in ("step", "forced", "masking"):
        person = constraints.of(Wanted(compile_schema(PERSON), forces=method == "forced"))
        assert person is not None

        def faulty(*_: Any) -> Any:
            raise ZeroDivisionError

        def later(*_: Any) -> Any:
            yield
            raise ZeroDivisionError

        with monkeypatch.context() as patch, pytest.raises(wgemma.GrammarError, match="ZeroDivisionError"):
            patch.setattr(person, method, later if method == "masking" else faulty)
            patch.setattr(person, "known_mask", lambda state: None)
            tokens_of(model, request_of(model, person, seed=2))
    assert len(list(iterate(other))) > 30


def test_the_same_seed_draws_the_same_alone_and_among_others(model: wgemma.Model, constraints: Constraints) -> None:
    grammar = compile_regex("[a-m]{3,9}( [n-z]+){1,4}")
    shared = constraints.of(Wanted(grammar))
    requests = [request_of(model, shared, 60, seed=seed, temperature=1.5) for seed in range(6)]
    alone = [[token.id for token in tokens_of(model, request)] for request in requests]
    streams = [model.backend.generate(request) for request in requests]
    plain = model.backend.generate(request_of(model, None, 60, seed=1))
    heads = [run(anext(stream)).id for stream in streams]
    run(anext(plain))
    rest = [[token.id for token in iterate(stream)] for stream in streams]
    assert [[head, *tail] for head, tail in zip(heads, rest, strict=True)] == alone
    run(plain.aclose())
    assert len({tuple(ids) for ids in alone}) > 3


def test_a_format_that_the_settings_rule_out_ends_its_own(model: wgemma.Model, constraints: Constraints) -> None:
    yes = constraints.of(Wanted(compile_regex("y{3}|n{3}")))
    never = {
        token: float("-inf") for token, text in enumerate(constraints.alphabet().texts) if text and text[0] in b"yn"
    }
    other = model.backend.generate(request_of(model, None, 40, seed=1))
    run(anext(other))
    with pytest.raises(wgemma.GrammarError, match="rule out every token"):
        tokens_of(model, request_of(model, yes, logit_bias=never))
    assert len(list(iterate(other))) > 10


def test_others_go_on_while_a_mask_is_found(
    model: wgemma.Model, constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slice of it at a time."""
    person = constraints.of(Wanted(compile_schema(PERSON)))
    assert person is not None
    real, slices = person.masking, 0

    def slowly(state: State) -> Any:
        nonlocal slices
        for _ in range(50):
            slices += 1
            yield
        return (yield from real(state))

    monkeypatch.setattr(person, "masking", slowly)
    batch, come = Batch(backend_of(model).runner), 0
    free = batch.submit(request_of(model, None, 200, seed=2, logit_bias=dict.fromkeys(model.tokenizer.stop_ids, -100)))
    bound = batch.submit(request_of(model, person, seed=2))
    while slices < 150:
        before = slices
        run(batch.turn())
        assert slices <= before + 1
        while free.unread:
            come += run(free.read()) is not None
    assert come > 100
    for stream in (free, bound):
        stream.close()
    while batch.busy:
        run(batch.turn())


@pytest.mark.parametrize("moment", ["turn", "_catch_up"])
def test_a_lost_device_does_not_lose_the_place(blob: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    with wgemma.load(blob) as own:
        person = Constraints(own.tokenizer).of(Wanted(compile_schema(PERSON)))
        request = request_of(own, person, seed=4)
        expected = [token.id for token in tokens_of(own, request)]
        stream = own.backend.generate(request)
        head = run(anext(stream)).id
        device = backend_of(own).device
        assert isinstance(device, NativeDevice)
        lose_at(monkeypatch, Batch, moment, device._device.destroy)
        assert [head, *(token.id for token in iterate(stream))] == expected


def test_limits_cut_an_answer(model: wgemma.Model, constraints: Constraints) -> None:
    person = constraints.of(Wanted(compile_schema(PERSON)))
    whole = tokens_of(model, request_of(model, person, seed=4))
    for most in range(1, len(whole)):
        cut = tokens_of(model, request_of(model, person, most, seed=4))
        assert [token.id for token in cut] == [token.id for token in whole[:most]]


def test_numpy_and_the_gpu_choose_the_same(blob: Path, model: wgemma.Model, constraints: Constraints) -> None:
    with wgemma.load(blob, device="reference") as slow:
        for grammar in (compile_schema(PERSON), compile_regex("[a-f]+ (x|yy|zzz){2}")):
            constraint = constraints.of(Wanted(grammar))
            answers = [tokens_of(which, request_of(which, constraint, 40, temperature=0)) for which in (slow, model)]
            assert [token.id for token in answers[0]] == [token.id for token in answers[1]]
            assert [token.origin for token in answers[0]] == [token.origin for token in answers[1]]
