"""Many generations at once: who runs in the next step.

A turn is a piece of one prompt, if one is being read, and a decoding step of all sequences that are past theirs. The
GPU samples tokens and feeds them back itself; the host follows a few steps behind. First come, first served: prompts
are read one after the other, so whoever waits finds what those before have computed.

A token that a constraint forbids is drawn again: its sequence steps back to that position while the others go on, the
mask of what is allowed is found in slices, and the next step draws under it. Forced tokens are computed like a prompt.

Nobody suffers for another: a bad prompt, NaN or a reader who left ends one generation. When no page is left, the
youngest sequence gives its pages up and is computed again later. When the device is lost, all continue on a new one.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import count, islice
from time import perf_counter

from wgemma.engine.adapting import Adapters
from wgemma.engine.blame import damaged
from wgemma.engine.jobs import Item, Job, Step
from wgemma.engine.paging import ArenaFull
from wgemma.engine.request import Cancelled, PromptProgress, Request, Token
from wgemma.engine.runner import Runner, check_ids
from wgemma.engine.sampling import Recipe, alternatives, outcome
from wgemma.engine.seats import Seats
from wgemma.engine.slots import bucket_of
from wgemma.engine.soft import common_start
from wgemma.engine.streams import Stream
from wgemma.errors import (
    AdapterError,
    BadLogits,
    DeviceError,
    DeviceLost,
    Error,
    GrammarError,
    OutOfMemory,
    SettingsError,
)
from wgemma.model.passes import SOFT
from wgemma.model.rows import PAGE

AHEAD = 2  # steps in flight
QUICK = 0.01  # seconds: with shorter steps, `device.ahead` of them are in flight
SLICE = 0.005  # seconds of a turn for masks and forced tokens
SMOOTH = 0.05  # seconds a piece of a prompt may take while others wait for their next token
PIECES = (512, 256, 128, 32)  # rows of such a piece
UNREAD = 64  # tokens a generation may be ahead of its reader
NEIGHBOURS = 16  # waiting prompts to look at for a common beginning
REBUILDS = 2  # times in a row that a lost device is replaced


class Batch:
    """All generations of one model. `recover` replaces a lost device and returns the new runner."""

    def __init__(self, runner: Runner, recover: Callable[[DeviceLost], Awaitable[Runner]] | None = None) -> None:
        self.runner = runner
        self.seats = Seats(runner)
        self._recover = recover
        self._numbers = count()
        self._inbox: deque[Job] = deque()  # where other threads leave theirs
        self._waiting: deque[Job] = deque()
        self._reading: Job | None = None
        self._reader: AsyncGenerator[PromptProgress, None] | None = None
        self._flight: deque[Step] = deque()
        self._between = False  # two layers of an image or a sound: its prompt cannot be put off
        self._stalled = False  # no page was left: nobody begins until somebody ends
        self._row_seconds = SMOOTH / PIECES[2]
        self._step_seconds = self._last_step = 0.0
        self._losses = 0
        self._served = 0  # how often somebody was helped to catch up

    # -- from outside

    def submit(self, request: Request) -> Stream[Item]:
        """Begins a generation; its tokens come through the stream."""
        sampling = request.sampling.settled()  # a replayed reply continues as it began
        job = Job(replace(request, sampling=sampling), Stream(), next(self._numbers), state=request.state())
        self._inbox.append(job)
        return job.stream

    @property
    def busy(self) -> bool:
        """Whether a turn would do anything."""
        if self._inbox or self._reading or self._flight or any(not job.rests for job in list(self.seats.jobs.values())):
            return True
        return any(job.over or self._can_go_on(job) for job in [*list(self.seats.jobs.values()), *list(self._waiting)])

    def fail(self, error: BaseException) -> None:
        """Ends all generations with an error."""
        jobs = list(self._all())
        self._flight.clear()
        self._waiting.clear()
        self._reading = self._reader = None
        for job in jobs:
            with suppress(Exception):  # nobody may wait for ever
                self._finish(job, error)
        self._losses = 0

    def adapt(self, adapters: Adapters) -> None:
        """Other adapters are loaded now; whoever needs one that is not there any more ends."""
        for job in self._all():
            setting = adapters.recognise(job.request.adapter.key)
            if setting is None:
                self._waiting = deque(other for other in self._waiting if other is not job)
                if job is self._reading:
                    self._reading = self._reader = None
                self._finish(job, SettingsError("the adapter of this reply was unloaded or replaced in the meantime."))
                continue
            job.request = replace(job.request, adapter=setting)
            if job.sequence is not None:
                job.sequence.adapter = setting

    def _all(self) -> Iterator[Job]:
        self._open_inbox()
        found = [*self.seats.jobs.values(), *([self._reading] if self._reading else []), *self._waiting]
        return iter(sorted(set(found), key=lambda job: job.number))

    async def drive(self, request: Request) -> AsyncGenerator[Token, None]:
        """The tokens of a generation, computed in the caller's own time; for whoever has the device for himself."""
        stream = self.submit(request)
        try:
            while True:
                while not stream.has_news():
                    await self.turn()
                item = await stream.read()
                if item is None:
                    return
                if isinstance(item, PromptProgress):
                    request.progress(item)
                else:
                    yield item
        finally:
            stream.close()
            while self.busy:
                await self.turn()

    # -- a turn

    async def turn(self) -> None:
        """Some work for everybody."""
        try:
            self._open_inbox()
            await self.take_leave()
            await self.read()
            await self._catch_up()
            await self._decode()
        except DeviceLost as loss:
            await self._replay(loss)

    async def read(self) -> bool:
        """The next piece of a prompt; prompts that are there already go on to decoding on the way. Returns whether
        there was one."""
        while True:
            await self._begin_one()
            if self._reading is None:
                return False
            if await self._read_on(self._reading):
                return True

    def _open_inbox(self) -> None:
        while self._inbox:
            self._waiting.append(self._inbox.popleft())

    async def take_leave(self) -> None:
        """Ends those whose readers have left or cancelled."""
        for job in [job for job in self._waiting if job.over]:
            self._waiting.remove(job)
            job.stream.end()
        if self._reading and self._reading.over:
            self._finish(await self._stop_reading())
        for job in [job for job in self.seats.jobs.values() if job.over]:
            self._finish(job)

    # -- prompts

    async def _begin_one(self) -> None:
        job = next((job for job in self._waiting if self._can_go_on(job)), None)
        if self._reading or job is None:
            return
        full = len(self.seats) == self.seats.most or (self._stalled and len(self.seats))
        if full and not self._make_way():
            return
        self._waiting.remove(job)
        if job.heard is None:
            job.lead(self._room(job))
        try:
            ids, engine = job.known, self.runner.engine
            check_ids(ids, engine.config.vocab_size, engine.context, self.runner.senses)
            if ids[-1] >= SOFT:
                raise SettingsError("the prompt ends in an image or a sound; add the token that closes it.")
            job.sequence = await self.runner.paging.begin(ids, job.request.adapter, self.runner.images(ids))
        except ArenaFull as error:
            self._wait_again(job, error)
            return
        except BaseException as error:
            if not _is_its_own(error):
                self._waiting.appendleft(job)
                raise
            job.stream.end(error)
            return
        self._reading = job
        total = len(job.request.ids) - min(job.sequence.reused, len(job.request.ids) - 1)
        if job.heard is None:
            job.heard = total
            job.stream.put(PromptProgress("prompt", 0, total))
        marks = sorted({*job.request.marks, *self._partings(ids)})
        self._reader = self.runner.prefill(job.sequence, ids, marks, self._piece, self._watch)

    def _partings(self, ids: list[int]) -> set[int]:
        """Where the next prompts part from this one, if they share a page at least."""
        waiting = [job.request.ids for job in islice(self._waiting, NEIGHBOURS)]
        return {common_start(ids, other) for other in waiting if list(other[:PAGE]) == ids[:PAGE]}

    def _make_way(self) -> bool:
        """Takes the slot of somebody who rests."""
        resting = [job for job in self.seats.jobs.values() if job.rests]
        if resting:
            self._put_off(max(resting, key=lambda job: job.number))
        return bool(resting)

    def _piece(self) -> int:
        """How many rows of a prompt to compute next, so that nobody waits for long."""
        rows = self.runner.pass_rows
        if not any(job.runs for job in self.seats.jobs.values()):
            return rows
        return min(rows, next((size for size in PIECES if size * self._row_seconds <= SMOOTH), PIECES[-1]))

    async def _watch(self, progress: PromptProgress) -> None:
        """Between the layers of an image or a sound the others go on."""
        job = self._reading
        assert job is not None
        self._tell(job, progress)
        if job.over:
            raise Cancelled
        self._between = True
        try:
            await self._decode()
        finally:
            self._between = False

    async def _read_on(self, job: Job) -> bool:
        """One piece of a prompt; after the last its sequence gets a slot. Returns whether anything was computed."""
        assert self._reader is not None and job.sequence is not None
        before, begun = len(job.sequence.ids), perf_counter()
        try:
            progress = await anext(self._reader, None)
            if progress is None:
                await self._go_on(job)
                self._reading = self._reader = None
                return False
            self._tell(job, progress)
        except Cancelled:
            self._finish(await self._stop_reading())
            return False
        except Error as error:
            if not _is_its_own(error):
                raise
            self._reading = self._reader = None
            if isinstance(error, ArenaFull):
                self._wait_again(job, error)
            else:
                self._finish(job, error)
            return False
        rows = len(job.sequence.ids) - before
        if len(self.seats) and rows:
            self._row_seconds += 0.5 * ((perf_counter() - begun) / rows - self._row_seconds)
        return True

    @staticmethod
    def _tell(job: Job, progress: PromptProgress) -> None:
        """Progress of the prompt itself, not of what is computed again, nor of forced tokens behind it."""
        if job.told:
            return
        if progress.stage == "prompt" and job.heard is not None:
            progress = PromptProgress("prompt", min(progress.done, job.heard), job.heard)
        job.stream.put(progress)

    async def _stop_reading(self) -> Job:
        """Leaves a prompt where it is."""
        job, reader, self._reading, self._reader = self._reading, self._reader, None, None
        assert job is not None and reader is not None
        await reader.aclose()
        return job

    def _wait_again(self, job: Job, error: ArenaFull) -> None:
        """No page is left for a prompt: it waits until somebody ends, or fails if nobody is there."""
        if not len(self.seats):
            self._finish(job, error)
            return
        self._stalled = True
        self._put_off(job)

    async def _go_on(self, job: Job) -> None:
        """A prompt is computed: its sequence gets a slot, unless nothing is to follow."""
        if self._is_complete(job):
            await self.runner.device.wait()
            self._send(job)
            self._finish(job)
            return
        if self.seats.full:
            try:
                for other, error in await self.seats.widen():
                    self._fail_alone(other, error)
            except (OutOfMemory, AdapterError):
                self.seats.most = self.runner.slots.count  # there is no room for more: they wait for each other
                self._put_off(job)
                return
        self._send(job)
        self.seats.take(job)

    # -- ends

    def _finish(self, job: Job, error: BaseException | None = None) -> None:
        """Ends a generation; what it computed stays for the next, unless an error ended it."""
        sequence, job.sequence, self._stalled, job.masking = job.sequence, None, False, None
        try:
            if sequence is not None:
                (self.runner.paging.drop if error else self.runner.paging.end)(sequence)
            self.seats.leave(job)
        finally:
            job.stream.end(error)

    def _put_off(self, job: Job) -> None:
        """Takes a generation's pages; it is computed again when there is room."""
        self.seats.leave(job)
        job.masking = None
        if job.sequence is not None:
            self.runner.paging.record(job.sequence)
            self.runner.paging.drop(job.sequence)
            job.sequence = None
        self._waiting = deque(sorted([*self._waiting, job], key=lambda other: other.number))

    # -- decoding

    async def _decode(self) -> None:
        """Keeps a few steps in flight, and hands out the tokens of the oldest."""
        self._rest_and_wake()
        self.seats.close_ranks()
        while len(self._flight) < self._ahead() and self._wanting():
            await self._submit_step()
        if self._flight:
            await self._receive(self._flight.popleft())

    def _ahead(self) -> int:
        if self.runner.engine.fetches_rows:
            return 1
        return self.runner.device.ahead if 0 < self._step_seconds < QUICK else AHEAD

    def _rest_and_wake(self) -> None:
        for slot, job in list(self.seats.jobs.items()):
            if job.rests and self._can_go_on(job):
                self.seats.put(job, slot)
            elif job.runs and job.stream.unread >= UNREAD:
                self.seats.rest(job)

    @staticmethod
    def _can_go_on(job: Job) -> bool:
        return job.stream.unread <= UNREAD // 2

    def _room(self, job: Job) -> int:
        return min(job.request.max_tokens, self.runner.engine.context - len(job.request.ids))

    def _wanting(self) -> list[Job]:
        """Those whose next token is still to be computed."""
        jobs = self.seats.jobs.values()
        return [job for job in jobs if job.runs and job.submitted < self._room(job)]

    async def _submit_step(self) -> None:
        runner = self.runner
        runner.check()
        for job in self._wanting():
            await self._make_room(job)
        jobs = self._wanting()
        if not jobs:
            return
        rows = bucket_of(max(job.slot for job in jobs if job.slot is not None) + 1)
        ends = {job: len(job.request.ids) + job.submitted for job in jobs}
        recipe = reduce(Recipe.merged, (job.recipe for job in jobs))
        lows = runner.weigh({job.slot: job.request.adapter for job in jobs if job.slot is not None}, rows)
        if runner.engine.fetches_rows:
            tokens = [0] * rows
            for job in jobs:
                assert job.slot is not None
                tokens[job.slot] = job.last
            await runner.engine.fetch_rows(tokens)
        (await runner.programs.get(rows, max(ends.values()), recipe, lows)).replay()
        if any(job.masked == ends[job] for job in jobs):
            (await runner.programs.again(rows, recipe)).replay()
        entries = []
        for job in jobs:
            assert job.slot is not None
            entries.append((job, job.slot, job.put, ends[job]))
            job.submitted += 1
            if job.submitted == self._room(job):
                runner.slots.clear(job.slot)  # else it would go on, beyond its pages
        self._flight.append(Step(entries, *runner.slots.sampler.read(rows, logprobs=recipe.logprobs)))

    async def _make_room(self, job: Job) -> None:
        """Gives a sequence the pages for its next position; the youngest gives up its own where none is left."""
        runner, before = self.runner, len(job.sequence.full) if job.sequence else 0
        while job.sequence is not None and job.slot is not None:
            try:
                end = len(job.request.ids) + job.submitted + 1  # the new token is part of the history
                if await runner.paging.reach(job.sequence, min(end, runner.engine.context)):
                    runner.slots.put_pages(job.slot, job.sequence, before)
                if job.fresh:  # later ones are put there by the GPU
                    runner.put_history(job.sequence, [job.last], len(job.sequence.ids))
                    job.fresh = False
                return
            except ArenaFull as error:
                victim = max(self.seats.jobs.values(), key=lambda other: other.number)
                self._stalled = True
                if self._reading and self._reading.number > victim.number and not self._between:
                    self._put_off(await self._stop_reading())
                elif len(self.seats) == 1 and self._reading is None:
                    self._finish(job, error)
                else:
                    self._put_off(victim)

    async def _receive(self, step: Step) -> None:
        results = await step.results.bytes()
        report = await step.report.bytes() if step.report else b""
        now = perf_counter()
        self._step_seconds, self._last_step = now - self._last_step, now
        self._losses = 0
        for job, slot, put, position in step.jobs:
            if job.slot != slot or job.put != put or job.sequence is None:
                continue
            result = outcome(results, slot, position)
            if result.bad:
                self._finish(job, BadLogits(await damaged(self.runner, job.sequence, job.last)))
                continue
            if job.forbids(result.token):
                self._forbid(job, position)
                continue
            wanted = job.request.sampling.logprobs
            more = [] if wanted is None else alternatives(report, slot, position, wanted)
            self._give(job, Token(result.token, more, origin="again" if result.again else "drawn"))

    def _give(self, job: Job, token: Token) -> None:
        assert job.sequence is not None
        job.sequence.ids.append(job.last)  # the step that brought the token has computed the one before
        if len(job.sequence.ids) % PAGE == 0:
            if self.runner.paging.record(job.sequence) and job.slot is not None:
                self.runner.slots.put_pages(job.slot, job.sequence, len(job.sequence.ids) // PAGE - 1)
            self.runner.paging.settle(job.sequence)
        job.add(token)
        if not self._is_complete(job):
            job.lead(self._room(job) - len(job.given))
        self._send(job)
        if self._is_complete(job):
            self._finish(job)
        elif job.behind:
            self.seats.pause(job)

    @staticmethod
    def _send(job: Job) -> None:
        """Sends the reader what he was not told yet."""
        if not job.told and job.heard is not None:
            job.stream.put(PromptProgress("prompt", job.heard, job.heard))
        job.told = True
        for token in job.untold:
            job.stream.put(token)
        job.untold.clear()

    def _is_complete(self, job: Job) -> bool:
        return len(job.given) >= self._room(job) or (bool(job.given) and job.given[-1] in job.request.ends)

    # -- constraints

    def _forbid(self, job: Job, position: int) -> None:
        """A token was drawn that may not stand there."""
        constraint = job.request.constraint
        assert constraint is not None and job.state is not None
        if job.masked == position:
            self._finish(job, GrammarError("the settings rule out every token that the format allows here."))
            return
        job.masking = constraint.masking(job.state)
        self.seats.pause(job)

    async def _catch_up(self) -> None:
        """Some of what those who do not decode are waiting for: forced tokens are computed, and masks are found."""
        waiting = sorted(
            (job for job in self.seats.jobs.values() if not (job.runs or job.rests)), key=lambda job: job.served
        )
        end = perf_counter() + SLICE
        for job in waiting:
            if job.sequence is None or job.slot is None:  # it gave way to another
                continue
            if perf_counter() > end:
                return
            self._served = job.served = self._served + 1
            try:
                if job.behind:
                    await self.runner.extend(job.sequence, job.known, self._piece())
                elif job.masking is not None:
                    _find(job)
                if job.runs:
                    self.seats.put(job, job.slot)
            except ArenaFull as error:
                self._give_way(job, error)
            except Error as error:
                self._fail_alone(job, error)

    def _fail_alone(self, job: Job, error: Error) -> None:
        """Ends a generation with an error of its own; others are raised."""
        if not _is_its_own(error):
            raise error
        self._finish(job, error)

    def _give_way(self, job: Job, error: ArenaFull) -> None:
        """No page is left for forced tokens."""
        if len(self.seats) == 1 and self._reading is None:
            self._finish(job, error)
            return
        self._stalled = True
        self._put_off(job)

    # -- a lost device

    async def _replay(self, loss: DeviceLost) -> None:
        """All continue on a new device; after REBUILDS losses in a row nobody does."""
        self._losses += 1
        if self._recover is None or self._losses > REBUILDS:
            self.fail(loss)
            return
        try:
            await self.begin_again(await self._recover(loss))
        except Error as error:
            self.fail(error)

    async def begin_again(self, runner: Runner) -> None:
        """All continue on another runner, with the tokens given so far."""
        jobs = list(self._all())
        self._flight.clear()
        if self._reader is not None:
            with suppress(DeviceError):
                await self._reader.aclose()
        self._reading = self._reader = None
        self._waiting = deque(jobs)
        self._stalled = False
        self.seats = Seats(runner)
        for job in jobs:
            job.slot = job.sequence = job.masking = None
        self.runner = runner


def _find(job: Job) -> None:
    """Goes on with the mask for a job's next token."""
    assert job.masking is not None
    try:
        next(job.masking)
    except StopIteration as found:
        job.masking = None
        if not any(found.value):
            raise GrammarError("no token of this model can go on as the format wants it.") from None


def _is_its_own(error: BaseException) -> bool:
    """Whether an error concerns one generation alone."""
    return isinstance(error, Error) and not isinstance(error, DeviceLost)
