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
def test_of_two_replicas_one_is_drained_and_one_is_killed(ray_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgemma.scale.ray_cluster import LOCAL, cluster
    from wgemma.scale.ray_proxy import CALLBACK
    from wgemma.serve.settings import Settings

    few = ray_folder / "few"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with cluster(LOCAL, CALLBACK):
        import ray

        from wgemma.scale import ray_serve

        monkeypatch.setattr(ray_serve, "scaling", lambda *_: _two_until(few))
        ray_serve.deploy(Settings(context=256, slots=64), 1, 2, "127.0.0.1", port)
        try:
            assert _ask(port, "/health") == {"status": "ok"}
            streams, threads = _streams(port, 200, _endless(port))
            assert len(set(_by_session(streams).values())) == 2
            # Ray scales down to one replica: the other one gets nothing new, and has streams to end.
            few.touch()
            _wait_for(lambda: _states() == {"RUNNING": 1, "STOPPING": 1})
            killed = _answering(port)
            drained = {stream.replica for stream in streams} - {killed}
            assert all(_unfinished(streams, replica) for replica in (killed, *drained))
            ray.kill(ray.get_actor(f"SERVE_REPLICA::wgemma#replica#{killed}", namespace="serve"))
            for thread in threads:
                thread.join(120)
            for stream in streams:
                if stream.complete:
                    check_chat_stream("\n".join(stream.lines) + "\n")
                else:
                    assert (stream.replica, stream.error) == (killed, "worker_lost"), stream.lines[-3:]
            assert any(stream.error for stream in streams)
            # The drained replica goes, the killed one is replaced.
            _wait_for(lambda: _states() == {"RUNNING": 1})
            assert _answering(port) not in {killed, *drained}
        finally:
            ray_serve.undeploy()


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


def _unfinished(streams: list[Stream], replica: str) -> int:
    return sum(stream.replica == replica and not stream.complete for stream in streams)


class TwoUntil:
    """For Ray's autoscaler: two replicas, and one as soon as there is a file `few`."""

    def __init__(self, few: str) -> None:
        self.few = few

    def __call__(self, _: Any) -> tuple[int, dict[str, Any]]:
        return (1 if Path(self.few).exists() else 2), {}


def _two_until(few: Path) -> Any:
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    return AutoscalingConfig(
        min_replicas=1,
        max_replicas=2,
        initial_replicas=2,
        downscale_delay_s=0,
        policy=AutoscalingPolicy(policy_function=TwoUntil, policy_kwargs={"few": str(few)}),
    )


def _states() -> dict[str, int]:
    """How many replicas are running, starting, stopping."""
    from ray import serve

    return {
        str(getattr(state, "value", state)): count
        for state, count in serve.status().applications["wgemma"].deployments["replica"].replica_states.items()
        if count
    }


def _answering(port: int) -> str:
    """The replica that new requests go to."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().headers["x-replica"] or ""
    finally:
        connection.close()


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
