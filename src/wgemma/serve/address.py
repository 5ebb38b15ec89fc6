"""What OLLAMA_HOST means, to the server that listens there and to the commands that ask it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from wgemma.errors import SettingsError

PORT = 11434
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """Where to ask, also if the server listens on all addresses."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{self.scheme}://{f'[{name}]' if ':' in name else name}:{self.port}{self.path}"


def parse_address(host: str) -> Address:
    """Any of [scheme://]host[:port][/path], each part optional."""
    text = host.strip().strip("\"'")
    scheme, mark, rest = text.rpartition("://")
    scheme = scheme.lower() or "http"
    if not mark and rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"  # an IPv6 address alone
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        (parts.hostname or "").encode("idna")
        port = parts.port
    except ValueError:
        parts = None
    if parts is None or scheme not in _PORTS:
        raise SettingsError(f"{text!r:.80} is not a server's address; write HOST, HOST:PORT or http://HOST:PORT.")
    if port is None:
        port = _PORTS[scheme] if mark else PORT
    return Address(scheme, parts.hostname or "127.0.0.1", port, parts.path.rstrip("/"))
