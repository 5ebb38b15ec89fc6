"""`wgemma ps` and `wgemma stop` ask a server over Ollama's API."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from wgemma.cli import main
from wgemma.cli.running import server_address
from wgemma.errors import SettingsError


class FakeServer:
    """Answers with what `models` says, and notes what it is told."""

    def __init__(self) -> None:
        self.models: Any = []
        self.version: dict[str, str] = {"version": "0.33.0", "wgemma": "1"}
        self.keys: list[str | None] = []
        self.told: list[tuple[str, Any]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.keys.append(self.headers["Authorization"])
                self.reply(outer.version if self.path == "/api/version" else {"models": outer.models})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.told.append((self.path, body))
                self.reply({"done": True} if outer.status == 200 else {"error": "model 'x' not found"})

            def reply(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    server = FakeServer()
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.http.server_port}")
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_loaded_models_are_listed(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == f"wgemma at {server_address(None)} has no model in memory.\n"
    soon = (datetime.now(UTC) + timedelta(seconds=299.9)).isoformat(timespec="microseconds")
    facts = {"size": 3_300_000_000, "size_vram": 3_000_000_000, "context_length": 4096}
    server.models = [{"name": "gemma4:e2b", **facts, "expires_at": soon.replace("+00:00", "123Z")}, {"name": 5}, "x"]
    assert main(["ps"]) == 0
    header, row, odd = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "SIZE", "ON", "THE", "GPU", "CONTEXT", "UNTIL"]
    assert row.split()[:6] == ["gemma4:e2b", "3.3", "GB", "3.0", "GB", "4096"]
    assert row.endswith(("5:00 from now", "4:59 from now")) and odd.split() == ["5"]
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "gemma4:e2b"


def test_a_model_is_stopped(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "gemma4:e2b"]) == 0
    assert server.told == [("/api/generate", {"model": "gemma4:e2b", "keep_alive": 0, "stream": False})]
    assert capsys.readouterr().out == "wgemma no longer has gemma4:e2b in memory.\n"
    assert main(["stop", "gemma4:e2b", "--json"]) == 0
    told = {"model": "gemma4:e2b", "server": server_address(None), "unloaded": True}
    assert json.loads(capsys.readouterr().out) == told
    server.status = 404
    assert main(["stop", "x"]) == 1
    assert "answered 404: model 'x' not found. `wgemma ps` lists" in capsys.readouterr().err


def test_ollama_is_called_by_its_name(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have the usual port, and wgemma the next one."""
    del server.version["wgemma"]
    assert main(["ps"]) == 0 and main(["stop", "x"]) == 0
    address = server_address(None)
    assert (
        capsys.readouterr().out == f"Ollama at {address} has no model in memory.\nOllama no longer has x in memory.\n"
    )
    server.models = [{"name": "x"}]
    assert main(["ps"]) == 0
    assert capsys.readouterr().err == f"These are in Ollama's memory, which answers at {address}.\n"


def test_a_server_with_a_key_hears_it(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGEMMA_API_KEY", "secret")
    assert main(["ps"]) == 0
    assert set(server.keys) == {"Bearer secret"}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n<html>Hello</html>",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b'HTTP/1.0 200 OK\r\n\r\n{"hello": 1}',
        b"HTTP/1.0 404 No\r\n\r\nNot found",
        b"HTTP/1.0 302 There\r\nLocation: /elsewhere\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0" * 100,
        b"",
    ],
)
@pytest.mark.parametrize("command", [["ps"], ["ps", "--json"], ["stop", "x"], ["stop", "x", "--json"]])
def test_who_is_no_server_of_models_is_told(
    answer: bytes, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass

        Thread(target=once, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main([*command, "--host", address]) == 1
        listener.shutdown(socket.SHUT_RDWR)
    out, err = capsys.readouterr()
    assert out == "" and f"http://{address} is neither wgemma nor Ollama. `wgemma serve`" in err


def test_no_server_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--host", "127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9: connection refused. " in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("1.2.3.4:56", "http://1.2.3.4:56"),
        (":56", "http://127.0.0.1:56"),
        ("0.0.0.0:56", "http://127.0.0.1:56"),
        ("http://1.2.3.4", "http://1.2.3.4:80"),
        ("https://example.com", "https://example.com:443"),
        ("https://example.com:56/path/", "https://example.com:56/path"),
        ("example.com/", "http://example.com:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]:56", "http://[::1]:56"),
        ('"example.com:5"', "http://example.com:5"),
    ],
)
def test_where_the_server_is(monkeypatch: pytest.MonkeyPatch, text: str, address: str) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    assert server_address(text) == address
    monkeypatch.setenv("OLLAMA_HOST", text)
    assert server_address(None) == address


@pytest.mark.parametrize("text", ["ftp://x", "host:99999", "host:port", "[bad"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a server's address"):
        server_address(text)
