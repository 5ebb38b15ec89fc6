"""What people who know other libraries type first is answered by what to type here."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wgemma
from wgemma.gpu.native import NativeDevice
from wgemma.habits import ELSEWHERE, NEEDLESS, refuse_unknown_options
from wgemma.options import CALLS


def refusal(call: str, *names: str) -> str:
    with pytest.raises(wgemma.SettingsError) as refused:
        refuse_unknown_options(call, names)
    return str(refused.value)


@pytest.mark.parametrize("name", ["num_predict", "n_predict", "max_new_tokens", "max_completion_tokens"])
def test_options_with_other_names_elsewhere_are_named(name: str) -> None:
    assert refusal("chat", name) == refusal("generate", name) == f"{name} is max_tokens here."


@pytest.mark.parametrize(
    ("call", "name", "sentence"),
    [
        ("chat", "response_format", "response_format is format here."),
        ("generate", "tools", "tools is an option of chat(), not of generate()."),
        ("run_tools", "max_turns", "max_turns is rounds here."),
        ("load", "n_ctx", "n_ctx is context here."),
        ("chat", "num_ctx", "num_ctx is context here, an option of load(), not of chat()."),
        ("load", "num_predict", "num_predict is max_tokens here, an option of chat() and generate(), not of load()."),
        ("load", "temperature", "temperature is an option of chat() and generate(), not of load()."),
        ("generate", "think", "think is an option of chat(), not of generate()."),
        ("finetune", "learning_rate", "learning_rate is lr here."),
        ("finetune", "max_length", "max_length is seq here."),
        ("chat", "max_length", "max_length is max_tokens here."),
        ("chat", "temprature", "there is no setting 'temprature'. Did you mean temperature?"),
        ("finetune", "epoch", "there is no setting 'epoch'. Did you mean epochs?"),
    ],
)
def test_an_unknown_option_leads_to_the_right_one(call: str, name: str, sentence: str) -> None:
    assert refusal(call, name) == sentence


@pytest.mark.parametrize("name", NEEDLESS)
def test_options_without_a_counterpart_say_what_to_do(name: str) -> None:
    for call in CALLS:
        sentence = refusal(call, name)
        assert sentence.endswith(".") and "{name}" not in sentence
        assert re.search(r"Leave \w+ out|write|message", sentence)


def test_all_names_lead_to_options_that_exist_and_are_none_themselves() -> None:
    options = frozenset().union(*CALLS.values())
    assert set(ELSEWHERE) <= options
    assert not options & {*NEEDLESS, *(name for names in ELSEWHERE.values() for name in names)}


def test_the_calls_themselves_refuse(tmp_path: Any) -> None:
    for options, words in (({"n_gpu_layers": -1}, "every layer runs on the GPU"), ({"verbose": False}, "verbose")):
        with pytest.raises(wgemma.SettingsError, match=words):
            wgemma.load(tmp_path / "model.gguf", **options)


@pytest.fixture(scope="module")
def model(blob: Path, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda model: model("Hello"), "write model.chat("),
        (lambda model: list(model), "model.generate(prompt)"),
        (lambda model: model[0], "model.chat(messages)"),
        (lambda model: len(model), "len(model.tokenizer)"),
        (copy.copy, "call wgemma.load()"),
        (copy.deepcopy, "call wgemma.load()"),
        (pickle.dumps, "model.save(path)"),
    ],
)
def test_a_model_used_as_something_else_says_what_to_type(
    model: wgemma.Model, use: Callable[[Any], Any], words: str
) -> None:
    with pytest.raises(wgemma.SettingsError, match=re.escape(words)) as refused:
        use(model)
    assert isinstance(refused.value, TypeError)  # what Python's own error would be
    assert model


def test_methods_of_other_libraries_are_named(model: wgemma.Model) -> None:
    with pytest.raises(AttributeError, match=re.escape("write model.chat(messages).")):
        model.create_chat_completion(messages=[])  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=re.escape("no attribute 'made_up'")):
        model.made_up  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=re.escape('wgemma.load("gemma4:e2b").chat(messages)')):
        wgemma.chat(model="gemma4:e2b")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'made_up'$"):
        wgemma.made_up  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(model, "generate_text") and not hasattr(wgemma, "nothing")
