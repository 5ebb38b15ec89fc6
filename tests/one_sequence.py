"""One sequence at a time on a runner, for the tests of what sequences do."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.backend import GpuBackend
from wgemma.engine.batch import Batch
from wgemma.engine.engine import Engine
from wgemma.engine.opening import open_engine
from wgemma.engine.options import Options
from wgemma.engine.request import PromptProgress, Request, Token
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import Kept
from wgemma.engine.scoring import logits
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import Device
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config
from wgemma.sync import iterate, run


def engine_on(device: Device, gguf: Gguf, options: Options | None = None) -> Engine:
    return run(open_engine(Ledger(device), gguf, Config.from_gguf(gguf), options or Options()))


class OneSequence:
    """`reused` and `ids` are those of the last generation: what of its prompt was there, and what is computed now."""

    def __init__(self, runner: Runner) -> None:
        self.batch = Batch(runner)
        self.runner = runner
        self.engine = runner.engine
        self.paging = runner.paging
        self.programs = runner.programs
        self.adapter: Setting = BARE
        self.reused = 0
        self.ids: list[int] = []

    @classmethod
    def of(cls, backend: object) -> "OneSequence":
        assert isinstance(backend, GpuBackend)
        return cls(backend.runner)

    @property
    def kept(self) -> Kept:
        return Kept(self.ids, self.adapter)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, max_tokens: int, marks: Sequence[int] = ()
    ) -> AsyncGenerator[Token, None]:
        def hear(progress: PromptProgress) -> None:
            if progress.stage == "prompt":
                self.reused = len(ids) - progress.total

        given: list[int] = []
        request = Request(ids, max_tokens, sampling, self.adapter, marks, progress=hear)
        try:
            async with aclosing(self.batch.drive(request)) as tokens:
                async for token in tokens:
                    given.append(token.id)
                    yield token
        finally:
            self.ids = [*ids, *given][:-1]

    def logits(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> AsyncGenerator[bytes, None]:
        return logits(self.runner, ids, chunks, self.adapter)

    def use(self, setting: Setting) -> None:
        self.adapter = setting

    def reset(self) -> None:
        self.paging.prefixes.clear()

    def prefill(self, ids: Sequence[int]) -> None:
        assert not list(iterate(self.generate(ids, Sampling(), 0)))

    def free(self) -> None:
        self.runner.free()
