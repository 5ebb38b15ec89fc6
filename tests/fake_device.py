"""A device that computes nothing: it counts. For recordings of real shapes, which need no gigabytes to be looked at."""

from collections.abc import Mapping, Sequence
from typing import Any

from wgemma.gpu.device import AdapterInfo, Command, Limits
from wgemma.gpu.shaders import Uniform, declarations, load_shader, uniform


class FakeBuffer:
    def __init__(self, size: int) -> None:
        self.size = size


class FakeKernel:
    def __init__(self, name: str, bindings: Mapping[str, int], uniform: Uniform) -> None:
        self.name = name
        self.bindings = bindings
        self.uniform = uniform


class FakeProgram:
    def replay(self) -> None:
        pass


class FakeReading:
    def __init__(self, size: int) -> None:
        self.size = size

    async def bytes(self) -> bytes:
        return bytes(self.size)


class FakeDevice:
    """Knows the real shaders, so that a binding or a parameter that is missing shows."""

    def __init__(self, limits: Limits, subgroups: int = 1) -> None:
        self.info = AdapterInfo("fake", "none", "DiscreteGPU", "")
        self.limits = limits
        self.features = frozenset[str]()
        self.subgroup_size = subgroups
        self.in_order = False
        self.shared = False
        self.compact = False
        self.roomy = True
        self.ahead = 2
        self.allocated = 0
        self.kernels: dict[Any, FakeKernel] = {}

    def buffer(self, size: int, label: str) -> FakeBuffer:
        assert size <= self.limits.buffer, label
        self.allocated += size
        return FakeBuffer(size)

    def free(self, buffer: FakeBuffer) -> None:
        self.allocated -= buffer.size

    def write(self, buffer: FakeBuffer, offset: int, data: bytes | memoryview) -> None:
        assert offset + len(data) <= buffer.size

    async def flush(self, most: int) -> None:
        pass

    def read_later(self, buffer: FakeBuffer, offset: int, size: int) -> FakeReading:
        return FakeReading(size)

    async def read(self, buffer: FakeBuffer, offset: int = 0, size: int | None = None) -> bytes:
        return bytes(buffer.size - offset if size is None else size)

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> FakeKernel:
        key = (name, tuple(sorted((constants or {}).items())))
        if key not in self.kernels:
            code = load_shader(name, {"SUBGROUPS": self.subgroup_size > 1, **(constants or {})})
            declared = declarations(code)
            assert sum(d.access != "uniform" for d in declared) <= self.limits.storage_buffers, name
            self.kernels[key] = FakeKernel(name, {d.name: d.index for d in declared}, uniform(name, code))
        return self.kernels[key]

    def lanes(self, name: str) -> int:
        return self.subgroup_size

    def program(self, commands: Sequence[Command], label: str) -> FakeProgram:
        return FakeProgram()

    async def confirm(self) -> None:
        pass

    async def pace(self) -> None:
        pass

    async def wait(self) -> None:
        pass
