"""The fallback backend: the NumPy reference, for machines without a GPU adapter. Slow but correct."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.jobs import Job
from wgemma.engine.options import Options, context_of
from wgemma.engine.request import PromptProgress, Request, Token
from wgemma.engine.runner import Runner, check_ids
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import Kept
from wgemma.engine.senses import Medium, Senses
from wgemma.engine.soft import common_start, outside, runs
from wgemma.engine.streams import Stream
from wgemma.engine.towers import Towers
from wgemma.engine.turns import Turns
from wgemma.errors import BadLogits, DeviceError, GrammarError, SessionError
from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.files.sounds import Sound
from wgemma.model.passes import PAD, SOFT
from wgemma.model.tower import Step, unwatched
from wgemma.reference.audio import AudioReference
from wgemma.reference.decoder import Reference
from wgemma.reference.sampling import distribution, ranked
from wgemma.reference.vision import VisionReference
from wgemma.sync import breathe
from wgemma.text.parts import Content

Floats: TypeAlias = NDArray[np.float32]

PIECE = 32  # rows of a prompt computed at a time


class ReferenceTowers(Towers):
    """Towers in NumPy, read from their files when used."""

    async def see(self, pixels: Pixels, budget: int, step: Step = unwatched) -> Floats:
        assert self.sight and self._eyes is not None
        return VisionReference(self._eyes).encode(pixels, budget)

    async def resample(self, sound: Sound) -> "array[float]":
        return array("f", self._listener.resample(sound).astype(np.float32).tobytes())

    async def hear(self, samples: "array[float]", step: Step = unwatched) -> Floats:
        return self._listener.encode(samples)

    @property
    def _listener(self) -> AudioReference:
        assert self.hearing and self._ears is not None
        return AudioReference(self._ears)

    def drop(self, rows: Any) -> None:
        pass

    def release(self) -> None:
        pass


class ReferenceBackend:
    """Keeps one sequence; a prompt that continues it computes only the new tokens."""

    name = "NumPy (reference)"
    slots = 1

    def __init__(self, gguf: Gguf, options: Options, towers: ReferenceTowers) -> None:
        self._model = Reference(gguf)
        self.context = context_of(self._model.config, options)
        self.towers = towers
        self.senses: Senses[Floats] = Senses(towers, self._model.config.width)
        self.adapters = Adapters()
        self._busy = False
        self._ids: list[int] = []
        self._adapter = BARE

    async def adapt(self, adapters: Adapters) -> None:
        self.adapters = adapters
        self._model.adapters = adapters.files

    def _use(self, setting: Setting) -> None:
        """Switches to these adapters; forgets what was computed with others."""
        if setting.key != self._adapter.key:
            self._forget()
        self._adapter = setting
        self._model.scales = setting.by_name()

    @property
    def vocab(self) -> int:
        return self._model.config.vocab_size

    @property
    def runner(self) -> Runner:
        raise DeviceError(
            "training and measuring need a GPU, but the model runs on NumPy. `wgemma doctor` lists your GPUs."
        )

    async def rebuild(self) -> None:
        self._forget()

    def attach(self, turns: Turns) -> None:
        self._turns = turns

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._turns.take()

    @property
    def idle(self) -> bool:
        return not self._busy

    async def generate(self, request: Request) -> AsyncGenerator[Token, None]:
        """One generation at a time, and between its tokens nothing at all."""
        async with self._turns.take(), aclosing(self._generate(request)) as tokens:
            self._busy = True
            try:
                async for token in tokens:
                    with self._turns.paused():
                        yield token
            finally:
                self._busy = False

    async def _generate(self, request: Request) -> AsyncGenerator[Token, None]:
        ids, sampling = request.ids, request.sampling
        self._use(request.adapter)
        check_ids(ids, self._model.config.vocab_size, self.context, self.senses)
        # An image whose rows see each other can only be reused as a whole.
        images = [*runs(self._ids), *runs(ids)] if self._model.config.image_attention == "both" else []
        common = outside(common_start(self._ids, ids[:-1]), images)
        self._model.rewind(common)
        del self._ids[common:]
        past, total = list(ids), len(ids) - common
        request.progress(PromptProgress("prompt", 0, total))
        dice = np.random.default_rng(None if sampling.seed is None else sampling.seed & (1 << 64) - 1)
        job = Job(request, Stream(), 0, state=request.state())
        room = min(request.max_tokens, self.context - len(ids))
        while True:
            job.lead(room - len(job.given))
            for token in job.untold:
                yield token
            past += [token.id for token in job.untold]
            job.untold.clear()
            if job.given and (len(job.given) >= room or job.given[-1] in request.ends):
                return
            while len(self._ids) < len(past):
                if request.cancelled():
                    return
                logits = await self._compute(past)
                if len(self._ids) <= len(ids):
                    request.progress(PromptProgress("prompt", len(self._ids) - common, total))
                await breathe()
            if room <= 0:
                return
            if not np.isfinite(logits).all():
                raise BadLogits(f"the model computed NaN or Inf at position {len(past) - 1}: its weights are damaged.")
            job.add(self._draw(logits, past, job, dice))

    def _draw(self, logits: Floats, past: list[int], job: Job, dice: np.random.Generator) -> Token:
        """The next token; `job` is told of it."""
        token, count = self._choose(logits, past, job.request.sampling, dice), job.request.sampling.logprobs
        again = job.forbids(token)
        if again:
            assert job.request.constraint is not None and job.state is not None
            mask = np.frombuffer(job.request.constraint.mask(job.state), np.uint8)
            allowed = np.unpackbits(mask, count=len(logits), bitorder="little").astype(bool)
            token = self._choose(logits, past, job.request.sampling, dice, allowed)
            if job.forbids(token):
                raise GrammarError("the settings rule out every token that the format allows here.")
        logprobs = [] if count is None else ranked(logits, token, count)
        return Token(token, logprobs, origin="again" if again else "drawn")

    async def _compute(self, ids: Sequence[int]) -> Floats:
        """Computes a piece of `ids` after those computed, whole images if they see each other; returns the logits after
        its last token."""
        start = len(self._ids)
        images = list(runs(ids)) if self._model.config.image_attention == "both" else []
        end = outside(min(start + PIECE, len(ids)), images)
        if end == start:
            end = next(end for begin, end in images if begin == start)
        fresh = ids[start:end]
        embeddings, spans = await self._soft(fresh)
        logits: Floats = self._model.step(fresh, embeddings=embeddings, spans=spans)[-1]
        self._ids += fresh
        return logits

    async def _soft(self, ids: Sequence[int]) -> tuple[dict[int, Floats], list[tuple[int, int]]]:
        """The soft rows by start position, and the spans that are images."""
        embeddings, spans = {}, []
        for start, end in runs(ids):
            rows, first = await self.senses.rows(ids[start])
            embeddings[start] = rows[first : first + end - start]
            spans += [(start, end)] if self.senses.is_image(ids[start]) else []
        return embeddings, spans

    def _choose(
        self,
        logits: Floats,
        past: list[int],
        s: Sampling,
        dice: np.random.Generator,
        allowed: NDArray[np.bool_] | None = None,
    ) -> int:
        bias = dict(s.biases(len(logits))) | dict.fromkeys(self._model.config.suppress_tokens, -np.inf)
        ids, probabilities = distribution(
            logits,
            history=[PAD if token >= SOFT else token for token in past],
            logit_bias=bias,
            repeat_penalty=s.repeat_penalty,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repeat_last_n=s.repeat_last_n,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            temperature=s.temperature,
            allowed=allowed,
        )
        if not len(ids):
            raise GrammarError("the settings rule out every token that the format allows here.")
        return int(dice.choice(ids, p=probabilities / probabilities.sum()))

    async def logits(
        self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
    ) -> AsyncGenerator[bytes, None]:
        self._use(adapter)
        check_ids(ids, self._model.config.vocab_size, self.context, self.senses)
        self._forget()
        embeddings, spans = await self._soft(ids)
        yield self._model.logits(list(ids), embeddings=embeddings, spans=spans).astype(np.float32).tobytes()

    async def hidden(self, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
        self._use(adapter)
        check_ids(ids, self._model.config.vocab_size, self.context, self.senses)
        embeddings, spans = await self._soft(ids)
        kept: dict[str, Floats] = {}
        self._model.logits(list(ids), embeddings=embeddings, spans=spans, keep=kept)
        yield kept["output"].astype(np.float32).tobytes()

    async def hidden_of(
        self, texts: Sequence[Sequence[int]], adapter: Setting = BARE
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        for number, ids in enumerate(texts):
            async for part in self.hidden(ids, adapter):
                yield number, part

    async def place(self, contents: Sequence[Content]) -> list[list[Medium[Floats]]]:
        return await self.senses.place(contents)

    def weigh(self, content: Content) -> int:
        return self.senses.weigh(content)

    def let_go(self, placed: Sequence[Sequence[Medium[Any]]]) -> None:
        self.senses.let_go(placed)

    async def encode(self, content: Content) -> bytes:
        media = await self.senses.take(content)
        encoded = [await self.senses.rows(medium.first) for medium in media]
        self.senses.let_go([media])
        return b"".join(rows.astype(np.float32).tobytes() for rows, _ in encoded)

    async def samples(self, source: Any) -> "array[float]":
        return await self.senses.samples(source)

    def stop(self) -> None:
        """Does nothing: NumPy cannot be interrupted."""

    def release_towers(self) -> None:
        self.towers.release()

    async def reset(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._model.rewind(0)
        self._ids.clear()

    async def save(self, kept: Kept, path: str | PathLike[str]) -> None:
        raise SessionError("the reference device does not save sessions.")

    async def restore(self, path: str | PathLike[str]) -> Kept:
        raise SessionError("the reference device does not restore sessions.")

    def close(self) -> None:
        self._forget()
