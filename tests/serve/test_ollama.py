"""Ollama's API, by a running server and by the translators alone."""

import base64
import math
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Api
from event_shapes import LINES, OLLAMA_ERROR, check, check_lines
from wgemma.engine.endings import Usage
from wgemma.serve.ask import Ask, Call, Finish, Started, Text, Thinking
from wgemma.serve.fields import Fields
from wgemma.serve.ollama import LineWriter, read_chat, read_generate
from wgemma.serve.problems import Problem

HELLO = [{"role": "user", "content": "What is 2+3?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat(api: Api, **fields: Any) -> Any:
    return api.ask("/api/chat", {"model": TINY, "messages": HELLO, **fields})


def generate(api: Api, **fields: Any) -> Any:
    return api.ask("/api/generate", {"model": TINY, "prompt": "What is 2+3?", **fields})


def test_a_chat_streams_unless_told_otherwise(api: Api) -> None:
    answer = chat(api)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = check_lines(answer.text, chat=True)
    assert "".join(line["message"]["content"] for line in lines) == "2 + 3 = 5"
    whole = check(LINES[True][True], chat(api, stream=False).json)
    assert whole["message"]["content"] == "2 + 3 = 5"
    assert 0 < whole["prompt_eval_duration"] + whole["eval_duration"] < whole["total_duration"] < 60e9


def test_generate_answers_a_prompt(api: Api) -> None:
    lines = check_lines(generate(api, options={"num_predict": 3}).text, chat=False)
    assert lines[-1]["done_reason"] == "length" and lines[-1]["eval_count"] == 3
    whole = check(LINES[False][True], generate(api, stream=False, system="Be short.").json)
    assert "5" in whole["response"]


def test_a_raw_prompt_is_continued_as_it_is(api: Api) -> None:
    prompt = "<|turn>user\nHello<turn|>\n<|turn>model\n"
    whole = check(LINES[False][True], generate(api, prompt=prompt, raw=True, stream=False).json)
    assert "How can I help" in whole["response"] and whole["prompt_eval_count"] == 10


@pytest.mark.parametrize("think", [True, "low", "high"])
def test_thinking_has_a_field_of_its_own(api: Api, think: Any) -> None:
    lines = check_lines(chat(api, think=think).text, chat=True)
    assert "2 + 3 = 5" in "".join(line["message"].get("thinking", "") for line in lines)
    assert "thinking" in check(LINES[False][True], generate(api, think=think, stream=False).json)


def test_a_tool_call_has_an_object_and_its_result_is_read(api: Api) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    lines = check_lines(chat(api, messages=asked, tools=[WEATHER]).text, chat=True)
    (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    more = chat(api, messages=[*asked, said, result], tools=[WEATHER], options={"num_predict": 8}, stream=False)
    assert "sunny" in check(LINES[True][True], more.json)["message"]["content"]


def test_a_result_whose_call_the_client_left_out_is_text(api: Api) -> None:
    """LiteLLM does that."""
    result = {"role": "tool", "tool_name": "f", "tool_call_id": "1", "content": "What is 3+4?"}
    said = {"role": "assistant", "content": "2 + 3 = 5"}
    answer = api.ask("/api/chat", {"model": TINY, "messages": [*HELLO, said, result], "stream": False})
    assert answer.json["message"]["content"] == "3 + 4 = 7"


def test_logprobs_stand_beside_the_message(api: Api) -> None:
    lines = check_lines(chat(api, logprobs=True, top_logprobs=1).text, chat=True)
    assert "".join(token["token"] for line in lines for token in line.get("logprobs", ())) == "2 + 3 = 5"


def test_images_may_be_pictures_or_sounds(api: Api, data: Path) -> None:
    for file, words, wanted in (
        ("colour-and-shape-0.png", "What do you see?", "triangle"),
        ("transcripts-0.wav", "Transcribe this.", "left right"),
    ):
        encoded = base64.b64encode((data / "embedded" / file).read_bytes()).decode()
        message = {"role": "user", "content": words, "images": [encoded]}
        assert wanted in chat(api, messages=[message], stream=False).json["message"]["content"]
        assert wanted in generate(api, prompt=words, images=[encoded], stream=False).json["response"]


def test_embeddings_old_and_new(api: Api) -> None:
    new = api.ask("/api/embed", {"model": TINY, "input": ["a cat", "a dog"]}).json
    old = api.ask("/api/embeddings", {"model": TINY, "prompt": "a cat"}).json
    assert new["embeddings"][0] == pytest.approx(old["embedding"], abs=1e-3)  # other neighbours, other last bits
    assert new["prompt_eval_count"] == 6 and new["total_duration"] > 0
    assert api.ask("/api/embed", {"model": TINY, "input": ""}).json["embeddings"] == []
    assert len(api.ask("/api/embed", {"model": TINY, "input": "x", "dimensions": 5}).json["embeddings"][0]) == 5


def test_empty_requests_load_and_unload(api: Api) -> None:
    loaded = generate(api, prompt="", keep_alive="3m").json
    assert (loaded["done"], loaded["done_reason"], loaded["response"]) == (True, "load", "")
    (running,) = api.ask("/api/ps").json["models"]
    assert running["name"] == TINY and running["size_vram"] > 15_000_000 and running["context_length"] == 2048
    unloaded = chat(api, messages=[], keep_alive=0).json
    assert (unloaded["done_reason"], unloaded["message"]["content"]) == ("unload", "")
    assert api.ask("/api/ps").json == {"models": []}


def test_it_says_that_it_is_there_and_what_it_has(api: Api) -> None:
    assert api.ask("/").text == "Ollama is running"
    for path in ("/", "/api/version", "/api/tags"):
        head = api.ask(path, method="HEAD")
        assert (head.status, head.body) == (200, b"")
    (entry,) = api.ask("/api/tags").json["models"]
    assert entry["name"] == entry["model"] == TINY and len(entry["digest"]) == 64
    assert entry["details"]["family"] == "gemma4" and "vision" in entry["capabilities"]
    shown = api.ask("/api/show", {"model": TINY}).json
    assert shown["model_info"]["general.architecture"] == "gemma4" and "tools" in shown["capabilities"]
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None and "/" not in shown["modelfile"]
    assert api.ask("/api/show", {"name": TINY, "verbose": True}).json["tensors"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", {"model": "nope", "messages": HELLO}, 404),
        ("/api/chat", {"messages": HELLO}, 400),
        ("/api/chat", {"model": TINY, "messages": HELLO, "keep_alive": "soon"}, 400),
        ("/api/chat", {"model": TINY, "messages": [{"role": "user", "images": ["/etc/passwd"]}]}, 400),
        ("/api/chat", {"model": TINY, "messages": [{"role": "user", "content": "word " * 3000}], "shift": False}, 400),
        ("/api/generate", {"model": TINY, "prompt": "x", "suffix": "y"}, 400),
        ("/api/generate", {"model": TINY, "prompt": "x", "template": "y"}, 400),
        ("/api/generate", {"model": TINY, "prompt": "x", "context": [1]}, 400),
        ("/api/show", {"model": "../../etc/passwd"}, 404),
        ("/api/embed", {"model": TINY, "input": [1]}, 400),
        ("/api/nothing", {}, 404),
        ("/api/tags", {}, 405),
    ],
)
def test_errors_are_a_line(api: Api, path: str, body: Any, status: int) -> None:
    answer = api.ask(path, body)
    assert answer.status == status
    check(OLLAMA_ERROR, answer.json)


def test_a_chat_that_is_too_long_loses_its_oldest_turns(api: Api) -> None:
    long = [{"role": role, "content": "word " * 400} for _ in range(4) for role in ("user", "assistant")]
    assert chat(api, messages=[*long, *HELLO], stream=False, options={"num_predict": 2}).status == 200


# -- the translators alone


def read(**fields: Any) -> Ask:
    return read_chat(Fields({"model": "m", "messages": HELLO, **fields}))


def test_options() -> None:
    given = {"num_predict": -1, "num_ctx": 4096, "stop": "x", "seed": 3, "top_k": 5, "num_gpu": 99, "mirostat": 1}
    ask = read(options=given)
    assert (ask.max_tokens, ask.context, ask.stop) == (None, 4096, ["x"])
    assert ask.sampling == {"seed": 3, "top_k": 5}


@pytest.mark.parametrize(
    ("given", "wanted"), [(0, 0), ("0", 0), (-1, math.inf), ("-1m", math.inf), ("1h30m", 5400), ("1.5s", 1.5), (60, 60)]
)
def test_how_long_a_model_stays(given: Any, wanted: float) -> None:
    assert read(keep_alive=given).keep_alive == wanted


def test_thinking_words() -> None:
    words = {True: True, False: False, None: False, "low": "low", "max": True, "false": False}
    assert {think: read(think=think).think for think in words} == words


def test_formats() -> None:
    assert [read(format=given).format for given in (None, "", "json", {"type": "object"})] == [
        None,
        None,
        "json",
        {"type": "object"},
    ]
    with pytest.raises(Problem):
        read(format="xml")
    with pytest.raises(Problem):
        read_generate(Fields({"model": "m", "prompt": "x", "raw": True, "format": "json"}))


@pytest.mark.parametrize("is_chat", [True, False])
def test_every_line_of_an_answer_with_everything(is_chat: bool) -> None:
    writer = LineWriter(read(), chat=is_chat)
    events = [Started(3, 1), Thinking("hm"), Text("a\u2028"), Call("f", {"x": 1}), Call("g", {}, 1)]
    lines = [line for event in events for line in writer.write(event)]
    lines += [*writer.write(Finish("tool", Usage(3, 1, 9))), *writer.end()]
    assert check_lines("".join(lines), chat=is_chat)[-1]["done_reason"] == "stop"
