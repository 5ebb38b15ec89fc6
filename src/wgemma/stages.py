"""Where load time goes, stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


@dataclass(slots=True)
class Stage:
    name: str
    seconds: float


class Stages:
    """`begin` ends the current stage and starts or resumes the named one; `done` lists the finished ones."""

    def __init__(self) -> None:
        self.done: list[Stage] = []
        self._name = ""
        self._began = 0.0

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._began = name, perf_counter()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """A nested stage; the outer one resumes afterwards."""
        outer = self._name
        self.begin(name)
        try:
            yield
        finally:
            self.end()
            if outer:
                self.begin(outer)

    def end(self) -> None:
        if self._name:
            stage = next((stage for stage in self.done if stage.name == self._name), None)
            if stage is None:
                self.done.append(stage := Stage(self._name, 0.0))
            stage.seconds += perf_counter() - self._began
        self._name = ""
