"""Ollama's addresses that change the store: pull, create, copy, delete and blobs.

The work is done in threads of its own, for it may wait long for a network or for a client. Models come from Ollama's
registry, from Hugging Face and from the hosts that `Settings.registries` names; a request cannot send the server
anywhere else. Ollama's own store is only read.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from wgemma.creating import create
from wgemma.errors import Error, SourceError, StoreError
from wgemma.files.copying import copy, delete
from wgemma.files.events import Event, Work
from wgemma.files.keeping import check_space, checked_digest, has_blob, put_blob, touch_blob
from wgemma.files.names import DEFAULT_HOST, HUB, Name
from wgemma.files.recipes import Recipe, recipe_from
from wgemma.files.stores import Stores
from wgemma.pulling import pull
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.exchange import Json, Streaming, failure, read_fields, told, unless_gone
from wgemma.serve.fields import Fields, named
from wgemma.serve.guard import BLOBS, body_length
from wgemma.serve.ollama import error
from wgemma.serve.problems import Problem, bad, in_json, log, no_model, problem_of
from wgemma.serve.service import Service
from wgemma.serve.wire import dumps

T = TypeVar("T")
AT_ONCE = 16  # pulls, uploads and the like
PATIENCE = 60.0  # seconds to wait for whoever is writing the same blob
_LINES = "application/x-ndjson"
# Reasons whose sentences name no file of this machine.
_VERBATIM = {"bad_recipe": 400, "not_allowed": 403, "not_in_registry": 404}
_TOLD = {  # by a StoreError's reason; its own words may name files of this machine
    "bad_blob": (400, "A blob is not in the store, or damaged. Send it first."),
    "bad_digest": (400, "The bytes do not have this digest."),
    "bad_manifest": (502, "The model's manifest is damaged, or of a kind that wgemma cannot keep."),
    "busy": (503, "Another program is changing the store. Try again."),
    "invalid_digest": (400, "A digest must be sha256: and 64 hexadecimal digits."),
    "invalid_name": (400, "This is no name of a model."),
    "missing_blob": (400, "A blob is not in the store, or damaged. Send it first."),
    "no_model_layer": (400, "There is no model in it."),
    "no_space": (507, "The disk has no room for it."),
    "not_found": (404, "This model was not found."),
    "not_written": (507, "The store cannot be written to: the disk is full, or the folder is not ours."),
    "unsupported_architecture": (400, "This is no Gemma 4, and wgemma runs nothing else."),
    "unsupported_format": (400, "This is no GGUF file."),
}


class Workers:
    """Threads for work on the store. Who finds all of them busy is told to come back."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self.busy = 0
        self._most = most
        self._threads = ThreadPoolExecutor(most, "store")

    @contextmanager
    def place(self) -> Iterator[None]:
        if self.busy >= self._most:
            raise Problem(503, "The store is busy. Try again later.", code="server_busy", retry_after=5)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    async def do(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def store_routes(service: Service) -> list[Route]:
    workers = Workers()
    hosts = {DEFAULT_HOST, HUB, *service.settings.registries}

    def stored(name: str) -> str:
        """The name, unless it is that of a file from the command line."""
        if service.models.catalogue.is_file(name):
            reason = f"{name:.100} is a file that this server was given, and in no store."
            raise Problem(403, f"{reason} Send it to {BLOBS}sha256:…, and create a model of another name from it.")
        return name

    async def pulled(request: Request) -> Response:
        fields = await read_fields(request)
        name = stored(_name(fields))
        work = pull(name, hosts=hosts)
        return Progress(workers, work, fields.flag("stream", True), lambda: _changed(service, name))

    async def created(request: Request) -> Response:
        fields = await read_fields(request)
        name = stored(_name(fields))
        try:
            recipe = recipe_from(fields.raw)
        except StoreError as problem:
            raise _problem(problem) from None
        if recipe.base is not None:
            stored(recipe.base)
        work = _create(name, recipe, hosts)
        return Progress(workers, work, fields.flag("stream", True), lambda: _changed(service, name))

    async def copied(request: Request) -> Response:
        fields = await read_fields(request)
        source, target = stored(fields.needed("source")), stored(fields.needed("destination"))
        await _done(workers, copy(source, target), source)
        await _changed(service, target)
        return Response()

    async def deleted(request: Request) -> Response:
        name = stored(_name(await read_fields(request)))
        if name in Stores.find().own:
            with suppress(Problem):  # it is damaged, so nobody has loaded it
                await service.models.unload(name)
        await _done(workers, delete(name), name)
        return Response()

    async def blob(request: Request) -> Response:
        digest = _digest(request)
        store = Stores.find().own
        if has_blob(store, digest):
            touch_blob(store, digest)
            return Unread(Response())
        if request.method == "HEAD":
            return Response(status_code=404)
        try:
            check_space(store, body_length(request.headers), digest)
        except StoreError as problem:
            return Unread(failure(error, _problem(problem)))
        with workers.place():
            await _upload(workers, request, digest)
        return Response(status_code=201)

    return [
        Route("/api/pull", told(error, pulled), methods=["POST"]),
        Route("/api/create", told(error, created), methods=["POST"]),
        Route("/api/copy", told(error, copied), methods=["POST"]),
        Route("/api/delete", told(error, deleted), methods=["DELETE"]),
        Route(BLOBS + "{digest:path}", told(error, blob), methods=["HEAD", "POST"]),
    ]


def _name(fields: Fields) -> str:
    name = named(fields)
    try:
        Name.parse(name)
    except StoreError as problem:
        raise _problem(problem) from None
    return name


def _digest(request: Request) -> str:
    try:
        return checked_digest(request.path_params["digest"])
    except StoreError as problem:
        raise _problem(problem) from None


async def _changed(service: Service, name: str) -> None:
    """Lets a loaded model go whose files are others now."""
    with suppress(Problem):  # it cannot be loaded
        await service.models.refresh(name)


def _problem(failed: BaseException) -> Problem:
    if isinstance(failed, StoreError):
        if failed.reason in _VERBATIM:
            return Problem(_VERBATIM[failed.reason], in_json(str(failed)))
        if failed.reason in _TOLD:
            log.info("%s", failed)
            status, sentence = _TOLD[failed.reason]
            return Problem(status, sentence, retry_after=5 if status == 503 else None)
    if isinstance(failed, SourceError):
        log.error("%s", failed)
        return Problem(502, "The model could not be downloaded. The server's log says why.")
    if isinstance(failed, Error):
        log.error("%s", failed)
        return Problem(400, "This cannot be done with these files. The server's log says why.")
    return problem_of(failed)


def _create(name: str, recipe: Recipe, hosts: Container[str]) -> Work:
    """Creates a model; the one to build upon is pulled first if it is not here."""
    try:
        yield from create(name, recipe)
        return
    except StoreError as problem:
        if problem.reason != "not_found" or recipe.base is None:
            raise
    with closing(pull(recipe.base, hosts=hosts)) as events:
        yield from (event for event in events if event["status"] != "success")
    yield from create(name, recipe)


# -- work with progress


async def _steps(workers: Workers, work: Work) -> AsyncGenerator[Event, None]:
    """What the work tells, which goes on in threads. Closing this ends it."""
    try:
        while True:
            step = asyncio.ensure_future(workers.do(next, work, None))
            try:
                event = await asyncio.shield(step)
            except asyncio.CancelledError:
                await asyncio.wait({step})  # a generator cannot be closed while it runs
                step.exception()  # nobody is left to hear of it
                raise
            if event is None:
                return
            yield event
    finally:
        with suppress(ValueError):  # the server ends, and does not wait: it still runs
            await asyncio.shield(workers.do(work.close))


async def _done(workers: Workers, work: Work, name: str) -> None:
    """Does the work whose progress nobody wants to hear."""
    try:
        with workers.place():
            async with aclosing(_steps(workers, work)) as steps:
                async for _ in steps:
                    pass
    except Error as failed:
        problem = _problem(failed)
        raise (no_model(name) if problem.status == 404 else problem) from None


def _public(event: Event) -> Event:
    """The event, which must not name processes of this machine."""
    _, pulls, _ = event["status"].partition(", which is pulling ")
    return {"status": f"waiting for another process{pulls}the same blob"} if pulls else event


class Progress(Response):
    """Progress as lines of JSON, or its last line alone; `after` is done when all went well."""

    def __init__(self, workers: Workers, work: Work, stream: bool, after: Callable[[], Any]) -> None:
        self._workers = workers
        self._work = work
        self._lines = stream
        self._after = after
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._tell(scope, receive, send))

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = Streaming(send, _LINES)
        last: Event = {}
        try:
            with self._workers.place():
                async with aclosing(_steps(self._workers, self._work)) as steps:
                    async for event in steps:
                        if event.get("status") == "success":
                            await self._after()
                        if self._lines:
                            await streaming.send([dumps(_public(event)) + "\n"])
                        last = event
        except Exception as failed:
            problem = _problem(failed)
            if not streaming.begun:
                await failure(error, problem)(scope, receive, send)
                return
            await streaming.send([dumps(error(problem)) + "\n"])
        if self._lines:
            await streaming.end()
        else:
            await Json(last)(scope, receive, send)


# -- uploads


class Unread(Response):
    """A response before the body has come. That is taken and dropped: if the connection were closed while the client
    still sends, the client might never see the response. A client that waits for leave to send gets none."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "expect" in Headers(scope=scope):
            self._response.headers["Connection"] = "close"
            await self._response(scope, receive, send)
            return

        async def open_ended(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await self._response(scope, receive, open_ended)
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _upload(workers: Workers, request: Request, digest: str) -> None:
    """Writes the body into the store while it arrives; it is never in memory as a whole."""
    loop, stream, since = asyncio.get_running_loop(), request.stream(), monotonic()

    async def following() -> bytes | None:
        return await anext(stream, None)

    def arriving() -> Iterator[bytes]:
        size = 0
        while (piece := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
            size += len(piece)
            if size > BOUNDS.blob:
                raise Problem(413, "The blob is too large.", code="request_too_large")
            yield piece

    def give_up(owner: str) -> None:
        if monotonic() - since > PATIENCE:
            raise StoreError(f"{digest} is being written by {owner}.", "busy")

    try:
        await workers.do(put_blob, Stores.find().own, digest, arriving(), give_up)
    except ClientDisconnect:
        raise bad("The client left before its blob was complete.") from None
    except Error as failed:
        raise _problem(failed) from None
