"""The server under load: a full queue, clients who leave or read slowly, models that fail."""

import json
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from api_server import TINY, Api, serving
from event_shapes import OPENAI_ERROR, check, check_chat_stream
from fake_models import Garage
from wgemma.errors import BadLogits, DeviceLost
from wgemma.serve.listening import Protocol
from wgemma.serve.settings import Settings

PATH = "/v1/chat/completions"
ASK = {"model": TINY, "messages": [{"role": "user", "content": "x"}]}


def test_a_full_queue_answers_503_and_when_to_come_back() -> None:
    garage = Garage(words=10_000, pause=0.01)
    with serving(Settings(slots=1, queue=1), garage) as api:
        connections = [_begin(api) for _ in range(2)]
        api.wait(lambda: api.service.inside == 2)
        answer = api.ask(PATH, ASK)
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert check(OPENAI_ERROR, answer.json)["error"]["code"] == "server_busy"
        for connection in connections:
            connection.close()
        api.wait(lambda: api.service.inside == 0)
        garage.last.words = 3
        assert api.ask(PATH, ASK).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_answer(stream: bool) -> None:
    garage = Garage(words=1 << 40, pause=0.002)
    with serving(load=garage) as api:
        connection = _begin(api, stream=stream)
        api.wait(lambda: garage.loaded and garage.last.written > 3)
        connection.close()
        api.wait(lambda: garage.last.live == 0)
        api.wait(lambda: api.service.inside == 0 and api.service.models.resident()[0].users == 0)
        assert 'finished_reason="cancelled"} 1' in api.ask("/metrics").text


def test_a_slow_reader_makes_its_answer_wait_and_nobody_else() -> None:
    garage = Garage(words=1 << 40, text="word " * 200)
    with serving(load=garage) as api:
        connection = _begin(api, stream=True)
        api.wait(lambda: garage.loaded and _rests(garage))
        written = garage.last.written
        garage.last.words = 3
        check_chat_stream(api.ask(PATH, {**ASK, "stream": True}).text)
        assert garage.last.written - written <= 8
        connection.close()


def test_a_reader_that_reads_nothing_for_long_is_dropped() -> None:
    class Impatient(Protocol):
        limits = replace(Protocol.limits, stall=0.3)

    garage = Garage(words=1 << 40, text="word " * 200)
    with serving(load=garage, protocol=Impatient) as api:
        connection = _begin(api, stream=True)
        api.wait(lambda: garage.loaded and garage.last.live == 1)
        api.wait(lambda: garage.last.live == 0)
        connection.close()


def test_a_model_that_fails_ends_its_own_requests_only() -> None:
    garage = Garage(failure=BadLogits("layer 3 has NaN in /secret/path"))
    with serving(load=garage) as api:
        answer = api.ask(PATH, {**ASK, "stream": True})
        assert answer.status == 500
        assert "secret" not in check(OPENAI_ERROR, answer.json)["error"]["message"]
        garage.last.fails_at = 2
        text = api.ask(PATH, {**ASK, "stream": True}).text
        last = text.strip().split("\n\n")[-1]
        check(OPENAI_ERROR, json.loads(last.removeprefix("data: ")))
        assert "secret" not in text
        garage.last.failure = DeviceLost("gone")
        assert api.ask(PATH, ASK).status == 500
        garage.last.failure = None
        assert api.ask(PATH, ASK).status == 200


def test_a_bug_is_told_in_general_words(caplog: pytest.LogCaptureFixture) -> None:
    failure: Any = ZeroDivisionError("at /secret/file.py, line 7")
    with serving(load=Garage(failure=failure)) as api:
        answer = api.ask(PATH, ASK)
        assert answer.status == 500 and b"secret" not in answer.body and b"Zero" not in answer.body
    assert "secret" in caplog.text


def test_open_requests_end_before_the_server_does() -> None:
    garage = Garage(words=20, pause=0.01)
    answers = []
    with serving(load=garage) as api:
        thread = threading.Thread(target=lambda: answers.append(api.ask(PATH, {**ASK, "stream": True})))
        thread.start()
        api.wait(lambda: garage.loaded and garage.last.written)
    thread.join()
    check_chat_stream(answers[0].text)
    assert garage.last.closed


def test_a_model_hears_all_that_was_asked_for() -> None:
    garage, schema = Garage(), {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    with serving(load=garage) as api:
        api.ask(
            PATH,
            {
                **ASK,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
                "tools": [tool],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
                "reasoning_effort": "high",
                "seed": 5,
                "presence_penalty": 1,
                "max_tokens": 7,
                "logprobs": True,
            },
        )
        (asked,) = garage.last.asked
        assert asked == {
            "messages": ASK["messages"],
            "format": schema,
            "tools": [tool],
            "tool_choice": "f",
            "parallel_tool_calls": False,
            "think": "high",
            "seed": 5,
            "presence_penalty": 1,
            "repeat_last_n": -1,
            "max_tokens": 7,
            "logprobs": 0,
            "shift": False,
            "adapter": None,
        }
        api.ask(PATH, ASK)
        assert garage.last.asked[1] == {"messages": ASK["messages"], "think": False, "shift": False, "adapter": None}


def test_a_schema_that_cannot_be_enforced_is_refused() -> None:
    with serving() as api:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
        for stream in (False, True):
            answer = api.ask(PATH, {**ASK, "response_format": form, "stream": stream})
            assert answer.status == 400
            check(OPENAI_ERROR, answer.json)


def test_what_was_done_is_counted() -> None:
    garage = Garage(words=4)
    with serving(load=garage) as api:
        api.ask(PATH, ASK)
        api.ask(PATH, {**ASK, "stream": True, "model": f"{TINY}:latest"})  # another spelling is no other model
        api.ask(PATH, {**ASK, "model": "any-name-at-all"})
        text = api.ask("/metrics").text
        for line in (
            "prompt_tokens_total{MODEL} 10",
            "generation_tokens_total{MODEL} 8",
            'request_success_total{MODEL,finished_reason="stop"} 2',
            "time_to_first_token_seconds_count{MODEL} 2",
            "inter_token_latency_seconds_count{MODEL} 6",
            "request_queue_time_seconds_count{MODEL} 2",
            "num_requests_running{MODEL} 0",
        ):
            assert f"wgemma:{line}\n".replace("MODEL", f'model_name="{TINY}"') in text
        assert "any-name" not in text
        assert api.ask("/health").json == {"status": "ok"}


def _begin(api: Api, **fields: Any) -> socket.socket:
    """A request whose answer nobody reads yet."""
    body = json.dumps({**ASK, **fields}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", api.port))
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def _rests(garage: Garage) -> bool:
    before = garage.last.written
    time.sleep(0.1)
    return 0 < before == garage.last.written
