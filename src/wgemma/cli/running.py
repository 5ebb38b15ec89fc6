"""`wgemma ps` and `wgemma stop`: what a running server holds in memory. Both speak Ollama's API."""

import argparse
import json
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any

from wgemma.checks import human_bytes
from wgemma.cli.output import as_json, human_seconds, table
from wgemma.errors import SourceError
from wgemma.files.json_text import parse_json
from wgemma.serve.address import PORT, parse_address

TIMEOUT = 30.0
MAX_ANSWER = 4 << 20
KEY = "WGEMMA_API_KEY"
_HINTS = {  # by the status of a refusal
    401: f"Set {KEY} to it.",
    404: "`wgemma ps` lists the models in memory, `wgemma list` those on this computer.",
}


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    listing = verbs.add_parser("ps", help="list the models a running server holds in memory")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(do=list_running)
    stopping = verbs.add_parser("stop", help="let a running server unload a model")
    stopping.add_argument("model", metavar="NAME", help="a model that `wgemma ps` lists")
    stopping.add_argument("--json", action="store_true", help="print JSON")
    stopping.set_defaults(do=stop)
    for verb in (listing, stopping):
        verb.add_argument(
            "--host", metavar="HOST", help=f"ask the server there (default: $OLLAMA_HOST, or port {PORT} here)"
        )


def list_running(options: argparse.Namespace) -> int:
    address = server_address(options.host)
    models = ask(address, "/api/ps", wanted="models")["models"] or []
    models = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    if options.json:
        as_json(models)
    elif not models:
        print(f"{_program(address)} at {address} has no model in memory.")
    else:
        table(["NAME", "SIZE", "ON THE GPU", "CONTEXT", "UNTIL"], [_row(model) for model in models])
        if _program(address) != "wgemma":
            print(f"These are in Ollama's memory, which answers at {address}.", file=sys.stderr)
    return 0


def _row(model: dict[str, Any]) -> list[str]:
    def size(key: str) -> str:
        number = model.get(key)
        return human_bytes(number) if isinstance(number, int) and 0 <= number < 1 << 63 else ""

    context = model.get("context_length")
    return [str(model.get("name", "")), size("size"), size("size_vram"), str(context or ""), _until(model)]


def _until(model: dict[str, Any]) -> str:
    """How long the model stays loaded."""
    try:
        # Ollama writes nanoseconds, of which Python reads six digits.
        text = re.sub(r"(\.\d{6})\d+", r"\1", str(model.get("expires_at")))
        left = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return ""
    if left > 10 * 365 * 86400:
        return "for ever"
    return f"{human_seconds(left)} from now" if left > 0 else "about to be unloaded"


def stop(options: argparse.Namespace) -> int:
    address = server_address(options.host)
    order = {"model": options.model, "keep_alive": 0, "stream": False}
    ask(address, "/api/generate", order, wanted="done")
    if options.json:
        as_json({"model": options.model, "server": address, "unloaded": True})
    else:
        print(f"{_program(address)} no longer has {options.model} in memory.")
    return 0


def _program(address: str) -> str:
    """What answers at an address."""
    return "wgemma" if "wgemma" in ask(address, "/api/version") else "Ollama"


def server_address(host: str | None) -> str:
    """Where the server is: by `--host`, then `$OLLAMA_HOST`."""
    return parse_address(host or os.environ.get("OLLAMA_HOST") or "").url


def ask(address: str, path: str, body: dict[str, Any] | None = None, wanted: str = "") -> dict[str, Any]:
    """A server's answer to a question, or to an order with a body; whose answer lacks the field `wanted` is neither
    wgemma nor Ollama."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, Request, build_opener

    data = None if body is None else json.dumps(body).encode()
    try:
        request = Request(address + path, data, {"Content-Type": "application/json"})
        if key := os.environ.get(KEY):
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT) as response:
            answer = _object(response.read(MAX_ANSWER))
    except HTTPError as error:
        with error:
            reason = _object(error.read(MAX_ANSWER)).get("error")
        if not isinstance(reason, str):
            raise _stranger(address) from None
        told = f"{address} answered {error.code}: {reason}. {_HINTS.get(error.code, '')}"
        raise SourceError(told.replace("..", ".").strip()) from None
    except HTTPException:
        raise _stranger(address) from None
    except (OSError, URLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise SourceError(f"{address} did not answer within {TIMEOUT:.0f} seconds.") from None
        raise SourceError(
            f"no server answers at {address}: {getattr(reason, 'strerror', None) or reason}. "
            "`wgemma serve` starts one; --host asks another address."
        ) from None
    if wanted and wanted not in answer:
        raise _stranger(address)
    return answer


def _stranger(address: str) -> SourceError:
    return SourceError(
        f"what listens at {address} is neither wgemma nor Ollama. `wgemma serve` starts a server and tells its "
        "address; pass that as --host."
    )


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
