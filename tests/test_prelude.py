"""What a stored model says before every chat."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wgemma
from wgemma.creating import create
from wgemma.files.locate import ModelFiles, locate
from wgemma.files.recipes import Recipe
from wgemma.prelude import Prelude

TINY = "wgemma-tiny"
SYSTEM = {"role": "system", "content": "Answer in capitals."}
OTHER = {"role": "system", "content": "Answer in French."}
EXAMPLES = [{"role": "user", "content": "What is 2+3?"}, {"role": "assistant", "content": "2 + 3 = FIVE"}]
ASKED = {"role": "user", "content": "What is 4+1?"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WGEMMA_MODELS", str(tmp_path_factory.mktemp("store")))
        patch.setenv("OLLAMA_MODELS", str(tmp_path_factory.mktemp("none")))
        list(create("mine", Recipe(TINY, system=SYSTEM["content"], messages=EXAMPLES)))
        yield


@pytest.fixture(scope="module")
def model(store: None, strict: None) -> Iterator[wgemma.Model]:
    with wgemma.load("mine", context=256) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(store: None, strict: None) -> Iterator[wgemma.Model]:
    with wgemma.load(context=256) as loaded:
        yield loaded


def files(system: str | None, *messages: dict[str, Any]) -> ModelFiles:
    return ModelFiles("x", Path("x"), system=system, messages=list(messages))


def test_a_system_text_of_the_chat_replaces_the_models_own() -> None:
    prelude = Prelude.of(files("Answer in capitals.", *EXAMPLES))
    assert prelude.before([ASKED]) == [SYSTEM, *EXAMPLES, ASKED]
    assert prelude.before([OTHER, ASKED]) == [OTHER, *EXAMPLES, ASKED]
    assert prelude.before([{**OTHER, "role": "developer"}, ASKED])[0]["role"] == "developer"
    assert Prelude.of(files(None)).before([ASKED]) == [ASKED]


def test_a_system_message_at_the_start_is_the_system_text() -> None:
    prelude = Prelude.of(files(None, OTHER, *EXAMPLES))
    assert prelude.before([ASKED]) == [OTHER, *EXAMPLES, ASKED]
    assert prelude.before([SYSTEM, ASKED]) == [SYSTEM, *EXAMPLES, ASKED]


@pytest.mark.parametrize("examples", [EXAMPLES, []])
def test_a_system_text_replaces_that_of_the_model_it_is_built_upon(store: None, examples: list[Any]) -> None:
    """Also if that is a message."""
    list(create("base", Recipe(TINY, messages=[SYSTEM, *examples])))
    for recipe, said in ((Recipe("base", system=OTHER["content"]), OTHER), (Recipe("base"), SYSTEM)):
        list(create("child", recipe))
        assert Prelude.of(locate("child")).before([ASKED]) == [said, *examples, ASKED]


def test_every_chat_of_a_model_begins_with_them(model: wgemma.Model, plain: wgemma.Model) -> None:
    def same(own: Any, given: Any) -> None:
        assert (own.text, own.usage.prompt) == (given.text, given.usage.prompt)

    whole = [SYSTEM, *EXAMPLES, ASKED]
    same(model.chat([ASKED]), plain.chat(whole))
    same(model.chat([OTHER, ASKED]), plain.chat([OTHER, *whole[1:]]))
    same(model.conversation().chat([ASKED]), plain.chat(whole))
    same(model.run_tools([ASKED], []), plain.chat(whole))
    assert model.chat_many([[ASKED]]).texts == [plain.chat(whole).text]


def test_text_is_continued_without_them(model: wgemma.Model, plain: wgemma.Model) -> None:
    one, other = model.generate("The old", max_tokens=4), plain.generate("The old", max_tokens=4)
    assert one.usage is not None and other.usage is not None and one.usage.prompt == other.usage.prompt


def test_they_stay_when_a_chat_is_shortened(model: wgemma.Model, plain: wgemma.Model) -> None:
    chat = [message for i in range(20) for message in (ASKED, {"role": "assistant", "content": f"It is {i}."})]
    answer = model.chat([*chat, ASKED], max_tokens=8)
    assert answer.usage is not None and 0 < answer.usage.dropped < len(chat)
    whole = plain.chat([SYSTEM, *EXAMPLES, *chat[answer.usage.dropped :], ASKED], max_tokens=8, shift=False)
    assert whole.usage is not None
    assert (answer.text, answer.usage.prompt) == (whole.text, whole.usage.prompt)


def test_errors_count_the_callers_own_messages(model: wgemma.Model) -> None:
    with pytest.raises(wgemma.TemplateError, match=r"messages\[1\] has the role 'x'"):
        model.chat([ASKED, {"role": "x"}])
