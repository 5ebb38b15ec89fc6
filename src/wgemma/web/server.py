"""The web server behind the page: Starlette, read-only, serving only the addresses in two tables.

`/models.json` and `/models/<id>` come from the embedded model and the stores, everything else from `Site`. Models
are streamed with HTTP Range support; a whole one is never in memory.
"""

from pathlib import Path
from socket import socket
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Send

from wgemma.errors import StoreError
from wgemma.files.stores import Stores
from wgemma.web.access import Access
from wgemma.web.guard import Guard
from wgemma.web.limits import LimitedProtocol
from wgemma.web.listening import make_server
from wgemma.web.models import Offer, OfferedFile, by_id, embedded_offer, stored_offers
from wgemma.web.ranges import Unsatisfiable, parse_range
from wgemma.web.site import Site

PIECE = 1 << 20


def make_app(names: tuple[str, ...] = (), token: str | None = None) -> ASGIApp:
    """The ASGI app; `names` are the host names it answers to besides loopback, and `token` is what a client needs."""
    shelf = Shelf()
    site = Site([offer.record() for offer in shelf.embedded])

    def models(request: Request) -> Response:
        records = [offer.record() for offer in shelf.refresh()]
        return JSONResponse(records, headers={"Cache-Control": "no-store"})

    def model(request: Request) -> Response:
        file = shelf.find(request.path_params["id"])
        return _nothing_here() if file is None else _send_file(request, file)

    def asset(request: Request) -> Response:
        address = request.path_params["address"]
        if address not in site.assets:
            return _nothing_here()
        body, digest = site.read(address)
        # Revalidated every time but rarely sent again, so a new version shows at once.
        headers = {"Cache-Control": "no-cache", "ETag": f'"{digest}"'}
        if _is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=site.assets[address].kind)

    routes = [Route("/models.json", models), Route("/models/{id}", model), Route("/{address:path}", asset)]
    served: ASGIApp = Starlette(routes=routes)
    return Guard(Access(served, token) if token else served, names)


def serve(app: ASGIApp, listening: socket) -> None:
    """Serves on that socket until Ctrl-C or a signal."""
    make_server(app, LimitedProtocol).run(sockets=[listening])


class Shelf:
    """The models on offer, and their files by id. The stores are scanned when the page asks for the list."""

    def __init__(self) -> None:
        offer = embedded_offer()
        self.embedded = [offer] if offer else []
        self._files: dict[str, OfferedFile] = {}

    def refresh(self) -> list[Offer]:
        """All models, the embedded one first."""
        try:
            stored = stored_offers(Stores.find())
        except StoreError:  # an unreadable store offers nothing
            stored = []
        offers = list(by_id([*self.embedded, *stored]).values())
        self._files = {id: file for offer in offers for id, file in offer.files.items()}
        return offers

    def find(self, id: str) -> OfferedFile | None:
        """The file with that id, even if it was added after the list was made."""
        if id not in self._files:
            self.refresh()
        return self._files.get(id)


def _nothing_here() -> Response:
    return PlainTextResponse("There is nothing at this address.\n", 404)


def _is_known(request: Request, etag: str) -> bool:
    """Whether the browser already has it."""
    known = request.headers.get("if-none-match", "")
    return known.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))


def _send_file(request: Request, file: OfferedFile) -> Response:
    headers = {
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",  # the page saves models in its own storage
        "ETag": f'"{file.digest}"',
    }
    if _is_known(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range")
    if request.method == "HEAD" or request.headers.get("if-range", headers["ETag"]) != headers["ETag"]:
        wanted = None  # the page has the start of a different file
    try:
        asked = parse_range(wanted, file.size)
    except Unsatisfiable:
        headers["Content-Range"] = f"bytes */{file.size}"
        return PlainTextResponse("The file has no such range; request a single range within it.\n", 416, headers)
    start, stop = asked or (0, file.size)
    if asked:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(headers=headers, media_type="application/octet-stream")
    opened = _open(file.path, file.size)
    return _nothing_here() if opened is None else FilePiece(opened, start, stop, headers, 206 if asked else 200)


def _open(path: Path, size: int) -> BinaryIO | None:
    """The file, if it still has the size that was listed."""
    try:
        file = path.open("rb")
    except OSError:
        return None
    if file.seek(0, 2) == size:
        return file
    file.close()
    return None


class FilePiece(StreamingResponse):
    """Streams bytes [start, stop) of a file as fast as the client takes them, and always closes the file."""

    def __init__(self, file: BinaryIO, start: int, stop: int, headers: dict[str, str], status: int) -> None:
        super().__init__((), status, headers, "application/octet-stream")
        self.file, self.start, self.stop = file, start, stop

    async def stream_response(self, send: Send) -> None:
        with self.file as file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            file.seek(self.start)
            left = self.stop - self.start
            while left:
                piece = await run_in_threadpool(file.read, min(left, PIECE))
                if not piece:
                    return  # the file was truncated meanwhile; the server drops the connection, so this is noticed
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
