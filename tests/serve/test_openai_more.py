"""OpenAI's other endpoints: completions, embeddings, responses, transcriptions."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Api
from event_shapes import (
    COMPLETION,
    OPENAI_ERROR,
    RESPONSE,
    check,
    check_completion_stream,
    check_response_stream,
    named_events,
)
from wgemma.engine.endings import Usage
from wgemma.serve.ask import Call, Finish, Started, Text, Thinking
from wgemma.serve.fields import Fields
from wgemma.serve.openai_events import ResponseWriter
from wgemma.serve.openai_responses import read_response
from wgemma.serve.problems import Problem

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


# -- completions


def complete(api: Api, **fields: Any) -> Any:
    return api.ask("/v1/completions", {"model": TINY, "prompt": "The cat", "max_tokens": 4, **fields})


def test_prompts_are_continued(api: Api) -> None:
    ids = api.ask("/tokenize", {"model": TINY, "content": "The cat"}).json["tokens"]
    for prompt, count in (("The cat", 1), (["The cat", "One"], 2), ([2, *ids], 1), ([[2, *ids], [2, *ids]], 2)):
        answer = check(COMPLETION, complete(api, prompt=prompt).json)
        assert [choice["index"] for choice in answer["choices"]] == list(range(count))
        assert answer["choices"][0]["text"].startswith(" is")
        assert all(choice["finish_reason"] for choice in answer["choices"])


def test_several_prompts_with_several_choices_in_a_stream(api: Api) -> None:
    text = complete(api, prompt=["The cat", "One"], n=2, stream=True, logprobs=1).text
    chunks = check_completion_stream(text, choices=4)
    told = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    assert [offset for one in told if one for offset in one["text_offset"]][:2] == [0, 3]


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 3}, {"prompt": []}, {"prompt": [[]]}])
def test_what_completions_refuse(api: Api, fields: Any) -> None:
    answer = complete(api, **fields)
    assert answer.status == 400
    check(OPENAI_ERROR, answer.json)


def test_token_ids_outside_the_vocabulary_are_refused(api: Api) -> None:
    assert complete(api, prompt=[1 << 29]).status == 400


# -- embeddings


def embed(api: Api, **fields: Any) -> Any:
    return api.ask("/v1/embeddings", {"model": TINY, "input": "a cat", **fields})


def test_embeddings_as_numbers_and_as_base64(api: Api) -> None:
    numbers = embed(api).json["data"][0]["embedding"]
    packed = base64.b64decode(embed(api, encoding_format="base64").json["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(numbers)}f", packed)) == pytest.approx(numbers, abs=1e-6)
    assert sum(x * x for x in numbers) == pytest.approx(1, abs=1e-4)


def test_fewer_dimensions_are_cut_and_of_length_one(api: Api) -> None:
    whole, cut = (embed(api, **more).json["data"][0]["embedding"] for more in ({}, {"dimensions": 8}))
    assert len(cut) == 8 and sum(x * x for x in cut) == pytest.approx(1, abs=1e-4)
    assert cut[0] / cut[1] == pytest.approx(whole[0] / whole[1], rel=1e-3)
    assert embed(api, dimensions=1 << 19).status == 400


def test_several_texts_and_their_tokens(api: Api) -> None:
    answer = embed(api, input=["a cat", "a dog"]).json
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 6
    assert embed(api, input=[""]).status == embed(api, input=[]).status == embed(api, input=[None]).status == 400


# -- responses


def respond(api: Api, **fields: Any) -> Any:
    return api.ask("/v1/responses", {"model": TINY, "input": "What is 2+3?", **fields})


def test_a_response_in_one_piece(api: Api) -> None:
    answer = check(RESPONSE, respond(api, instructions="Be short.", reasoning={"effort": "low"}).json)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert "2 + 3 = 5" in answer["output"][1]["content"][0]["text"]


def test_a_response_in_events(api: Api) -> None:
    events = check_response_stream(respond(api, stream=True, reasoning={"effort": "low"}).text)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


def test_a_call_and_its_output(api: Api) -> None:
    tools = [WEATHER, {"type": "web_search"}, {"type": "namespace", "name": "x"}]
    events = check_response_stream(respond(api, input=ASKS_WEATHER, tools=tools, stream=True).text)
    (call,) = events[-1]["response"]["output"]
    assert call["name"] == "get_weather"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    answer = check(RESPONSE, respond(api, input=[*ASKS_WEATHER, call, output], tools=tools, max_output_tokens=8).json)
    assert "sunny" in answer["output"][0]["content"][0]["text"]


def test_a_response_that_is_cut_is_incomplete(api: Api) -> None:
    events = check_response_stream(respond(api, stream=True, max_output_tokens=3).text)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_what_an_agent_sends_is_understood() -> None:
    ask = read_response(
        Fields(
            {
                "model": TINY,
                "instructions": "A",
                "store": False,
                "include": ["reasoning.encrypted_content"],
                "input": [
                    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
                    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "C"}]},
                    {"role": "user", "content": "D"},
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "E"}]},
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                    {"type": "function_call", "call_id": "2", "name": "g", "arguments": '{"a":1}'},
                    {"type": "function_call_output", "call_id": "1", "output": "x"},
                    {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
                ],
            }
        )
    )
    assert ask.messages == [
        {"role": "system", "content": "A\n\nB\n\nC"},
        {"role": "user", "content": "D"},
        {
            "role": "assistant",
            "content": "E",
            "thinking": "hm",
            "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": {}}},
                {"id": "2", "function": {"name": "g", "arguments": {"a": 1}}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
    ]


def test_a_format_stands_in_the_text() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    assert read_response(Fields({"model": "m", "input": "x", "text": {"format": form}})).format == schema


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"background": True},
        {"prompt": {"id": "p"}},
        {"input": None},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "message", "content": "x"}]},
    ],
)
def test_what_responses_refuse(fields: Any) -> None:
    with pytest.raises(Problem):
        read_response(Fields({"model": "m", "input": "x", **fields}))


def test_every_event_of_a_response_with_everything() -> None:
    fields = Fields({"model": "m", "input": "x"})
    writer = ResponseWriter(read_response(fields), fields)
    events = [Started(3, 1), Thinking("hm"), Text("a"), Text("b"), Call("f", {}), Call("g", {"x": 1}), Text("c")]
    lines = [*writer.begin(), *(line for event in events for line in writer.write(event))]
    lines += [*writer.write(Finish("tool", Usage(3, 1, 9))), *writer.end()]
    done = check_response_stream("".join(lines))
    kinds = [item["type"] for item in done[-1]["response"]["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]


def test_a_response_that_fails_says_so() -> None:
    fields = Fields({"model": "m", "input": "x"})
    writer = ResponseWriter(read_response(fields), fields)
    text = "".join([*writer.begin(), *writer.fail(Problem(503, "Gone.", code="unloaded"))])
    assert check_response_stream(text)[-1]["response"]["error"] == {"code": "unloaded", "message": "Gone."}


# -- transcriptions


def form(**parts: bytes) -> tuple[bytes, dict[str, str]]:
    head = b'--edge\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    named = [head % (name.encode(), b'; filename="a.wav"' if name == "file" else b"", v) for name, v in parts.items()]
    return b"".join(named) + b"--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


def transcribe(api: Api, data: Path, **parts: bytes) -> Any:
    sound = (data / "embedded/transcripts-0.wav").read_bytes()
    body, headers = form(**{"model": TINY.encode(), "file": sound, **parts})
    return api.ask("/v1/audio/transcriptions", body, headers=headers)


def test_a_recording_is_written_down(api: Api, data: Path) -> None:
    assert transcribe(api, data).json == {"text": "left right go"}
    assert transcribe(api, data, response_format=b"text").text == "left right go\n"
    assert "00:00:00,000 --> 00:00:01," in transcribe(api, data, response_format=b"srt").text
    assert transcribe(api, data, response_format=b"vtt").text.startswith("WEBVTT\n\n00:00:00.000")
    verbose = transcribe(api, data, response_format=b"verbose_json").json
    assert verbose["segments"][0]["text"] == verbose["text"] == "left right go"


def test_a_transcript_in_events(api: Api, data: Path) -> None:
    delta, done = named_events(transcribe(api, data, stream=b"true").text)
    assert (delta["type"], done["type"]) == ("transcript.text.delta", "transcript.text.done")
    assert delta["delta"] == done["text"] == "left right go"


def test_forms_that_are_refused(api: Api, data: Path) -> None:
    for name, value in (("file", b"RIFF"), ("file", b""), ("model", b"nope"), ("temperature", b"x")):
        answer = transcribe(api, data, **{name: value})
        assert answer.status in (400, 404)
        check(OPENAI_ERROR, answer.json)
    body, headers = form(model=TINY.encode())
    for broken in (body[:-10], b"", b"--edge\r\n\r\nx\r\n--edge--\r\n"):
        assert api.ask("/v1/audio/transcriptions", broken, headers=headers).status == 400
    assert api.ask("/v1/audio/transcriptions", {"model": TINY}).status == 415
    assert api.ask("/v1/embeddings", body, headers=headers).status == 415


# -- tokens


def test_text_becomes_tokens_and_text_again(api: Api) -> None:
    found = api.ask("/tokenize", {"model": TINY, "content": "<|turn>user\nHé"}).json["tokens"]
    plain = api.ask("/tokenize", {"model": TINY, "content": "<|turn>user\nHé", "parse_special": False}).json["tokens"]
    assert len(found) < len(plain)
    for ids in (found, plain):
        answer = api.ask("/detokenize", {"model": TINY, "tokens": ids})
        assert json.loads(answer.body)["content"] == "<|turn>user\nHé"
    for wrong in ([-1], ["a"], [1 << 40], [True]):
        assert api.ask("/detokenize", {"model": TINY, "tokens": wrong}).status == 400
