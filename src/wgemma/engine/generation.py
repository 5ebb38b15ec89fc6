"""Decoding: the GPU samples tokens and feeds them back itself; the host follows a few steps behind."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from wgemma.engine.blame import damaged
from wgemma.engine.request import PromptProgress, Request
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import REPORT_BYTES, RESULTS_BYTES, Recipe, Sampling, alternatives, outcome
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import BadLogits, DeviceError, SettingsError
from wgemma.gpu.device import Reading
from wgemma.model.passes import SOFT
from wgemma.sync import breathe

SLOT = 0  # the only one: a step has one row
AHEAD = 2  # steps in flight
QUICK = 0.01  # seconds: with shorter steps, `device.ahead` of them are in flight


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `logprobs` are (token, log-probability) pairs: its own, then the most likely ones."""

    id: int
    logprobs: list[tuple[int, float]] = field(default_factory=list)


async def generate(runner: Runner, sequence: TokenSequence, request: Request) -> AsyncGenerator[Token, None]:
    """Generates tokens after the request's ids until the context is full or the caller stops; none if cancelled before
    the end of prefill."""
    ids, sampling, engine = request.ids, request.sampling, runner.engine
    if ids and isinstance(ids[-1], int) and ids[-1] >= SOFT:
        raise SettingsError("the prompt ends in an image or a sound; add the token that closes it.")
    sequence.use(request.adapter)
    if not await runner.prefill(sequence, ids, request.marks, request.cancelled, request.progress):
        return
    room, total = min(request.max_tokens, engine.context - len(ids)), len(ids) - sequence.reused
    if room <= 0:
        await runner.device.wait()
        request.progress(PromptProgress("prompt", total, total))
        return
    finish = runner.sampler.begin(SLOT, sampling, engine.context)
    ahead = 1 if engine.fetches_rows else AHEAD
    start, last = len(ids), perf_counter()
    waiting: deque[tuple[Reading, Reading | None]] = deque()
    submitted, known = 0, [ids[-1]]  # known[i] is the token at position start − 1 + i
    try:
        while len(known) <= room:
            while submitted < room and len(waiting) < ahead:
                await _step(runner, sequence, known, start, submitted, finish)
                waiting.append(_read_results(runner, sampling))
                submitted += 1
            token = await _receive(runner, sequence, waiting.popleft(), start + len(known) - 1, sampling)
            known.append(token.id)
            if len(known) == 2:
                request.progress(PromptProgress("prompt", total, total))
            took, last = perf_counter() - last, perf_counter()
            if ahead > 1:
                ahead = engine.device.ahead if took < QUICK else AHEAD
            # The token's keys are in flight if the step after its own was already submitted.
            fed = min(submitted - 1, len(known) - 1)
            sequence.ids[start:] = known[1 : fed + 1]
            yield token
            await breathe()
    finally:
        # Wait for results in flight, so that their staging memory can be reused.
        with suppress(DeviceError):
            for results, report in waiting:
                await results.bytes()
                if report is not None:
                    await report.bytes()


async def _step(
    runner: Runner, sequence: TokenSequence, known: list[int], start: int, submitted: int, finish: Recipe
) -> None:
    """Submits the pass whose input is the token at start − 1 + submitted."""
    if submitted == 0:
        await runner.chunk(sequence, known, finish)
        return
    end = start + submitted
    await runner.advance(sequence, end)
    if runner.engine.fetches_rows:
        await runner.engine.fetch_rows([known[submitted]])
    (await runner.programs.get(1, end, finish, sequence.adapter)).replay()


def _read_results(runner: Runner, sampling: Sampling) -> tuple[Reading, Reading | None]:
    results = runner.device.read_later(runner.sampler.results, 0, RESULTS_BYTES)
    if sampling.logprobs is None:
        return results, None
    return results, runner.device.read_later(runner.sampler.report, 0, REPORT_BYTES)


async def _receive(
    runner: Runner, sequence: TokenSequence, readings: tuple[Reading, Reading | None], position: int, sampling: Sampling
) -> Token:
    result = outcome(await readings[0].bytes(), SLOT, position)
    if result.bad:
        raise BadLogits(await damaged(runner, sequence, position - 1))
    if readings[1] is None or sampling.logprobs is None:
        return Token(result.token)
    return Token(result.token, alternatives(await readings[1].bytes(), SLOT, position, sampling.logprobs))
