"""Which generation has which slot: those that decode, those whose readers are behind, and those that have something to
catch up on first."""

from wgemma.engine.jobs import Job
from wgemma.engine.runner import Runner
from wgemma.engine.slots import bucket_of
from wgemma.errors import Error


class Seats:
    """The slots of a runner, `most` at most; `jobs` are those who have one, by its number."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.most = runner.engine.options.slots
        self.jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def full(self) -> bool:
        """Whether all are taken that exist so far."""
        return len(self.jobs) == self.runner.slots.count

    def take(self, job: Job) -> None:
        """Gives a job the lowest free slot."""
        self.put(job, next(slot for slot in range(self.most) if slot not in self.jobs))

    def put(self, job: Job, slot: int) -> None:
        """Lets a job decode in this slot from where it stands; steps in flight do not count."""
        assert job.sequence is not None
        job.slot, job.rests = slot, False
        job.submitted, job.put, job.fresh = len(job.given), job.put + 1, True
        self.jobs[slot] = job
        job.recipe = self.runner.slots.put(slot, job.sequence, job.last, job.request.sampling)
        constraint, job.masked = job.request.constraint, 0
        mask = constraint.known_mask(job.state) if constraint and job.state else None
        if mask is not None:
            job.masked = len(job.known)
            self.runner.slots.sampler.put_mask(slot, job.masked, mask)

    def leave(self, job: Job) -> None:
        if job.slot is not None:
            slot, job.slot = job.slot, None
            del self.jobs[slot]
            self.runner.slots.clear(slot)

    def rest(self, job: Job) -> None:
        """Its reader is behind: nothing is computed until he has caught up."""
        assert job.slot is not None
        job.rests = True
        self.runner.slots.clear(job.slot)

    def pause(self, job: Job) -> None:
        """Something has to be done before its next token; steps in flight do not count."""
        assert job.slot is not None
        job.put, job.rests = job.put + 1, False
        self.runner.slots.clear(job.slot)

    async def widen(self) -> list[tuple[Job, Error]]:
        """Makes all slots, and puts everybody into theirs again; returns those for whom that failed, and why."""
        await self.runner.widen(bucket_of(self.most))
        failed: list[tuple[Job, Error]] = []
        for slot, job in list(self.jobs.items()):
            if job.runs or job.rests:
                try:
                    self.put(job, slot)
                except Error as error:
                    failed.append((job, error))
        return failed

    def close_ranks(self) -> None:
        """Moves sequences to lower slots, where that halves the rows of a step."""
        rows = bucket_of(max(self.jobs, default=0) + 1)
        while self.jobs and len(self.jobs) <= rows // 2:
            highest = max(self.jobs)
            if highest < rows // 2:
                return
            job = self.jobs[highest]
            self.leave(job)
            slot = next(slot for slot in range(rows) if slot not in self.jobs)
            if job.runs:
                self.put(job, slot)
            else:
                job.slot, self.jobs[slot], job.put = slot, job, job.put + 1
            rows = bucket_of(max(self.jobs) + 1)
