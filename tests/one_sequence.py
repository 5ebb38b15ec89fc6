"""A runner with one sequence on it, for the tests of what sequences do."""

from collections.abc import AsyncGenerator, Sequence

from wgemma.engine.adapting import Setting
from wgemma.engine.backend import GpuBackend
from wgemma.engine.engine import Engine
from wgemma.engine.generation import Token, generate
from wgemma.engine.opening import open_engine
from wgemma.engine.options import Options
from wgemma.engine.request import Request
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.scoring import logits
from wgemma.engine.sequence import TokenSequence
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import Device
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config
from wgemma.sync import run


def engine_on(device: Device, gguf: Gguf, options: Options | None = None) -> Engine:
    return run(open_engine(Ledger(device), gguf, Config.from_gguf(gguf), options or Options()))


class OneSequence:
    def __init__(self, runner: Runner, sequence: TokenSequence | None = None) -> None:
        self.runner = runner
        self.sequence = sequence or TokenSequence()
        self.engine = runner.engine
        self.cache = runner.cache
        self.programs = runner.programs

    @classmethod
    def of(cls, backend: object) -> "OneSequence":
        assert isinstance(backend, GpuBackend)
        return cls(backend.runner, backend.sequence)

    @property
    def ids(self) -> list[int]:
        return self.sequence.ids

    @property
    def reused(self) -> int:
        return self.sequence.reused

    def generate(
        self, ids: Sequence[int], sampling: Sampling, max_tokens: int, marks: Sequence[int] = ()
    ) -> AsyncGenerator[Token, None]:
        request = Request(ids, max_tokens, sampling, self.sequence.adapter, marks)
        return generate(self.runner, self.sequence, request)

    def logits(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> AsyncGenerator[bytes, None]:
        return logits(self.runner, self.sequence, ids, chunks)

    def use(self, setting: Setting) -> None:
        self.sequence.use(setting)

    def reset(self) -> None:
        self.sequence.reset()

    def fork(self) -> "OneSequence":
        """Another sequence on the same runner."""
        return OneSequence(self.runner, run(self.runner.fork(self.sequence)))

    def prefill(self, ids: Sequence[int]) -> None:
        run(self.runner.prefill(self.sequence, ids))

    def free(self) -> None:
        self.runner.free()
