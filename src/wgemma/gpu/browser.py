"""The device of a web page: `navigator.gpu`, through replay.js, from Python in a Worker.

Python holds buffers and kernels by number. A tape becomes one JavaScript function, so a token costs two calls into
JavaScript: one to replay the tape, one to request its result. WebGPU reports some errors late; `confirm` or the next
reading raises them.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from wgemma.errors import DeviceError, DeviceLost, OutOfMemory
from wgemma.gpu.bytes import around, cut, put_end
from wgemma.gpu.device import AdapterInfo, Buffer, Command, Copy, Limits, Program, Span
from wgemma.gpu.shaders import Uniform, declarations, enabled, load_shader, uniform

Opener = Callable[[], Awaitable[Any]]  # replay.js's openGpu

ROOMY = 512 << 20  # bytes of a binding; phones and old GPUs grant less
# Steps in flight. We learn about a millisecond late that a step is done, and the next takes as long to reach the GPU:
# with fewer in flight it would idle.
STEPS_AHEAD = 4

_TYPES = {"uniform": "uniform", "read": "read-only-storage", "read_write": "storage"}


class BrowserBuffer:
    """The number of a GPUBuffer, whose reference is dropped with this object."""

    __slots__ = ("_gpu", "number", "size")

    def __init__(self, gpu: Any, number: int, size: int) -> None:
        self._gpu = gpu
        self.number = number
        self.size = size

    def __del__(self) -> None:
        self._gpu.forget(self.number)


class BrowserKernel:
    """The number of a compute pipeline, and its binding indices by name."""

    __slots__ = ("bindings", "name", "number", "uniform")

    def __init__(self, name: str, number: int, bindings: Mapping[str, int], uniform: Uniform) -> None:
        self.name = name
        self.number = number
        self.bindings = bindings
        self.uniform = uniform


class BrowserDevice:
    """The browser's best adapter, with every feature and limit it offers."""

    def __init__(self, gpu: Any, opener: Opener, driver: str) -> None:
        self._gpu = gpu
        self._opener = opener
        self.info = AdapterInfo(gpu.name, "WebGPU", gpu.kind, driver)
        self.limits = Limits(**{name: int(getattr(gpu.limits, name)) for name in Limits.__dataclass_fields__})
        self.features = frozenset(str(name) for name in gpu.features)
        self.subgroup_size = int(gpu.subgroupSize)
        self.in_order = False  # no browser guarantees it
        self.shared = True
        self.compact = gpu.kind == "CPU"
        self.roomy = not self.compact and self.limits.binding >= ROOMY
        self.ahead = STEPS_AHEAD
        self.allocated = 0
        self._distrusted: set[str] = set()
        self._kernels: dict[tuple[str, tuple[tuple[str, Any], ...]], BrowserKernel] = {}
        self._unconfirmed = False

    @classmethod
    async def open(cls, opener: Opener, driver: str) -> "BrowserDevice":
        """Opens the device; `driver` identifies the browser."""
        try:
            return cls(await opener(), opener, driver)
        except Exception as trouble:
            raise _raised(trouble, "the GPU") from None

    @property
    def pipelines(self) -> int:
        """The number of distinct pipelines created so far."""
        return len(self._kernels)

    # -- buffers

    def buffer(self, size: int, label: str) -> BrowserBuffer:
        size = -(-max(size, 4) // 4) * 4
        if size > self.limits.buffer:
            raise OutOfMemory(f"{label} needs {size} bytes; buffers here hold at most {self.limits.buffer}.")
        number = self._call(self._gpu.buffer, size, label)
        self._unconfirmed = True
        self.allocated += size
        return BrowserBuffer(self._gpu, number, size)

    def free(self, buffer: Buffer) -> None:
        assert isinstance(buffer, BrowserBuffer)
        self.allocated -= buffer.size
        self._gpu.free(buffer.number)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        assert isinstance(buffer, BrowserBuffer)
        ours = isinstance(data, bytes | bytearray | memoryview)  # otherwise a JavaScript array
        if ours:
            data = memoryview(data).cast("B")
        whole, ends = cut(offset, len(data))
        if whole:
            self._call(self._gpu.write, buffer.number, offset + whole.start, data, whole.start, len(whole))
        for end in ends:
            few = bytes(data[end.start : end.stop]) if ours else data.slice(end.start, end.stop).to_bytes()
            put_end(self, buffer, offset + end.start, few)

    async def flush(self, most: int) -> None:
        await self.answer(self._gpu.flush(most))

    def read_later(self, buffer: Buffer, offset: int, size: int) -> "_BrowserReading":
        assert isinstance(buffer, BrowserBuffer)
        start, room = around(offset, size)
        promise = self._call(self._gpu.read, buffer.number, start, room)
        return _BrowserReading(self, promise, range(offset - start, offset - start + size))

    async def read(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> bytes:
        return await self.read_later(buffer, offset, buffer.size - offset if size is None else size).bytes()

    async def pace(self) -> None:
        await self.answer(self._gpu.pace())

    async def wait(self) -> None:
        await self.answer(self._gpu.wait())

    async def confirm(self) -> None:
        if self._unconfirmed:
            self._unconfirmed = False
            await self.answer(self._gpu.confirm())

    def _call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except Exception as trouble:
            raise _raised(trouble, self.info.name) from None

    async def answer(self, promise: Awaitable[Any]) -> Any:
        """Awaits a promise; raises our error if it is rejected."""
        try:
            return await promise
        except Exception as trouble:
            raise _raised(trouble, self.info.name) from None

    # -- kernels

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> BrowserKernel:
        key = (name, tuple(sorted((constants or {}).items())))
        made = self._kernels.get(key)
        if made is None:
            given = {"SUBGROUPS": "subgroups" in self.features and name not in self._distrusted, **(constants or {})}
            made = self._kernels[key] = self._compile(name, load_shader(name, given))
        return made

    def lanes(self, name: str) -> int:
        return 1 if name in self._distrusted else self.subgroup_size

    def plain(self, name: str) -> bool:
        return name in self._distrusted

    def distrust(self, names: Iterable[str]) -> None:
        fresh = set(names) - self._distrusted
        self._distrusted |= fresh
        self._kernels = {key: made for key, made in self._kernels.items() if key[0] not in fresh}

    def _compile(self, name: str, code: str) -> BrowserKernel:
        declared = declarations(code)
        indices, types = [d.index for d in declared], [_TYPES[d.access] for d in declared]
        number = self._call(self._gpu.kernel, name, enabled(code) + code, indices, types)
        self._unconfirmed = True
        return BrowserKernel(name, number, {d.name: d.index for d in declared}, uniform(name, code))

    # -- programs

    def program(self, commands: Sequence[Command], label: str) -> Program:
        spec = array("d")
        for command in commands:
            spec.extend(_copy(command) if isinstance(command, Copy) else _dispatch(command))
        return _BrowserProgram(self, self._call(self._gpu.program, spec))

    # -- life

    async def reopen(self) -> "BrowserDevice":
        try:
            device = await BrowserDevice.open(self._opener, self.info.driver)
        except DeviceError as trouble:
            told = f"{self.info.name} was lost and could not be reopened: {trouble} Load the model again."
            raise DeviceLost(told) from None
        device.distrust(self._distrusted)
        device.roomy = self.roomy  # the caller may have changed it
        return device

    def close(self) -> None:
        self._kernels.clear()
        self._gpu.close()


def _dispatch(command: Any) -> list[float]:
    kernel = command.kernel
    assert isinstance(kernel, BrowserKernel)
    words = [kernel.number, *command.grid, len(command.bindings)]
    for name, bound in command.bindings.items():
        span = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
        assert isinstance(span.buffer, BrowserBuffer)
        words += (kernel.bindings[name], span.buffer.number, span.offset, span.size)
    return words


def _copy(copy: Copy) -> list[float]:
    source, target = copy.source, copy.target
    assert isinstance(source, BrowserBuffer) and isinstance(target, BrowserBuffer)
    return [-1, source.number, copy.source_offset, target.number, copy.target_offset, copy.size]


def _raised(trouble: Exception, adapter: str) -> Exception:
    """Maps replay.js's `Trouble` to our error; anything else is a bug of ours and is returned unchanged."""
    kind = getattr(getattr(trouble, "js_error", trouble), "kind", None)
    text = getattr(getattr(trouble, "js_error", trouble), "message", str(trouble))
    match kind:
        case "lost":
            return DeviceLost(f"{adapter} was lost: {text}")
        case "out-of-memory":
            return OutOfMemory(f"the GPU has no room for {text or 'what the model needs'}.")
        case "validation":
            return DeviceError(f"{adapter} refused a command: {text}")
        case "missing":
            return DeviceError(f"{text}.")
    return trouble


class _BrowserReading:
    """A promise of bytes."""

    def __init__(self, device: BrowserDevice, promise: Any, wanted: range) -> None:
        self._device = device
        self._promise = promise
        self._wanted = wanted  # within the whole words promised

    async def bytes(self) -> bytes:
        data: bytes = (await self._device.answer(self._promise)).to_bytes()
        return data if len(data) == len(self._wanted) else data[self._wanted.start : self._wanted.stop]


class _BrowserProgram:
    """A JavaScript function that records and submits all commands."""

    def __init__(self, device: BrowserDevice, replayer: Any) -> None:
        self._device = device
        self._replayer = replayer

    def replay(self) -> None:
        self._device._call(self._replayer)
