"""What a GPU is to the rest of wgemma. Two homes implement it: `native` (wgpu) and the web page's.

A device makes buffers and kernels, and replays tapes. What waits is a coroutine: reading back, being opened again, and
`confirm`, because a page learns late whether there was room for a buffer. WebGPU's default limits are the floor every
device reaches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from wgemma.gpu.shaders import Uniform

if TYPE_CHECKING:
    from wgemma.gpu.tape import Command


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits wgemma looks at, in WebGPU's units."""

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
    """Who computes: for people, and as the key under which verdicts about kernels are remembered."""

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
    """A part of a buffer, for a binding: its offset is a multiple of the device's alignment."""

    buffer: Buffer
    offset: int
    size: int


Binding: TypeAlias = Buffer | Span


class Kernel(Protocol):
    """A compiled shader: the names of its bindings and of its uniform's fields tell what each wants."""

    @property
    def name(self) -> str: ...
    @property
    def bindings(self) -> Mapping[str, int]: ...
    @property
    def uniform(self) -> Uniform: ...


class Program(Protocol):
    """A tape, made ready for replay."""

    def replay(self) -> None: ...


class Reading(Protocol):
    """Bytes on their way from the GPU."""

    async def bytes(self) -> bytes: ...


class Device(Protocol):
    info: AdapterInfo
    limits: Limits
    features: frozenset[str]
    subgroup_size: int  # threads that a subgroup has at least; 1 where there are none
    in_order: bool  # a workgroup may wait for what an earlier one makes, which is sure to be at work, or done
    compact: bool  # a software adapter: workgroup memory is no faster there than any other, and takes time to compile
    roomy: bool  # likely to have memory for more than a model must have there
    ahead: int  # quick steps to have in flight, at least two, so that the GPU need not wait for the host

    def buffer(self, size: int, label: str) -> Buffer:
        """A zeroed storage buffer; `OutOfMemory` when the GPU has no room for it, now or at `confirm`."""
        ...

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer's memory back at once."""
        ...

    async def confirm(self) -> None:
        """Returns when all buffers and kernels made so far are known to be good, and raises what is wrong with them.
        Natively a buffer is known at once."""
        ...

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Puts bytes, or a piece of a source of this home, into a buffer, in order with everything submitted before
        and after. Offset and size may be any; whole words are the fast ones."""
        ...

    async def flush(self, most: int) -> None:
        """Returns when no more than `most` of the bytes written so far are still on their way to the GPU."""
        ...

    def read_later(self, buffer: Buffer, offset: int, size: int) -> "Reading":
        """Asks now for bytes, any of them, as they are after everything submitted so far, to be waited for later."""
        ...

    async def read(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes out of a buffer, after everything submitted so far."""
        ...

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> Kernel:
        """The kernel of `kernels/NAME.wgsl` with its holes filled; made once, then shared."""
        ...

    def lanes(self, name: str) -> int:
        """Threads of a subgroup, at least, that speak to each other in this kernel; 1 where they are not to."""
        ...

    def plain(self, name: str) -> bool:
        """Whether this kernel must be built without whatever makes it fast, because that computes wrong here."""
        ...

    def distrust(self, names: Iterable[str]) -> None:
        """From now on these kernels are plain."""
        ...

    def program(self, commands: "Sequence[Command]", label: str) -> Program:
        """The commands as one thing that replays fast."""
        ...

    async def pace(self) -> None:
        """Returns when little of what was submitted is left to do, so that a cancelled prompt is soon over. Natively a
        prompt cannot be cancelled, and there is nothing to do."""
        ...

    async def wait(self) -> None:
        """Returns when the GPU has nothing left to do."""
        ...

    async def reopen(self) -> "Device":
        """The same adapter again, after it was lost."""
        ...

    def close(self) -> None: ...
