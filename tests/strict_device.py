"""WebGPU's own rules for native devices: wgpu-native takes some things that a browser refuses.

`enforced` looks at what goes to wgpu, below everything that `wgemma.gpu` does about it: sizes and offsets in words,
what a binding may span, which flags a buffer needs, what the device was granted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import wgpu

from wgemma.gpu import native, raw
from wgemma.gpu.device import Limits, Span
from wgemma.gpu.native import NativeBuffer, NativeDevice
from wgemma.gpu.tape import Copy, Dispatch

UNIFORM_BINDING = 64 << 10  # bytes, by WebGPU's default limits
USAGE = wgpu.BufferUsage


class Refused(AssertionError):
    """What WebGPU would not have taken."""


def demand(holds: Any, rule: str) -> None:
    if not holds:
        raise Refused(rule)


def check_write(buffer: Any, offset: int, data: Any) -> None:
    """GPUQueue.writeBuffer"""
    size = memoryview(data).nbytes
    demand(offset % 4 == 0, f"writeBuffer: the offset {offset} is not a multiple of 4")
    demand(size % 4 == 0, f"writeBuffer: the number of bytes {size} is not a multiple of 4")
    demand(offset + size <= buffer.size, f"writeBuffer: {offset} + {size} bytes are more than {buffer.size}")
    demand(buffer.usage & USAGE.COPY_DST, "writeBuffer: the buffer lacks COPY_DST")


def check_copy(source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
    """GPUCommandEncoder.copyBufferToBuffer"""
    for name, number in (("source offset", source_offset), ("target offset", target_offset), ("size", size)):
        demand(number % 4 == 0, f"copyBufferToBuffer: the {name} {number} is not a multiple of 4")
    demand(source is not target, "copyBufferToBuffer: source and target are one buffer")
    demand(source_offset + size <= source.size, f"copyBufferToBuffer: {source_offset} + {size} is past the source")
    demand(target_offset + size <= target.size, f"copyBufferToBuffer: {target_offset} + {size} is past the target")
    demand(source.usage & USAGE.COPY_SRC, "copyBufferToBuffer: the source lacks COPY_SRC")
    demand(target.usage & USAGE.COPY_DST, "copyBufferToBuffer: the target lacks COPY_DST")


def check_map(buffer: Any, size: int) -> None:
    """GPUBuffer.mapAsync, from the start"""
    demand(size % 4 == 0, f"mapAsync: the size {size} is not a multiple of 4")
    demand(size <= buffer.size, f"mapAsync: {size} bytes are more than {buffer.size}")
    demand(buffer.usage & USAGE.MAP_READ, "mapAsync: the buffer lacks MAP_READ")


def check_dispatch(dispatch: Dispatch, limits: Limits) -> None:
    """GPUDevice.createBindGroup and GPUComputePassEncoder.dispatchWorkgroups"""
    kernel: Any = dispatch.kernel
    grid = dispatch.grid
    demand(all(size <= limits.workgroups for size in grid), f"{kernel.name}: the grid {grid} is too large")
    demand(
        sum(binding.access != "uniform" for binding in kernel.declared) <= limits.storage_buffers,
        f"{kernel.name}: more than {limits.storage_buffers} storage buffers in one stage",
    )
    spans = []
    for binding in kernel.declared:
        bound = dispatch.bindings[binding.name]
        span = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
        what = f"{kernel.name}.{binding.name}"
        check_binding(span, binding.access == "uniform", limits, what)
        spans.append((span, binding.access, what))
    check_aliases(spans)


def check_binding(span: Span, uniform: bool, limits: Limits, what: str) -> None:
    buffer = span.buffer
    assert isinstance(buffer, NativeBuffer)
    demand(span.size > 0, f"{what}: the binding is empty")
    demand(span.offset % limits.offset_alignment == 0, f"{what}: the offset {span.offset} is not aligned")
    demand(span.offset + span.size <= buffer.handle.size, f"{what}: the binding ends past its buffer")
    demand(uniform or span.size % 4 == 0, f"{what}: the size {span.size} is not a multiple of 4")
    most = UNIFORM_BINDING if uniform else limits.binding
    demand(span.size <= most, f"{what}: {span.size} bytes are more than the {most} of a binding")
    demand(buffer.handle.usage & (USAGE.UNIFORM if uniform else USAGE.STORAGE), f"{what}: the buffer lacks its usage")


def check_aliases(spans: list[tuple[Span, str, str]]) -> None:
    """No part of a buffer is written by a dispatch that has it bound elsewhere, too."""
    for i, (one, access, what) in enumerate(spans):
        for other, others, where in spans[:i]:
            apart = one.offset >= other.offset + other.size or other.offset >= one.offset + one.size
            read = "read_write" not in (access, others)
            demand(one.buffer is not other.buffer or apart or read, f"{what} and {where} share what one of them writes")


@contextmanager
def enforced() -> Iterator[None]:
    """Every native device is strict meanwhile."""
    write, ready = NativeDevice._write_words, NativeDevice._ready
    granted = WeakKeyDictionary[NativeDevice, Limits]()  # whatever a test makes of a device's `limits`
    copy, ask, polled = raw.RawCommands.copy_buffer_to_buffer, raw.Reading._ask, raw.PolledReading._ask

    def strict_write(self: NativeDevice, buffer: NativeBuffer, offset: int, data: memoryview) -> None:
        check_write(buffer.handle, offset, data)
        write(self, buffer, offset, data)

    def strict_ready(self: NativeDevice, command: Any) -> Any:
        if isinstance(command, Copy):
            source: Any = command.source
            target: Any = command.target
            check_copy(source.handle, command.source_offset, target.handle, command.target_offset, command.size)
        else:
            if self not in granted:
                granted[self] = native._granted(self._device)
            check_dispatch(command, granted[self])
        return ready(self, command)

    def strict_copy(self: raw.RawCommands, *given: Any) -> None:
        check_copy(*given)
        copy(self, *given)

    def strict_ask(self: raw.Reading) -> None:
        check_map(self._staging, self._size)
        (polled if isinstance(self, raw.PolledReading) else ask)(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeDevice, "_write_words", strict_write)
        patch.setattr(NativeDevice, "_ready", strict_ready)
        patch.setattr(raw.RawCommands, "copy_buffer_to_buffer", strict_copy)
        patch.setattr(raw.Reading, "_ask", strict_ask)
        patch.setattr(raw.PolledReading, "_ask", strict_ask)
        yield
