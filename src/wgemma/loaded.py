"""What every part of a model shares: its files, its backend, whose turn it is, and its end."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Self, TypeVar

from wgemma.checks import all_checked
from wgemma.constraints import Constraints
from wgemma.engine.backend import Backend
from wgemma.engine.turns import Turns
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.habits import Habitual
from wgemma.model.config import Config
from wgemma.prelude import Prelude
from wgemma.text.tokenizer import Tokenizer

T = TypeVar("T")


@all_checked
class Loaded(Habitual):
    """A loaded model, without anything to ask it."""

    def __init__(
        self, files: ModelFiles, opened: Sequence[Gguf], config: Config, backend: Backend, tokenizer: Tokenizer
    ) -> None:
        self.name = files.name
        self.tokenizer = tokenizer
        self.prompt_style: Literal["small", "large"] = prompt_style(files, opened[0])
        self.backend = backend
        self._files = files
        self._prelude = Prelude.of(files)
        self._opened = opened
        self._config = config
        self._constraints = Constraints(tokenizer)
        self._turns = Turns(self.name, backend.stop, self._free)
        backend.attach(self._turns)

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        self._turns.check()
        async with self._turns.take():
            return await work()

    def close(self) -> None:
        """Frees all memory. Other threads' calls end with `SessionError`; this waits for what the GPU is computing. In
        a forked child it does nothing."""
        self._turns.close()

    def _free(self) -> None:
        self.backend.close()
        for gguf in self._opened:
            gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wgemma.Model {self.name} on {self.backend.name}>"


def prompt_style(files: ModelFiles, gguf: Gguf) -> Literal["small", "large"]:
    """The prompt format: as the store says, otherwise "small" for models with per-layer embeddings."""
    if files.prompt_style is not None:
        return "large" if files.prompt_style == "large" else "small"
    return "small" if gguf.metadata.get("gemma4.embedding_length_per_layer_input") else "large"
