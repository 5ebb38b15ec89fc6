"""`wgemma serve`: serves models to other programs, by Ollama's, OpenAI's and Anthropic's APIs."""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wgemma.checks import whole
from wgemma.cli.output import as_json
from wgemma.cli.ray_option import add_ray_option, shared_model
from wgemma.cli.words import add_device_option, add_precision_option
from wgemma.errors import Error, SettingsError
from wgemma.files.paths import user_path
from wgemma.files.stores import Stores

if TYPE_CHECKING:
    from wgemma.serve.settings import Settings

TRIES = 20  # ports, from the usual one on


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("serve", help="serve models by Ollama's, OpenAI's and Anthropic's APIs")
    verb.add_argument("models", metavar="MODEL", nargs="*", help="offer this .gguf path or URL, too")
    verb.add_argument("--host", metavar="H", help="listen on this address (default: OLLAMA_HOST or 127.0.0.1)")
    verb.add_argument("--port", type=_port, metavar="N", help="use this port (default: 11434, or the next free one)")
    verb.add_argument("--api-key", metavar="KEY", help="answer only requests with this key (or WGEMMA_API_KEY)")
    verb.add_argument(
        "--origin", action="append", metavar="URL", help="let this web page use the server, too; repeatable"
    )
    verb.add_argument(
        "--registry", action="append", metavar="HOST", help="let requests pull models from here, too; repeatable"
    )
    verb.add_argument(
        "--adapter", action="append", default=[], metavar="NAME=PATH", help="offer this adapter as model+NAME"
    )
    verb.add_argument("--slots", type=int, metavar="N", help="write up to N answers at once (default: 8)")
    verb.add_argument("--context", type=int, metavar="N", help="load models with this context")
    verb.add_argument("--keep-alive", metavar="T", help="unload a model after this time without requests (default: 5m)")
    add_precision_option(verb)
    add_device_option(verb)
    add_ray_option(verb)
    verb.add_argument(
        "--replicas", type=_replicas, metavar="N:M", help="with --ray: run N to M replicas (default: one per GPU)"
    )
    verb.add_argument("--verbose", action="store_true", help="tell what is loaded and unloaded")
    verb.add_argument("--json", action="store_true", help="print the address as JSON")
    verb.set_defaults(do=serve)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError("a port is a number from 0 (any free port) to 65535")


def _replicas(text: str) -> tuple[int, int]:
    least, mark, most = text.partition(":")
    words = (least, most if mark else least)
    if all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        found = (int(words[0]), int(words[1]))
        if 1 <= found[0] <= found[1]:
            return found
    raise argparse.ArgumentTypeError("a number of replicas, or two such as 1:8")


def serve(options: argparse.Namespace) -> int:
    from wgemma.serve.address import PORT, parse_address
    from wgemma.serve.app import make_app
    from wgemma.serve.listening import make_server
    from wgemma.serve.service import Service
    from wgemma.serve.settings import Settings
    from wgemma.web.listening import listen

    logging.basicConfig(format="wgemma: %(message)s", level=logging.INFO if options.verbose else logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of clients that left
    usual = parse_address(os.environ.get("OLLAMA_HOST", ""))
    exactly = options.port is not None or usual.port != PORT
    host, port = options.host or usual.host, usual.port if options.port is None else options.port
    settings = Settings(**_settings(options, host))
    if options.replicas and options.ray is None:
        raise SettingsError("--replicas is for Ray: add --ray.")
    Stores.find()  # raises here, not at every request
    service = Service(settings)
    listening = listen(host, [port] if exactly else range(port, min(port + TRIES, 1 << 16)))
    reached, taken = ip_address(listening.getsockname()[0].partition("%")[0]), listening.getsockname()[1]
    if not reached.is_loopback and settings.key is None:
        listening.close()
        raise Error(
            f"{host} can be reached from other machines, so the server needs a key: --api-key, or WGEMMA_API_KEY."
        )
    if reached.is_unspecified:
        reached = ip_address("127.0.0.1" if reached.version == 4 else "::1")
    url = f"http://{reached if reached.version == 4 else f'[{reached}]'}:{taken}"

    def tell() -> None:
        if options.json:
            as_json({"url": url, "port": taken, "usual": taken == PORT})
            sys.stdout.flush()
            return
        if taken != port and port:
            print(f"Port {port} is taken, perhaps by Ollama. Tell clients about this one: OLLAMA_HOST={url}")
        print(f"wgemma serves at {url}, and at {url}/v1 for OpenAI's clients (press Ctrl-C to stop)", flush=True)

    if options.ray is not None:
        listening.close()  # the port is free; Ray's proxies listen there
        _by_ray(settings, options, host, taken, tell)
        return 0
    tell()
    with suppress(KeyboardInterrupt):  # the usual way out, not a mistake
        make_server(make_app(service), settings.drain).run(sockets=[listening])
    return 0


def _by_ray(settings: "Settings", options: argparse.Namespace, host: str, port: int, tell: Callable[[], None]) -> None:
    """The same app, by the replicas of a Ray cluster, until Ctrl-C or SIGTERM: then no new requests, the open ones,
    and the replicas."""
    from wgemma.scale.ray_cluster import cluster, engines
    from wgemma.scale.ray_proxy import CALLBACK

    stop = threading.Event()
    with cluster(options.ray, CALLBACK):
        from wgemma.scale.ray_serve import deploy, undeploy

        least, most = options.replicas or (1, engines(None))
        deploy(settings, least, most, host, port)
        try:
            tell()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            with suppress(KeyboardInterrupt):
                stop.wait()
        finally:
            undeploy()


def _settings(options: argparse.Namespace, host: str) -> dict[str, Any]:
    """The environment's settings, overridden by the options."""
    from wgemma.serve.settings import from_environment, registry_host, seconds

    found = from_environment(os.environ)
    key = options.api_key or os.environ.get("WGEMMA_API_KEY") or None
    for name, most in (("slots", 64), ("context", 1 << 24)):
        if getattr(options, name) is not None:
            found[name] = whole(f"--{name}", getattr(options, name), 1, most)
    if options.keep_alive is not None:
        kept = seconds(options.keep_alive)
        if kept is None:
            raise SettingsError(f"--keep-alive {options.keep_alive}: write 5m, 300, or -1 for ever.")
        found["keep_alive"] = kept
    if options.origin:
        found["origins"] = tuple(options.origin)
    if options.registry:
        found["registries"] = tuple(map(registry_host, options.registry))
    anybody = ("http://anybody.example", "https://anybody.example")
    if key is None and any(fnmatchcase(page, form) for page in anybody for form in found.get("origins", ())):
        raise SettingsError("this server would be open to every web page: list the pages, or set a key.")
    return {
        **found,
        "key": key,
        "precision": options.precision,
        "device": options.device,
        "extra": tuple(filter(None, map(shared_model, options.models))) if options.ray else tuple(options.models),
        "adapters": dict(_adapter(text) for text in options.adapter),
        "names": () if _is_address(host) else (host,),
    }


def _adapter(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    if not mark or not name or not path:
        raise SettingsError(f"--adapter {text}: write NAME=PATH.")
    if not (found := user_path(path)).exists():
        raise SettingsError(f"--adapter {text}: there is no {path}.")
    return name, found


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
