"""What the server can do, whatever API asks for it: answer, embed, transcribe, count. A full queue answers 503."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from wgemma.serve.ask import Ask, Embed, Event, Finish, Started
from wgemma.serve.catalogue import Wanted
from wgemma.serve.counting import count_prompt
from wgemma.serve.metrics import Meter
from wgemma.serve.models import Lent, Load, Models, load_files
from wgemma.serve.problems import Problem, bad
from wgemma.serve.settings import Settings
from wgemma.serve.working import Hearing, events

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class _Ending:
    """How a request ends: stop, length, tool, cancelled or error."""

    reason: str = "error"


class Service:
    """The models, the queue in front of them, and the counts."""

    def __init__(self, settings: Settings, load: Load = load_files) -> None:
        self.settings = settings
        self.models = Models(settings, load)
        self.meter = Meter()
        self.inside = 0  # requests that are answered or wait

    async def answer(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """An answer's events. Closing this cancels it."""
        begun = perf_counter()
        with self.place():
            wanted = self.find(ask.model)
            with self._ending(wanted.name, begun) as ending:
                async with (
                    self.models.borrow(wanted, ask.keep_alive, ask.context) as lent,
                    aclosing(self._answer(lent, ask, begun, ending)) as found,
                ):
                    async for event in found:
                        yield event

    async def answer_with(self, lent: Lent, ask: Ask) -> AsyncGenerator[Event, None]:
        """The same, by a model that the caller has borrowed, in the place that he has."""
        begun = perf_counter()
        with self._ending(lent.name, begun) as ending:
            async with aclosing(self._answer(lent, ask, begun, ending)) as found:
                async for event in found:
                    yield event

    async def _answer(self, lent: Lent, ask: Ask, begun: float, ending: "_Ending") -> AsyncGenerator[Event, None]:
        last, hearing, name = None, Hearing(), lent.name
        async with aclosing(events(lent, ask, hearing)) as found:
            async for event in found:
                if isinstance(event, Started):
                    self._started(name, event, begun, hearing)
                elif isinstance(event, Finish):
                    ending.reason = event.reason
                    self.meter.count("generation_tokens_total", name, event.usage.generated)
                else:
                    now = perf_counter()
                    if last is not None:
                        self.meter.took("inter_token_latency_seconds", name, now - last)
                    last = now
                yield event

    @contextmanager
    def _ending(self, name: str, begun: float) -> "Iterator[_Ending]":
        """Counts how a request ends."""
        ending = _Ending()
        try:
            yield ending
        except (GeneratorExit, asyncio.CancelledError):
            ending.reason = "cancelled"
            raise
        finally:
            self.meter.ended(name, ending.reason)
            self.meter.took("e2e_request_latency_seconds", name, perf_counter() - begun)

    def find(self, model: str) -> Wanted:
        """The model that a request names; raises `Problem` 404 if there is none."""
        return self.models.find(model)

    def _started(self, model: str, started: Started, begun: float, hearing: Hearing) -> None:
        meter = self.meter
        meter.took("time_to_first_token_seconds", model, perf_counter() - begun)
        meter.took("request_queue_time_seconds", model, max((hearing.begun or begun) - begun, 0.0))
        meter.count("prompt_tokens_total", model, started.prompt)
        meter.count("prefix_cache_queries_total", model, started.prompt)
        meter.count("prefix_cache_hits_total", model, started.reused)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue."""
        if self.inside >= self.settings.slots + self.settings.queue:
            raise Problem(503, "The server is busy. Try again later.", code="server_busy", retry_after=5)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def embed(self, ask: Embed) -> "tuple[NDArray[np.float32], int, float]":
        """The texts' vectors, their tokens, and the seconds it took to load the model."""
        import numpy as np

        with self.place():
            async with self.models.borrow(self.find(ask.model), ask.keep_alive) as lent:
                if not ask.texts:
                    return np.zeros((0, 0), np.float32), 0, lent.load_seconds
                vectors = await asyncio.to_thread(lent.model.embed, list(ask.texts), adapter=lent.adapter)
                tokenizer = lent.model.tokenizer
                count = sum(1 + len(tokenizer.encode(text)) for text in ask.texts)
        if ask.dimensions is not None:
            if ask.dimensions > vectors.shape[1]:
                raise bad(f"dimensions is {ask.dimensions}; this model has {vectors.shape[1]}.", "dimensions")
            vectors = vectors[:, : ask.dimensions]
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        self.meter.count("prompt_tokens_total", lent.name, count)
        return vectors, count, lent.load_seconds

    async def count(self, ask: Ask) -> int:
        """How many tokens the prompt of a chat has."""
        with self.place():
            async with self.models.borrow(self.find(ask.model)) as lent:
                return await asyncio.to_thread(count_prompt, lent.model, ask)

    async def load(self, ask: Ask) -> float:
        """Only loads a model; the seconds that took. A `keep_alive` of 0 unloads it."""
        if ask.keep_alive == 0:
            await self.models.unload(ask.model)
            return 0.0
        with self.place():
            async with self.models.borrow(self.find(ask.model), ask.keep_alive, ask.context) as lent:
                return lent.load_seconds

    async def encode(self, model: str, text: str, special: bool) -> list[int]:
        with self.place():
            async with self.models.borrow(self.find(model)) as lent:
                return await asyncio.to_thread(lent.model.tokenizer.encode, text, special)

    async def decode(self, model: str, ids: list[int]) -> str:
        with self.place():
            async with self.models.borrow(self.find(model)) as lent:
                tokenizer = lent.model.tokenizer
                if any(not 0 <= token < len(tokenizer) for token in ids):
                    raise bad(f"tokens must be from 0 to {len(tokenizer) - 1}.", "tokens")
                return tokenizer.decode(ids)

    def metrics(self) -> str:
        slots, gauges = self.settings.slots, list[tuple[str, str, str, float]]()
        for one in self.models.resident():
            gauges += [
                ("num_requests_running", "Requests that are being answered.", one.name, min(one.users, slots)),
                ("num_requests_waiting", "Requests that wait for a slot.", one.name, max(one.users - slots, 0)),
                ("gpu_memory_bytes", "GPU memory the model takes.", one.name, one.memory),
            ]
        return self.meter.text(gauges)

    async def close(self) -> None:
        await self.models.close()
