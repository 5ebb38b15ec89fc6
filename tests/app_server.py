"""Web servers as processes of their own, on free ports of 127.0.0.1: `wgemma app`, and Python's plain one."""

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class App:
    """A running app."""

    host: str
    port: int
    pid: int
    token: str = ""  # in the printed address

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """One request as it is given, with `headers` written as sec_fetch_site="none"; nothing is normalised."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def resident(self) -> int:
        """Bytes of memory the server uses."""
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(kilobytes) << 10


@contextmanager
def running_app(store: Path, *arguments: str) -> Iterator[App]:
    """`wgemma app` with the models of `store`."""
    command = [sys.executable, "-m", "wgemma", "app", "--no-open", *(arguments or ("--port", "0"))]
    environment = {**os.environ, "OLLAMA_MODELS": str(store)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if address := re.search(r"wgemma is at http://\[?([0-9.:]+?)\]?:(\d+)/(?:\?token=(\S+))?", line):
                    yield App(address[1], int(address[2]), process.pid, address[3] or "")
                    break
        finally:
            process.kill()


@contextmanager
def plain_server(folder: Path) -> Iterator[str]:
    """Python's own web server: no headers of ours, no Range."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
