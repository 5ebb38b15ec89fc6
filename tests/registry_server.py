"""A registry and a hub on loopback: Ollama's protocol and Hugging Face's listing, as well or badly behaved as told."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import quote, unquote

from gguf_writer import write_gguf

CONFIG = {"model_format": "gguf", "model_family": "gemma4", "file_type": "Q8_0", "parser": "gemma4"}
TINY = write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
PIECE = 1 << 14


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """What the server has, how it misbehaves, and what it was asked for."""

    def __init__(self) -> None:
        self.host = ""
        self.documents: dict[str, bytes] = {}  # by path: manifests and listings
        self.links: dict[str, str] = {}  # by path and query of a document: its next page
        self.blobs: dict[str, bytes] = {}  # by path
        self.redirects: dict[str, str] = {}  # by path
        self.cuts: list[int] = []  # after how many bytes the next answers with a blob are cut
        self.statuses: list[int] = []  # of the next answers with a blob
        self.ranges = True
        self.pause = 0.0  # seconds between two pieces of a blob
        self.delay = 0.0  # seconds before any answer
        self.asked: list[tuple[str, str]] = []  # (path, Range) of blobs
        self.tokens: dict[str, str | None] = {}  # by path: the Authorization that came
        self._lock = Lock()

    # -- filling it

    def add(self, name: str, layers: Sequence[tuple[str, bytes]], config: Any = None) -> dict[str, Any]:
        """A model by `namespace/model:tag`; returns its manifest, to be changed and `put` again."""
        repository = name.partition(":")[0]
        settings = json.dumps(config or CONFIG).encode()
        entries = []
        for kind, data in (("config", settings), *layers):
            self.blobs[f"/v2/{repository}/blobs/{digest(data)}"] = data
            media = f"application/vnd.ollama.image.{kind}"
            entries.append({"mediaType": media, "digest": digest(data), "size": len(data)})
        manifest = {"schemaVersion": 2, "config": entries[0], "layers": entries[1:]}
        self.put(name, manifest)
        return manifest

    def put(self, name: str, manifest: Any) -> None:
        repository, _, tag = name.partition(":")
        data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        self.documents[f"/v2/{repository}/manifests/{tag}"] = data

    def add_repository(self, repository: str, files: dict[str, bytes]) -> list[dict[str, Any]]:
        """A repository on the hub, and its listing."""
        entries: list[dict[str, Any]] = [{"type": "file", "path": "README.md", "oid": "f" * 40, "size": 5}]
        for path, data in files.items():
            self.redirects[f"/{repository}/resolve/main/{quote(path)}"] = f"/cdn/{digest(data)}"
            self.blobs[f"/cdn/{digest(data)}"] = data
            large = {"oid": digest(data).removeprefix("sha256:"), "size": len(data), "pointerSize": 134}
            entries.append({"type": "file", "path": path, "oid": "e" * 40, "size": len(data), "lfs": large})
        self.documents[f"/api/models/{repository}/tree/main"] = json.dumps(entries).encode()
        return entries

    # -- answering

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.tokens[path] = request.headers["Authorization"]
        time.sleep(self.delay)
        if path in self.redirects:
            request.send_response(307)
            request.send_header("Location", self.redirects[path])
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif request.path in self.documents or path in self.documents:
            data = self.documents.get(request.path, self.documents.get(path, b""))
            request.send_response(200)
            if request.path in self.links:
                request.send_header("Link", f'<{self.links[request.path]}>; rel="next"')
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
        elif unquote(path) in self.blobs:
            self._send(request, self.blobs[unquote(path)])
        else:
            request.send_error(404)

    def _send(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        with self._lock:
            wanted = request.headers["Range"] or ""
            self.asked.append((request.path, wanted))
            is_read = len(data) > 400  # small ones are not worth cutting
            status = self.statuses.pop(0) if self.statuses and is_read else 0
            cut = self.cuts.pop(0) if self.cuts and is_read else None
        if status:
            return request.send_error(status)
        start, stop = 0, len(data)
        if wanted and self.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(data))
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(stop - start))
        request.end_headers()
        end = stop if cut is None else min(stop, start + cut)
        try:
            for at in range(start, end, PIECE):
                request.wfile.write(data[at : min(at + PIECE, end)])
                if self.pause:
                    time.sleep(self.pause)
        except OSError:
            pass  # whoever asked is gone
        request.close_connection = True
        return None


@contextmanager
def serving() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.answer(self)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.host = f"127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
