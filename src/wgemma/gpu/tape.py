"""The dispatches of one step, recorded once and replayed for every token.

A tape knows nothing of models: it is a list of (kernel, buffers, grid) and of copies between buffers. The device turns
it into whatever replays fastest: raw C calls natively, one JavaScript function in a web page.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wgemma.gpu.device import Binding, Buffer, Command, Copy, Device, Dispatch, Program, Span
from wgemma.gpu.shaders import Values

PARAMS = "params"  # every kernel's uniform binding has this name
_SPLICED = 8 << 20  # bytes per dispatch of splice.wgsl, to keep grid and binding small
_SLOT = 256  # bytes of the arena per dispatch's parameters: the alignment of a uniform binding


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
        """Records one dispatch. `params` are the kernel's uniform fields by name (`Uniform.pack`)."""
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

    def change(self, index: int, params: Values) -> None:
        """Changes the parameters of dispatch `index`, counting those that have parameters, from the next replay on."""
        dispatch = [command for command in self.commands if isinstance(command, Dispatch)]
        kernel = [d.kernel for d in dispatch if PARAMS in d.bindings][index]
        assert self._arena is not None
        self.device.write(self._arena, _SLOT * index, kernel.uniform.pack(params))

    def copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int) -> None:
        """Records a copy of any byte range; one that is not whole, aligned words takes a kernel."""
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
        """An aligned binding that contains these bytes, and their offset in it."""
        alignment = self.device.limits.offset_alignment
        edge = offset // alignment * alignment
        return Span(buffer, edge, -(-(offset + size) // 4) * 4 - edge), offset - edge

    def program(self) -> Program:
        """Makes the tape ready to replay; uploads all its parameters in one piece."""
        if self._params:
            self._arena = self.device.buffer(_SLOT * len(self._params), f"{self.label} parameters")
            self.device.write(self._arena, 0, b"".join(slot.ljust(_SLOT, b"\0") for slot in self._params))
        return self.device.program(self.placed(), self.label)

    def placed(self) -> list[Command]:
        """The commands, bound to the parameters `program` uploaded."""
        return [self._placed(command) for command in self.commands]

    def _placed(self, command: Command) -> Command:
        if isinstance(command, Copy) or PARAMS not in command.bindings or self._arena is None:
            return command
        pending = command.bindings[PARAMS]
        assert isinstance(pending, _Pending)
        slot = Span(self._arena, _SLOT * pending.index, _SLOT)
        return Dispatch(command.kernel, {**command.bindings, PARAMS: slot}, command.grid)

    def free(self) -> None:
        """Frees the parameters; programs made from this tape must not be replayed afterwards."""
        if self._arena is not None:
            self.device.free(self._arena)
            self._arena = None


class _Pending:
    """Placeholder for a dispatch's parameters until all are known and get their buffer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.size = _SLOT
