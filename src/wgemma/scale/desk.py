"""Answers requests on the models of this machine, by the server's own translators."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from wgemma.api import Model
from wgemma.errors import DeviceError, Error, OutOfMemory
from wgemma.files.locate import ModelFiles
from wgemma.scale.results import Record, answered
from wgemma.scale.rows import Request
from wgemma.serve.ask import Ask
from wgemma.serve.catalogue import given
from wgemma.serve.exchange import whole_answer
from wgemma.serve.fields import Fields
from wgemma.serve.models import load_files
from wgemma.serve.openai import error as error_body
from wgemma.serve.openai_embeddings import embeddings
from wgemma.serve.openai_routes import ANSWERS
from wgemma.serve.problems import problem_of
from wgemma.serve.service import Service
from wgemma.serve.settings import Settings
from wgemma.together import merged


class Desk:
    """One engine's worth of work. `model` answers all requests; None: each names its own.

    What is wrong with a request becomes its record. What is wrong with the machine (a model that cannot be loaded, a
    GPU that is gone) is raised, because the next request would fail as well.
    """

    def __init__(self, settings: Settings, model: str | None) -> None:
        settings = replace(settings, keep_alive=float("inf"), queue=1 << 20, extra=() if model is None else (model,))
        self._model = None if model is None else given(model).name
        self._most = 2 * settings.slots  # while some are written, the next are ready
        self._trouble: Error | None = None  # why a model cannot be loaded
        self.service = Service(settings, self._load)

    async def __aenter__(self) -> "Desk":
        """Loads the model, if there is one for all."""
        if self._model is not None:
            try:
                await self.service.load(Ask(self._model))
            except Exception as error:
                raise self._trouble or error from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.close()

    async def records(self, requests: Iterator[Request]) -> AsyncGenerator[Record, None]:
        """The requests' records as they come, as many at a time as keep the engine busy."""
        begins = (partial(self._record, request) for request in requests)
        async with aclosing(merged(begins, self._most)) as items:
            async for _, item in items:
                if isinstance(item, Error):
                    raise item
                yield item

    async def _record(self, request: Request) -> AsyncGenerator[Record, None]:
        yield await self.record(request)

    async def record(self, request: Request) -> Record:
        return answered(request, *await self._answer(request))

    async def _answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        """A status and a body, as the server would answer."""
        fields = Fields(request.body if self._model is None else {**request.body, "model": self._model})
        try:
            if request.path not in ANSWERS:
                return 200, await embeddings(self.service, fields)
            read, writer = ANSWERS[request.path]
            ask = read(fields)
            return 200, await whole_answer(self.service, ask, writer(ask, fields))
        except Exception as error:
            if isinstance(error, DeviceError) and not isinstance(error, OutOfMemory):
                raise
            problem = problem_of(error)
            if self._trouble is not None and problem.status >= 500:
                raise self._trouble from None
            if isinstance(error, Error) and problem.status >= 500:
                problem.message = str(error)  # nothing is secret here
            return problem.status, dict(error_body(problem))

    def _load(self, files: ModelFiles, settings: Settings, context: int | None) -> Model:
        try:
            model = load_files(files, settings, context)
        except Error as error:
            self._trouble = error
            raise
        self._trouble = None
        return model
