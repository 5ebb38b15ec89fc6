"""The GPU interface the rest of wgemma uses, implemented by `native` (wgpu) and `browser` (a web page).

A device creates buffers and kernels, and replays tapes. Whatever blocks is a coroutine: reading back, reopening, and
`confirm`, because a page learns late whether a buffer fitted into memory. Every device has at least WebGPU's default
limits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from wgemma.gpu.shaders import Uniform


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits wgemma uses, in WebGPU's units."""

    binding: int = 128 << 20  # bytes one binding may span
    buffer: int = 256 << 20  # bytes of one buffer
    storage_buffers: int = 8  # storage bindings per stage
    workgroup_memory: int = 16 << 10
    invocations: int = 256  # threads per workgroup
    workgroups: int = 65_535  # per dimension
    offset_alignment: int = 256  # of a binding inside its buffer


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """Identifies the adapter, for people and as the key for self-test verdicts."""

    name: str
    backend: str
    kind: str  # DiscreteGPU, IntegratedGPU, CPU, …
    driver: str


class Buffer(Protocol):
    """Bytes on the GPU."""

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a buffer, to be bound; its offset must be a multiple of the device's alignment."""

    buffer: Buffer
    offset: int
    size: int


Binding: TypeAlias = Buffer | Span


class Kernel(Protocol):
    """A compiled shader. Its bindings and uniform fields are identified by name."""

    @property
    def name(self) -> str: ...
    @property
    def bindings(self) -> Mapping[str, int]: ...
    @property
    def uniform(self) -> Uniform: ...


@dataclass(frozen=True, slots=True)
class Dispatch:
    kernel: Kernel
    bindings: Mapping[str, Binding]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """`size` bytes from one buffer to another (never the same one: WebGPU forbids it)."""

    source: Buffer
    source_offset: int
    target: Buffer
    target_offset: int
    size: int


Command: TypeAlias = Dispatch | Copy


class Program(Protocol):
    """A tape that is ready to replay."""

    def replay(self) -> None: ...


class Reading(Protocol):
    """Bytes on their way from the GPU."""

    async def bytes(self) -> bytes: ...


class Device(Protocol):
    info: AdapterInfo
    limits: Limits
    features: frozenset[str]
    subgroup_size: int  # the fewest threads a subgroup may have; 1 without subgroups
    in_order: bool  # a workgroup may wait for an earlier one, which is certain to be running or done
    compact: bool  # a software adapter: workgroup memory is no faster than other memory, and slow to compile
    shared: bool  # others use the GPU, too, such as a page that draws: long work lets them in between
    roomy: bool  # likely to have more memory than a model strictly needs
    allocated: int  # bytes in all live buffers
    ahead: int  # short steps to keep in flight, at least two, so that the GPU never waits for the host

    def buffer(self, size: int, label: str) -> Buffer:
        """Allocates a zeroed storage buffer; raises `OutOfMemory`, now or in `confirm`, if it does not fit."""
        ...

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer's memory immediately."""
        ...

    async def confirm(self) -> None:
        """Waits until all buffers and kernels created so far are known to be good; raises an error if one is not.
        The native device knows about buffers immediately."""
        ...

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Writes bytes, or a piece of one of the platform's sources, in order with all submissions before and after.
        Offset and size are arbitrary; whole words are fastest."""
        ...

    async def flush(self, most: int) -> None:
        """Waits until at most `most` of the bytes written so far are still in flight."""
        ...

    def read_later(self, buffer: Buffer, offset: int, size: int) -> "Reading":
        """Requests bytes (any range) as they are after everything submitted so far; await them later."""
        ...

    async def read(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> bytes:
        """Reads bytes as they are after everything submitted so far."""
        ...

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> Kernel:
        """The kernel in `kernels/NAME.wgsl` with its holes filled; compiled once, then shared."""
        ...

    def lanes(self, name: str) -> int:
        """The fewest threads that exchange values in a subgroup of this kernel; 1 if it must not use subgroups."""
        ...

    def plain(self, name: str) -> bool:
        """Whether this kernel must be built without optimisations, because they give wrong results on this device."""
        ...

    def distrust(self, names: Iterable[str]) -> None:
        """Makes these kernels plain from now on."""
        ...

    def program(self, commands: Sequence[Command], label: str) -> Program:
        """Compiles the commands into a program that replays fast."""
        ...

    async def pace(self) -> None:
        """Waits until everything submitted before the previous `pace` is done: the GPU always has one piece of work
        left while the host prepares the next, and no more, so that cancelling takes effect soon."""
        ...

    async def wait(self) -> None:
        """Waits until the GPU is idle."""
        ...

    async def reopen(self) -> "Device":
        """Opens the same adapter again after it was lost."""
        ...

    def close(self) -> None: ...
