"""OpenAI's chat completions, by a running server and by the translators alone."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Api
from event_shapes import CHAT, OPENAI_ERROR, check, check_chat_stream
from wgemma.engine.endings import Usage
from wgemma.serve.ask import Ask, Call, Finish, Started, Text, Thinking, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import Fields
from wgemma.serve.openai import ChatWriter, read_chat
from wgemma.serve.problems import Problem

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "What is 2+3?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": TINY, "messages": HELLO, **fields}


def read(**fields: Any) -> Ask:
    return read_chat(Fields(chat(**fields)))


# -- a running server


def test_an_answer_in_one_piece(api: Api) -> None:
    answer = check(CHAT, api.ask(PATH, chat()).json)
    assert answer["choices"][0]["message"]["content"] == "2 + 3 = 5"
    assert answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] == answer["usage"]["total_tokens"]


def test_a_stream_says_the_same(api: Api) -> None:
    answer = api.ask(PATH, chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = check_chat_stream(answer.text)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "2 + 3 = 5"


def test_usage_and_reused_tokens_come_last_if_asked_for(api: Api) -> None:
    first, again = (
        check_chat_stream(api.ask(PATH, chat(stream=True, stream_options={"include_usage": True})).text, usage=True)
        for _ in range(2)
    )
    assert first[-1]["usage"]["prompt_tokens"] == again[-1]["usage"]["prompt_tokens"]
    assert again[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == again[-1]["usage"]["prompt_tokens"] - 1


def test_alternatives_have_a_stream_each(api: Api) -> None:
    check_chat_stream(api.ask(PATH, chat(stream=True, n=3, temperature=2, seed=1, max_tokens=8)).text, n=3)
    whole = check(CHAT, api.ask(PATH, chat(n=3, temperature=2, seed=1, max_tokens=8)).json)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_under_both_names(api: Api, stream: bool) -> None:
    answer = api.ask(PATH, chat(reasoning_effort="low", stream=stream))
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in check_chat_stream(answer.text)]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    else:
        thought = check(CHAT, answer.json)["choices"][0]["message"]["reasoning"]
    assert "2 + 3 = 5" in thought


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call(api: Api, stream: bool) -> None:
    answer = api.ask(PATH, chat(messages=ASKS_WEATHER, tools=[WEATHER], stream=stream))
    if stream:
        assert check_chat_stream(answer.text)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        choice = check(CHAT, answer.json)["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_the_result_of_a_tool_is_read(api: Api) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    messages = [
        *ASKS_WEATHER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = check(CHAT, api.ask(PATH, chat(messages=messages, tools=[WEATHER], max_tokens=8)).json)
    assert "sunny" in answer["choices"][0]["message"]["content"]


def test_logprobs_spell_the_text(api: Api) -> None:
    choice = check(CHAT, api.ask(PATH, chat(logprobs=True, top_logprobs=2, reasoning_effort="low")).json)["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    chunks = check_chat_stream(api.ask(PATH, chat(logprobs=True, stream=True)).text)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert "".join(token["token"] for one in told if one for token in one["content"]) == "2 + 3 = 5"


def test_it_sees_and_hears(api: Api, data: Path) -> None:
    picture = base64.b64encode((data / "embedded/colour-and-shape-0.png").read_bytes()).decode()
    sound = base64.b64encode((data / "embedded/transcripts-0.wav").read_bytes()).decode()
    seen = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    heard = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    for part, words, wanted in ((seen, "What do you see?", "triangle"), (heard, "Transcribe this.", "left right")):
        messages = [{"role": "user", "content": [part, {"type": "text", "text": words}]}]
        answer = check(CHAT, api.ask(PATH, chat(messages=messages)).json)
        assert wanted in answer["choices"][0]["message"]["content"]


def test_a_limit_and_a_stop_string_end_an_answer(api: Api) -> None:
    short = check(CHAT, api.ask(PATH, chat(max_completion_tokens=3)).json)["choices"][0]
    assert short["finish_reason"] == "length"
    stopped = check(CHAT, api.ask(PATH, chat(stop=" =")).json)["choices"][0]
    assert (stopped["finish_reason"], stopped["message"]["content"]) == ("stop", "2 + 3")


def test_a_bias_rules_a_token_out(api: Api) -> None:
    (token,) = api.ask("/tokenize", {"model": TINY, "content": "5"}).json["tokens"]
    answer = check(CHAT, api.ask(PATH, chat(logit_bias={str(token): -100})).json)
    assert "5" not in answer["choices"][0]["message"]["content"]


def test_models_are_listed(api: Api) -> None:
    listed = api.ask("/v1/models").json
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == [TINY]
    assert type(listed["data"][0]["created"]) is int
    assert api.ask(f"/v1/models/{TINY}").json["id"] == TINY
    assert api.ask("/v1/models/other").status == 404


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "nope"}, 404, "model"),
        ({"model": "/etc/passwd"}, 404, "model"),
        ({"model": "../../x.gguf"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, None),
        ({"messages": ASKS_WEATHER, "n": 99}, 400, "n"),
    ],
)
def test_errors_before_a_stream_have_a_status(api: Api, fields: Any, status: int, param: str | None) -> None:
    for stream in (False, True):
        answer = api.ask(PATH, chat(**fields, stream=stream))
        assert answer.status == status
        assert check(OPENAI_ERROR, answer.json)["error"]["param"] == param


# -- the translators alone


def test_system_and_developer_messages_at_the_start_become_one() -> None:
    leading = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
    ]
    ask = read(messages=[*leading, *HELLO])
    assert ask.messages == [{"role": "system", "content": "A\n\nB"}, *HELLO]


def test_nulls_count_as_absent() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": None, "refusal": None, "reasoning": None}
    ask = read(messages=[*HELLO, message, *HELLO], tools=None, stop=None, n=None, stream_options=None, seed=None)
    assert ask.messages is not None and ask.messages[1] == {"role": "assistant", "content": ""}


def test_thoughts_come_back_under_either_name() -> None:
    for name in ("reasoning", "reasoning_content"):
        ask = read(messages=[*HELLO, {"role": "assistant", "content": "x", name: "hm"}, *HELLO])
        assert ask.messages is not None and ask.messages[1]["thinking"] == "hm"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "get_weather"}}, "get_weather"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}}, "required"),
    ],
)
def test_tool_choices(choice: Any, wanted: str) -> None:
    ask = read(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    assert (ask.tool_choice, ask.parallel, len(ask.tools)) == (wanted, False, 1)


def test_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert read(response_format=named).format == schema
    assert read(response_format={"type": "json_object"}).format == "json"
    assert read(response_format={"type": "text"}).format is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "custom", "name": "x"}]},
        {"tools": [WEATHER, WEATHER]},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"functions": [{"name": "x"}]},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "x" * BOUNDS.schema}}}},
        {"top_logprobs": 3},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"5": 101}},
        {"temperature": "hot"},
        {"temperature": -1},
        {"max_tokens": 1.5},
        {"max_tokens": -(10**30)},
        {"seed": True},
        {"stop": [1]},
        {"stop": ["x"] * 99},
        {"modalities": ["text", "audio"]},
        {"messages": "hello"},
        {"messages": [{"role": "user"}, "x"]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "video", "video": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "https://a.b/c.png"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "/etc/passwd"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "/etc/hosts"}}]}]},
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
    ],
)
def test_what_is_refused_by_name(fields: Any) -> None:
    with pytest.raises(Problem) as caught:
        read(**fields)
    assert caught.value.status == 400


def test_every_chunk_of_an_answer_with_everything() -> None:
    ask = read(n=2, stream=True)
    used = Usage(10, 4, 5)
    events = [
        Started(10, 4),
        Thinking("hm", 1),
        Text("a\u2028b", 0),
        Text("c", 1),
        Call("f", {"x": 1}, 0, 1),
        Call("g", {}, 1, 1),
        Finish("length", used, 0),
        Finish("tool", used, 1),
    ]
    writer = ChatWriter(ask, usage=True)
    text = "".join([*writer.begin(), *(line for event in events for line in writer.write(event)), *writer.end()])
    chunks = check_chat_stream(text, usage=True, n=2)
    assert chunks[-1]["usage"]["completion_tokens"] == 10 and chunks[-1]["usage"]["prompt_tokens"] == 10
    whole = Whole()
    for event in events:
        whole.add(event)
    body = check(CHAT, ChatWriter(ask).whole(whole))
    assert body["choices"][1]["message"]["tool_calls"][1]["function"] == {"name": "g", "arguments": "{}"}


def test_an_error_in_mid_stream_is_an_object() -> None:
    (line,) = ChatWriter(read()).fail(Problem(503, "Gone."))
    check(OPENAI_ERROR, json.loads(line.removeprefix("data: ")))
