"""Requests to web servers, which are treated as hostile: a slow, lying or malformed answer ends in a sentence.

A redirect stays on http and https, and never leads from the internet into a private network or this machine. A
password in a URL goes to its own server only, and so does an Authorization header; `without_password` is how a URL
appears in messages, names and records.

A strict request speaks https with hosts on the internet only. The exception is a server on this machine's loopback,
named as such by the user: it may speak http, and redirect within loopback.
"""

import io
import re
import string
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from wgemma.errors import SourceError
from wgemma.version import __version__

if TYPE_CHECKING:
    from http.client import HTTPMessage, HTTPResponse
    from socket import socket

WINDOW = 180.0  # seconds, longer than the tries of a server that is down
SLOWEST = 1 << 10  # bytes per second in each window: less is not a download
MAX_REDIRECTS = 10
BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that may be better next time
AGENT = f"wgemma/{__version__}"

_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")


def without_password(url: str) -> str:
    """The URL without the user's name and password."""
    return _PASSWORD.sub(r"\1", url)


class Pace:
    """How fast the bytes of one read arrive, over all its requests."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._received = 0

    def count(self, nbytes: int) -> None:
        self._received += nbytes

    def check(self) -> None:
        """Raises `SourceError` if a window has ended and too little arrived in it."""
        spent = time.monotonic() - self._began
        if spent < WINDOW:
            return
        if self._received < SLOWEST * WINDOW:
            raise SourceError(
                f"{self._name}: the server is too slow: {self._received} bytes in {spent:.0f} seconds. "
                "Try again later; a download resumes where it stopped."
            )
        self._began += spent
        self._received = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's response, and the headers of the redirects that led to it."""

    response: "HTTPResponse"
    redirects: "list[HTTPMessage]"


class BadStatus(SourceError):
    """A server answered with an error; `status` is its number."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name}: {_answered(status)}.")
        self.status = status


class Busy(ConnectionError):
    """A server answered with an error that may be over next time."""

    def __init__(self, status: int) -> None:
        super().__init__(_answered(status))


def _answered(status: int) -> str:
    from http.client import responses

    return f"the server answered {status} {responses.get(status, '')}".rstrip()


@dataclass(frozen=True, slots=True)
class Manners:
    """How to ask: with these headers, and whether strictly."""

    strict: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def request_span(
    url: str,
    offset: int,
    length: int,
    pace: Pace,
    timeout: float,
    manners: Manners = Manners(),
) -> Answer:
    """Asks for a span of a file. Raises `ConnectionError` for what may be better next time, otherwise `SourceError`."""
    return _request(url, {"Range": f"bytes={offset}-{offset + length - 1}"}, pace, timeout, manners)


def request_whole(url: str, pace: Pace, timeout: float, manners: Manners = Manners()) -> Answer:
    """Asks for a whole file; raises like `request_span`."""
    return _request(url, {}, pace, timeout, manners)


def _request(url: str, headers: dict[str, str], pace: Pace, timeout: float, manners: Manners) -> Answer:
    name, first = without_password(url), url
    headers = {**manners.headers, **headers}
    redirects: list[HTTPMessage] = []
    while len(redirects) <= MAX_REDIRECTS:
        if manners.strict:
            _check_strictly(name, first, url)
        if _origin(url) != _origin(first):
            headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        response = _response(url, name, headers, pace, timeout)
        if response.status in (200, 206):
            return Answer(response, redirects)
        response.close()
        place = response.headers.get("Location")
        if response.status not in (301, 302, 303, 307, 308) or place is None:
            raise Busy(response.status) if response.status in BUSY else BadStatus(name, response.status)
        redirects.append(response.headers)
        url = _redirected(name, url, place)
    raise SourceError(f"{name}: the server redirects more than {MAX_REDIRECTS} times.")


def _response(url: str, name: str, headers: dict[str, str], pace: Pace, timeout: float) -> "HTTPResponse":
    from http.client import HTTPException, InvalidURL
    from urllib.error import URLError
    from urllib.request import OpenerDirector, ProxyHandler, Request

    parts = _parts(url)
    if parts is None:
        raise SourceError(f"{name!r:.200} is not a valid URL.")
    request = Request(without_password(url), headers={"User-Agent": AGENT, **headers, "Accept-Encoding": "identity"})
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
    opener = OpenerDirector()
    for handler in (ProxyHandler(), *_handlers(pace)):
        opener.add_handler(handler)
    try:
        response: HTTPResponse = opener.open(request, timeout=timeout)
    except OSError as error:
        raise _failure(name, parts.hostname or "", error.reason if isinstance(error, URLError) else error) from None
    except (InvalidURL, ValueError):
        raise SourceError(f"{name!r:.200} is not a valid URL.") from None
    except HTTPException:
        raise ConnectionError("the answer is not valid HTTP") from None
    return response


def _failure(name: str, host: str, reason: Any) -> Exception:
    """What kept a server from answering: a `ConnectionError`, which may be over next time, or a `SourceError`."""
    from socket import gaierror
    from ssl import SSLCertVerificationError, SSLError

    if isinstance(reason, SSLCertVerificationError):
        return SourceError(
            f"{name}: the certificate of {host} is not valid: {reason.verify_message}. Check this machine's clock; "
            "behind a proxy that opens connections, set SSL_CERT_FILE to the proxy's certificate."
        )
    if isinstance(reason, gaierror):
        return ConnectionError(f"there is no host called {host}, or no network")
    if isinstance(reason, ConnectionRefusedError):
        return ConnectionError(f"{host} refuses the connection")
    if isinstance(reason, TimeoutError):
        return ConnectionError(f"{host} does not answer")
    if isinstance(reason, SSLError):
        return ConnectionError(f"{host} does not speak TLS as it should ({reason.reason or reason})")
    return ConnectionError(getattr(reason, "strerror", None) or str(reason))


def _parts(url: str) -> SplitResult | None:
    """The URL's parts; None if it is no valid http or https URL."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
        valid = parts.port != 0 and host and parts.scheme in ("http", "https")  # `port` raises ValueError
    except ValueError:
        return None
    return parts if valid else None


def _redirected(name: str, url: str, place: str) -> str:
    """Where a redirect leads."""
    try:
        target = urljoin(url, quote(place, safe=string.punctuation, encoding="latin-1"))
    except ValueError:
        target = ""
    before, after = _parts(url), _parts(target)
    if before is None or after is None:
        raise SourceError(f"{name}: the server redirects to something that is not a web address.")
    if nearness(after.hostname or "") > nearness(before.hostname or ""):
        raise SourceError(
            f"{name}: the server redirects to {after.hostname}, which is an address in your own network. "
            "wgemma does not follow it."
        )
    return target


def _origin(url: str) -> tuple[str, str, int | None] | None:
    parts = _parts(url)
    return None if parts is None else (parts.scheme, parts.hostname or "", parts.port)


def _check_strictly(name: str, first: str, url: str) -> None:
    before, parts = _parts(first), _parts(url)
    if before is None or parts is None:
        raise SourceError(f"{name!r:.200} is not a valid URL.")
    host = parts.hostname or ""
    if is_loopback(host) and is_loopback(before.hostname or ""):
        return
    who = f"{host:.80}" if url == first else f"the server redirects to {host:.80}, and that"
    if parts.scheme != "https":
        raise SourceError(f"{name}: {who} would be asked by http, which anyone on the way can change. Use https.")
    if nearness(host) > 0:
        raise SourceError(f"{name}: {who} is an address in your own network. wgemma does not ask it.")


def is_loopback(host: str) -> bool:
    """Whether this is a name for this machine itself, without asking anyone."""
    from ipaddress import ip_address

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def nearness(host: str) -> int:
    """0 for a host on the internet, 1 for one in a private network, 2 for this machine and its links."""
    from ipaddress import IPv6Address, ip_address
    from socket import getaddrinfo

    try:
        found = {str(address[4][0]).partition("%")[0] for address in getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return 0  # the request will fail all the same
    nearest = 0
    for text in found:
        address = ip_address(text)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        own = address.is_loopback or address.is_link_local or address.is_unspecified
        nearest = max(nearest, 2 if own else 0 if address.is_global else 1)
    return nearest


def _handlers(pace: Pace) -> list[Any]:
    """urllib's handlers for http and https, with responses that keep up the pace."""
    from functools import partial
    from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
    from urllib.request import HTTPHandler, HTTPSHandler

    class Paced(HTTPResponse):
        def __init__(self, sock: "socket", *args: Any, **options: Any) -> None:
            super().__init__(sock, *args, **options)
            self.fp = io.BufferedReader(_PacedSocket(self.fp, pace))

    def connection(kind: Any, *args: Any, **options: Any) -> Any:
        made = kind(*args, **options)
        made.response_class = Paced
        return made

    class Http(HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(partial(connection, HTTPConnection), req)

    class Https(HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(partial(connection, HTTPSConnection), req)

    return [Http(), Https()]


class _PacedSocket(io.RawIOBase):
    """A socket's bytes. Its timeout counts from byte to byte; the pace holds for all of them, headers included."""

    def __init__(self, file: Any, pace: Pace) -> None:
        self._file = file
        self._raw = file.raw
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        self._pace.check()
        count: int | None = self._raw.readinto(target)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
