"""The dispatches that compute one step, recorded once and replayed for every token.

A tape knows nothing of models: it holds (kernel, buffers, grid) in order, and copies between buffers. The device turns
it into whatever replays fastest — raw C calls natively, one JavaScript function in the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from wgemma.gpu.device import Binding, Buffer, Device, Kernel, Program, Span
from wgemma.gpu.shaders import Values

PARAMS = "params"  # every kernel's uniform binding has this name
_SPLICED = 8 << 20  # bytes that one dispatch of splice.wgsl copies: the grid and the binding stay small
_SLOT = 256  # bytes of the arena one dispatch's parameters take: the alignment of a uniform binding


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


class Tape:
    """Records commands; `program()` hands them to the device."""

    def __init__(self, device: Device, label: str) -> None:
        self.device = device
        self.label = label
        self.commands: list[Command] = []
        self._params: list[bytes] = []
        self._arena: Buffer | None = None

    @property
    def dispatches(self) -> int:
        return sum(isinstance(command, Dispatch) for command in self.commands)

    def run(
        self,
        kernel: str,
        grid: Sequence[int],
        bindings: Mapping[str, Binding],
        params: Values | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Records one dispatch. `params` are the fields of the kernel's uniform by name (`Uniform.pack`)."""
        made = self.device.kernel(kernel, constants)
        wanted: dict[str, Binding] = {name: bindings[name] for name in made.bindings if name != PARAMS}
        packed = made.uniform.pack(params or {})
        x, y, z = (*grid, 1, 1)[:3]
        limit = self.device.limits.workgroups
        if not all(1 <= size <= limit for size in (x, y, z)):
            raise ValueError(f"{kernel}: the grid {x}×{y}×{z} is outside 1…{limit}")
        if PARAMS in made.bindings:
            wanted[PARAMS] = _Pending(len(self._params))
            self._params.append(packed)
        self.commands.append(Dispatch(made, wanted, (x, y, z)))

    def copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int) -> None:
        """Records a copy of any bytes; those that do not fill whole words take a kernel."""
        if any(number % 4 for number in (source_offset, target_offset, size)):
            self._splice(source, source_offset, target, target_offset, size)
        else:
            self.commands.append(Copy(source, source_offset, target, target_offset, size))

    def _splice(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int) -> None:
        for done in range(0, size, _SPLICED):
            count = min(_SPLICED, size - done)
            come, start = self._around(source, source_offset + done, count)
            go, to = self._around(target, target_offset + done, count)
            words = -(-(to % 4 + count) // 4)
            self.run(
                "splice", [-(-words // 64)], {"source": come, "words": go}, {"start": start, "to": to, "size": count}
            )

    def _around(self, buffer: Buffer, offset: int, size: int) -> tuple[Span, int]:
        """A binding with these bytes in it, and where they begin inside."""
        alignment = self.device.limits.offset_alignment
        edge = offset // alignment * alignment
        return Span(buffer, edge, -(-(offset + size) // 4) * 4 - edge), offset - edge

    def program(self) -> Program:
        """The tape ready for replay; its parameters go to the GPU now, in one piece."""
        if self._params:
            self._arena = self.device.buffer(_SLOT * len(self._params), f"{self.label} parameters")
            self.device.write(self._arena, 0, b"".join(slot.ljust(_SLOT, b"\0") for slot in self._params))
        return self.device.program(self.placed(), self.label)

    def placed(self) -> list[Command]:
        """The commands with their parameters where `program` put them."""
        return [self._placed(command) for command in self.commands]

    def _placed(self, command: Command) -> Command:
        if isinstance(command, Copy) or PARAMS not in command.bindings or self._arena is None:
            return command
        pending = command.bindings[PARAMS]
        assert isinstance(pending, _Pending)
        slot = Span(self._arena, _SLOT * pending.index, _SLOT)
        return Dispatch(command.kernel, {**command.bindings, PARAMS: slot}, command.grid)

    def free(self) -> None:
        """Gives the parameters' memory back; programs made from this tape must not be replayed any more."""
        if self._arena is not None:
            self.device.free(self._arena)
            self._arena = None


class _Pending:
    """Stands for the parameters of a dispatch until all are known and get their buffer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.size = _SLOT
