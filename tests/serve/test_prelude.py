"""A stored model's system text and messages begin every chat, by every API, and /api/show tells them."""

from collections.abc import Iterator
from typing import Any

import pytest
from ollama import Client

from api_server import TINY, Api, serving
from wgemma.creating import create
from wgemma.files.modelfile import parse_modelfile
from wgemma.files.recipes import Recipe

SYSTEM = {"role": "system", "content": "Answer in capitals."}
EXAMPLES = [{"role": "user", "content": "What is 2+3?"}, {"role": "assistant", "content": "2 + 3 = FIVE"}]
ASKED = {"role": "user", "content": "What is 4+1?"}
OTHER = "Be brief, please, and kind."


@pytest.fixture
def prelude_api() -> Iterator[Api]:
    licenses = ["License A", "License B"]
    list(create("mine", Recipe(TINY, system=SYSTEM["content"], messages=EXAMPLES, licenses=licenses)))
    with serving() as api:
        yield api


def test_by_every_api(prelude_api: Api) -> None:
    def tokens(path: str, **body: Any) -> int:
        answer = prelude_api.ask(path, {"stream": False, "max_tokens": 1, "options": {"num_predict": 1}, **body})
        assert answer.status == 200, answer.text
        told = answer.json
        if "prompt_eval_count" in told:
            return int(told["prompt_eval_count"])
        usage = told.get("usage", told)
        return int(usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))

    whole = [*EXAMPLES, ASKED]
    for path in ("/api/chat", "/v1/chat/completions"):
        assert tokens(path, model="mine", messages=[ASKED]) == tokens(path, model=TINY, messages=[SYSTEM, *whole])
        other = {"role": "system", "content": OTHER}
        assert tokens(path, model="mine", messages=[other, ASKED]) == tokens(path, model=TINY, messages=[other, *whole])
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        given = tokens(path, model=TINY, messages=whole, system=SYSTEM["content"])
        assert tokens(path, model="mine", messages=[ASKED]) == given
        other_given = tokens(path, model=TINY, messages=whole, system=OTHER)
        assert tokens(path, model="mine", messages=[ASKED], system=OTHER) == other_given != given
    path = "/v1/responses"
    assert tokens(path, model="mine", input=[ASKED]) == tokens(path, model=TINY, input=[SYSTEM, *whole])
    path, prompt = "/api/generate", ASKED["content"]
    assert tokens(path, model="mine", prompt=prompt) == tokens("/api/chat", model=TINY, messages=[SYSTEM, *whole])
    replaced = [{"role": "system", "content": OTHER}, *whole]
    assert tokens(path, model="mine", prompt=prompt, system=OTHER) == tokens("/api/chat", model=TINY, messages=replaced)
    raw = {"prompt": prompt, "raw": True}
    assert tokens(path, model="mine", **raw) == tokens(path, model=TINY, **raw)


def test_complaints_are_about_what_was_sent(prelude_api: Api) -> None:
    body = {"model": "mine", "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "1"}]}]}
    told = [prelude_api.ask(path, body) for path in ("/v1/messages", "/v1/messages/count_tokens")]
    assert [answer.status for answer in told] == [400, 400]
    assert all(answer.json["error"]["message"].startswith("Messages[0] ") for answer in told)


def test_show_tells_all_that_a_model_says_and_is(prelude_api: Api) -> None:
    shown = prelude_api.ask("/api/show", {"model": "mine"}).json
    assert shown["system"] == SYSTEM["content"] and shown["messages"] == EXAMPLES
    assert shown["license"] == "License A\nLicense B"
    told = parse_modelfile(shown["modelfile"].encode())
    assert (told.system, told.messages, told.licenses) == (SYSTEM["content"], EXAMPLES, ["License A", "License B"])
    assert [base[:7] for base in told.bases] == ["sha256-"] and told.parameters["temperature"] == 0
    assert "messages" not in prelude_api.ask("/api/show", {"model": TINY}).json
    assert Client(prelude_api.url).show("mine").modelfile == shown["modelfile"]
