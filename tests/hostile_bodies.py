"""Bodies that no honest client sends: honest ones with strange values in them."""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from api_server import TINY
from event_shapes import ANTHROPIC_ERROR, OLLAMA_ERROR, OPENAI_ERROR, check
from fake_models import Garage
from gguf_writer import write_gguf
from wgemma.creating import create
from wgemma.errors import StoreError
from wgemma.files.keeping import put_blob
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.serve.app import make_app
from wgemma.serve.models import Load
from wgemma.serve.service import Service
from wgemma.serve.settings import Settings

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "model": TINY,
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream": False,
    "n": 1,
    "temperature": 1.0,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 5,
    "stream_options": {"include_usage": True},
}
RESPONSE = {
    "model": TINY,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {}}],
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "stream": False,
}
MESSAGE = {
    "model": TINY,
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "stream": False,
}
OLLAMA_CHAT = {
    "model": TINY,
    "messages": [{"role": "user", "content": "x", "images": []}],
    "tools": [TOOL],
    "options": {"num_predict": 4, "stop": ["x"], "num_ctx": 100},
    "keep_alive": "5m",
    "think": "low",
    "format": None,
    "stream": False,
}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": TINY, "prompt": ["a", "b"], "n": 1, "max_tokens": 3, "logprobs": 1, "stream": False},
    "/v1/responses": RESPONSE,
    "/v1/embeddings": {"model": TINY, "input": ["a"], "encoding_format": "float", "dimensions": 2},
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": {"model": TINY, "messages": [{"role": "user", "content": "x"}]},
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": {"model": TINY, "prompt": "x", "system": "s", "raw": False, "images": [], "stream": False},
    "/api/embed": {"model": TINY, "input": ["a"], "dimensions": 2},
    "/api/embeddings": {"model": TINY, "prompt": "a"},
    "/api/show": {"model": TINY, "verbose": False},
    "/tokenize": {"model": TINY, "content": "x", "parse_special": True},
    "/detokenize": {"model": TINY, "tokens": [5]},
}
BASE, FILE = "base", write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
DIGEST = f"sha256:{hashlib.sha256(FILE).hexdigest()}"
ABSENT = f"sha256:{'0' * 64}"
CREATE = {
    "model": "made",
    "from": BASE,
    "system": "s",
    "parameters": {"temperature": 1.0, "stop": ["x"], "num_ctx": 100},
    "messages": [{"role": "user", "content": "x"}],
    "license": ["MIT"],
    "adapters": {},
    "stream": False,
}
STORE_BODIES: dict[str, Any] = {  # with `store` around them
    "/api/pull": {"model": "gemma4:tiny", "insecure": False, "stream": False},
    "/api/create": CREATE,
    "/api/create?files": {"model": "made", "files": {"a.gguf": DIGEST}, "template": None, "stream": False},
    "/api/copy": {"source": BASE, "destination": "other"},
    "/api/delete": {"model": "other"},
}
STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, -(10**40), 1 << 63, "", "x", "\ud800", "\0", "/etc/passwd", "{}"),
    *([], [[]], [None], [1], ["x"], {}, {"type": "x"}, {"a": {"b": []}}, [{}], "x" * 5000, "data:,", "https://a.b/c"),
]


class Client:
    """Calls the app itself, without a socket; its models are made up unless it loads others."""

    def __init__(self, load: Load | None = None, settings: Settings | None = None) -> None:
        self.runner = asyncio.Runner()
        self.garage = Garage()
        self.load, self.settings = load or self.garage, settings or Settings()
        self.app = self.runner.run(self._make())

    async def _make(self) -> Any:
        return make_app(Service(self.settings, self.load))

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        return self.runner.run(asyncio.wait_for(self._post(path, body), 10))

    async def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        scope = {
            "type": "http",
            "method": "DELETE" if path == "/api/delete" else "POST",
            "path": path.partition("?")[0],
            "raw_path": path.encode(errors="replace"),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "server": ("127.0.0.1", 1),
            "root_path": "",
        }
        sent: list[Any] = []
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return left.pop() if left else await asyncio.sleep(60)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def check(self, path: str, body: bytes) -> int:
        """The status of the answer, which must be an honest one or an error in the API's own JSON."""
        status, answer = self.post(path, body)
        assert status < 500, (path, body[:500], answer)
        if status not in (200, 201):
            shape = ANTHROPIC_ERROR if "messages" in path else OLLAMA_ERROR if path.startswith("/api") else OPENAI_ERROR
            error = str(check(shape, json.loads(answer)))
            assert not any(word in error for word in ("Traceback", ".py", "/root", "/home"))
        return status


@contextmanager
def store(folder: Path) -> Iterator[None]:
    """A store for requests to change, and registries that have nothing: no request leaves this machine."""

    def nothing(name: Any) -> Any:
        raise StoreError(f"{name} is not there.", "not_in_registry")

    own = {"WGEMMA_MODELS": str(folder / "own"), "OLLAMA_MODELS": str(folder / "none")}
    with (
        patch.dict(os.environ, own),
        patch("wgemma.pulling.registry_plan", nothing),
        patch("wgemma.files.hub.hub_choice", nothing),
    ):
        if BASE not in Stores.find().own:
            put_blob(Stores.find().own, DIGEST, [FILE])
            for _ in create(BASE, Recipe(files={"a": DIGEST})):
                pass
        yield


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a body, except for the model's name: with another one there is nothing to test."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key != "model":
            yield (*before, key)
            yield from places(item, (*before, key))


def put(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The body with another value there."""
    copy = json.loads(json.dumps(body))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy
