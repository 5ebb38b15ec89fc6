"""`wgemma app`: serves the web page to this machine's browser, or exports it as a static site."""

import argparse
import os
import sys
import webbrowser
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from wgemma.checks import human_bytes
from wgemma.errors import Error
from wgemma.files.stores import Stores

PORT = 8460
TRIES = 20


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("app", help="serve the web page: Gemma 4 in your browser, on your GPU")
    verb.add_argument("--port", type=_port, metavar="N", help=f"use this port (default: {PORT}, or the next free one)")
    verb.add_argument("--host", default="127.0.0.1", metavar="H", help="listen on this address (default: 127.0.0.1)")
    verb.add_argument("--open", action=argparse.BooleanOptionalAction, help="open the page in your browser")
    verb.add_argument("--export", type=Path, metavar="DIR", help="write a static site to DIR instead of serving")
    verb.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        metavar="MODEL",
        help="include this model in the --export; repeatable",
    )
    verb.set_defaults(do=app)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError("a port is a number from 0 (any free port) to 65535")


def app(options: argparse.Namespace) -> int:
    if options.export is not None:
        return _export(options)
    if options.extra:
        raise Error("--with is for --export; the app already offers every model on this computer.")
    return _serve(options)


def _export(options: argparse.Namespace) -> int:
    from wgemma.web.export import export
    from wgemma.web.models import offer_of

    written = export(options.export, [offer_of(name) for name in options.extra])
    size = human_bytes(sum(path.stat().st_size for path in written))
    print(f"Wrote {len(written)} files, {size}, to {options.export}. Any web server can serve them. To try it here:")
    print(f"python3 -m http.server --bind 127.0.0.1 --directory {options.export}")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from wgemma.web.access import QUERY, fresh_token
    from wgemma.web.listening import listen
    from wgemma.web.server import make_app, serve

    Stores.find()  # raises here, not at every visit
    ports = (*range(PORT, PORT + TRIES), 0) if options.port is None else (options.port,)
    listening = listen(options.host, ports)
    host, port = ip_address(listening.getsockname()[0]), listening.getsockname()[1]
    if options.port is None and port != PORT:
        print(f"Port {PORT} is taken. Browsers keep chats per address, so your usual chats will not appear here.")
    token = None if host.is_loopback else fresh_token()
    application = make_app(() if _is_address(options.host) else (options.host,), token)
    address = _address(host, port)
    if token:
        print(
            "wgemma: anyone who has this address can download these models. On other machines the page needs https: "
            "browsers offer WebGPU only there and on localhost.",
            file=sys.stderr,
        )
        address += f"?{QUERY}={token}"
    with suppress(KeyboardInterrupt):  # the usual way out, not a mistake
        print(f"wgemma is at {address} (press Ctrl-C to stop)", flush=True)
        if options.open or (options.open is None and _has_screen()):
            webbrowser.open(address)
        serve(application, listening)
    return 0


def _address(host: IPv4Address | IPv6Address, port: int) -> str:
    """The URL to open on this machine, also when listening on all addresses."""
    if host.is_unspecified:
        host = ip_address("127.0.0.1" if host.version == 4 else "::1")
    return f"http://{host if host.version == 4 else f'[{host}]'}:{port}/"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _has_screen() -> bool:
    """Whether someone can see a browser window: there is a terminal and a desktop."""
    desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(desktop) and sys.stdout.isatty()
