"""Models that are made up: they write `word word word …` as fast or as slowly as a test wants, without a GPU."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from wgemma.answers import AsyncAnswer
from wgemma.api import Part, PromptProgress, Usage
from wgemma.engine.endings import Ending
from wgemma.errors import Error
from wgemma.files.locate import ModelFiles
from wgemma.prelude import Prelude
from wgemma.serve.settings import Settings


class FakeModel:
    """`words` of an answer; `before` is called before each. `live` counts the answers that are being written."""

    def __init__(self, name: str, context: int | None = None) -> None:
        self.name = name
        self.words = 3
        self.text = "word "
        self.pause = 0.0
        self.failure: Error | None = None  # raised before the word of this number
        self.fails_at = 0
        self.written = self.live = self.most_live = 0
        self.closed = False
        self.asked: list[dict[str, Any]] = []
        self.adapters: dict[str, float] = {}
        self.hears = self.sees = False
        self.prompt_style = "small"
        self._prelude = Prelude()
        self.tokenizer = FakeTokenizer()
        self._config = SimpleNamespace(context_length=8192)
        device = SimpleNamespace(allocated=1000)
        runner = SimpleNamespace(engine=SimpleNamespace(device=device))
        self.backend = SimpleNamespace(context=context or 4096, runner=runner, weigh=lambda content: 1)

    def achat(self, messages: Any, *, n: int = 1, progress: Any = None, **options: Any) -> AsyncAnswer[Part]:
        self.asked.append({"messages": messages, **options})
        return AsyncAnswer(*(self._parts(progress) for _ in range(n)), most=n)

    def agenerate(self, prompt: Any, **options: Any) -> AsyncAnswer[Any]:
        return self.achat(prompt, **options)

    async def _parts(self, progress: Callable[[PromptProgress], None]) -> AsyncGenerator[Part | Ending, None]:
        self.live += 1
        self.most_live = max(self.live, self.most_live)
        try:
            progress(PromptProgress("prompt", 5, 5))
            for i in range(self.words):
                if self.failure is not None and i == self.fails_at:
                    raise self.failure
                await asyncio.sleep(self.pause)
                self.written += 1
                yield Part("content", self.text)
            usage = Usage(5, 0, self.words)
            yield Ending("stop", usage)
            yield Part("content", finish_reason="stop", usage=usage)
        finally:
            self.live -= 1

    def embed(self, texts: list[str], adapter: Any = None) -> Any:
        return np.ones((len(texts), 4), np.float32) / 2

    def cut_audio(self, sound: Any) -> list[Any]:
        """Every recording has two pieces of a second."""
        return [SimpleNamespace(samples=[0] * 100, rate=100)] * 2

    def load_adapter(self, path: Any, name: str) -> str:
        self.adapters[name] = 1.0
        return name

    def close(self) -> None:
        assert not self.live, "a model in use was closed"
        self.closed = True


class FakeTokenizer:
    """A token is a character."""

    def __len__(self) -> int:
        return 0x110000

    def id(self, text: str) -> int:
        return 2

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def encode_segments(self, segments: Any) -> list[int]:
        return [ord(character) for text, _ in segments for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class Garage:
    """Loads fakes, and remembers them. `failures` are raised by the next loads, one each."""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes
        self.loaded: list[FakeModel] = []
        self.failures: list[Exception] = []

    def __call__(self, files: ModelFiles, settings: Settings, context: int | None) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        model = FakeModel(files.name, context)
        for name, value in self.attributes.items():
            setattr(model, name, value)
        self.loaded.append(model)
        return model

    @property
    def last(self) -> FakeModel:
        return self.loaded[-1]

    @property
    def open(self) -> list[str]:
        return sorted(model.name for model in self.loaded if not model.closed)
