"""`wgemma serve --ray` on a real Ray: sessions stay on their replica, and a replica that goes ends its streams."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY
from event_shapes import check_chat_stream
from wgemma.cli import main

PATH = "/v1/chat/completions"


@dataclass
class Stream:
    """One answer, as a client sees it arrive."""

    session: str
    status: int = 0
    replica: str = ""
    lines: list[str] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)

    @property
    def complete(self) -> bool:
        return "data: [DONE]" in self.lines

    @property
    def error(self) -> Any:
        told = [json.loads(line[6:]) for line in self.lines if line.startswith('data: {"error"')]
        return told[-1]["error"]["code"] if told else None


def test_replicas_are_a_number_or_two(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "2:1", "x", "1:2:3", ":"):
        with pytest.raises(SystemExit):
            main(["serve", "--ray", "--replicas", wrong])
        assert "such as 1:8" in capsys.readouterr().err
    assert main(["serve", "--replicas", "2", "--port", "0"]) == 1
    assert "add --ray" in capsys.readouterr().err


@pytest.mark.slow
def test_streams_outlive_a_drain_and_only_the_killed_replicas_fail(ray_folder: Path) -> None:
    from wgemma.scale.ray_cluster import LOCAL, cluster
    from wgemma.scale.ray_proxy import CALLBACK
    from wgemma.serve.settings import Settings

    settings = Settings(context=256, slots=64)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with cluster(LOCAL, CALLBACK):
        import ray

        from wgemma.scale.ray_serve import deploy, undeploy

        deploy(settings, 2, 2, "127.0.0.1", port)
        try:
            assert _ask(port, "/health") == {"status": "ok"}
            endless = _endless(port)
            # Both replicas are drained while they stream, because new ones take their place: every stream ends well.
            first, threads = _streams(port, 100, endless)
            before = _by_session(first)
            assert len(set(before.values())) == 2 and sum(not stream.complete for stream in first) > 20
            deploy(settings, 2, 2, "127.0.0.1", port)
            for thread in threads:
                thread.join(120)
            for stream in first:
                assert stream.complete, (stream.status, stream.lines[-3:])
                check_chat_stream("\n".join(stream.lines) + "\n")
            _wait_for(lambda: len(_replicas()) == 2)
            # One of the new ones is killed while it streams: only its own streams fail, and say so.
            second, threads = _streams(port, 100, endless)
            after = _by_session(second)
            assert len(set(after.values())) == 2 and not set(after.values()) & set(before.values())
            killed = second[0].replica
            ray.kill(ray.get_actor(f"SERVE_REPLICA::wgemma#replica#{killed}", namespace="serve"))
            for thread in threads:
                thread.join(120)
            lost = [stream for stream in second if stream.replica == killed]
            assert lost and len(lost) < 100
            for stream in second:
                if stream.replica != killed:
                    assert stream.complete, (stream.status, stream.lines[-3:])
                elif not stream.complete:
                    assert stream.error == "worker_lost", stream.lines[-3:]
            assert any(stream.error for stream in lost)
        finally:
            undeploy()


@pytest.mark.slow
def test_on_sigterm_open_streams_end_first(ray_folder: Path) -> None:
    command = [sys.executable, "-m", "wgemma", "serve", "--ray", "--replicas", "1", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = "".join(process.stdout.readline() for _ in range(5))
        port = json.loads(told)["port"]
        streams, threads = _streams(port, 4, _endless(port))
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(120)
        assert all(stream.complete for stream in streams)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0 and not said, said
    finally:
        process.kill()
        process.communicate()


def _streams(port: int, count: int, bias: dict[str, int]) -> tuple[list[Stream], list[threading.Thread]]:
    """So many streams, five to a session, all of which have begun."""
    streams = [Stream(f"session {i // 5}") for i in range(count)]
    threads = [threading.Thread(target=_read, args=(port, stream, bias)) for stream in streams]
    for thread in threads:
        thread.start()
    for stream in streams:
        assert stream.begun.wait(120)
        assert stream.status == 200, stream.lines
    return streams, threads


def _read(port: int, stream: Stream, bias: dict[str, int]) -> None:
    asked = {
        "model": TINY,
        "messages": [{"role": "user", "content": f"Count, {stream.session}."}],
        "max_tokens": 120,
        "logit_bias": bias,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "x-session-id": stream.session}
    try:
        connection.request("POST", PATH, json.dumps(asked), headers)
        answer = connection.getresponse()
        stream.status, stream.replica = answer.status, answer.headers.get("x-replica", "")
        for line in answer:
            stream.lines.append(line.decode().rstrip("\n"))
            stream.begun.set()
    finally:
        stream.begun.set()
        connection.close()


def _by_session(streams: list[Stream]) -> dict[str, str]:
    """The replica of each session, which has only one."""
    found = defaultdict[str, set[str]](set)
    for stream in streams:
        found[stream.session].add(stream.replica)
    assert all(len(replicas) == 1 for replicas in found.values())
    return {session: next(iter(replicas)) for session, replicas in found.items()}


def _replicas() -> set[str]:
    from ray import serve

    details = serve.status().applications["wgemma"].deployments["replica"]
    return _names() if details.replica_states.get("RUNNING") == len(_names()) else set()


def _names() -> set[str]:
    import ray

    prefix = "SERVE_REPLICA::wgemma#replica#"
    found = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"].removeprefix(prefix) for one in found if one["name"].startswith(prefix)}


def _endless(port: int) -> dict[str, int]:
    """A bias against everything that ends an answer."""
    ids = [_ask(port, "/tokenize", {"model": TINY, "content": text})["tokens"] for text in ("<turn|>", "<eos>")]
    return {str(found[-1]): -100 for found in ids}


def _ask(port: int, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    try:
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _wait_for(condition: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.1)
