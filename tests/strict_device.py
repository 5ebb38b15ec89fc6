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
from wgemma.gpu.device import Copy, Dispatch, Limits, Span
from wgemma.gpu.native import NativeBuffer, NativeDevice

UNIFORM_BINDING = 64 << 10  # bytes, by WebGPU's default limits
USAGE = wgpu.BufferUsage


class Refused(AssertionError):
    """What WebGPU would not have taken."""


def check_write(buffer: Any, offset: int, data: Any) -> None:
    """GPUQueue.writeBuffer"""
    size = memoryview(data).nbytes
    if offset % 4 or size % 4:
        raise Refused(f"writeBuffer: the offset {offset} or the number of bytes {size} is not a multiple of 4")
    if offset + size > buffer.size:
        raise Refused(f"writeBuffer: {offset} + {size} bytes are more than {buffer.size}")
    if not buffer.usage & USAGE.COPY_DST:
        raise Refused("writeBuffer: the buffer lacks COPY_DST")


def check_copy(source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
    """GPUCommandEncoder.copyBufferToBuffer"""
    if source_offset % 4 or target_offset % 4 or size % 4:
        raise Refused(f"copyBufferToBuffer: {source_offset}, {target_offset} or {size} is not a multiple of 4")
    if source is target:
        raise Refused("copyBufferToBuffer: source and target are one buffer")
    if source_offset + size > source.size or target_offset + size > target.size:
        raise Refused(f"copyBufferToBuffer: {size} bytes at {source_offset} or {target_offset} are past the end")
    if not source.usage & USAGE.COPY_SRC or not target.usage & USAGE.COPY_DST:
        raise Refused("copyBufferToBuffer: the source lacks COPY_SRC, or the target COPY_DST")


def check_map(buffer: Any, size: int) -> None:
    """GPUBuffer.mapAsync, from the start"""
    if size % 4 or size > buffer.size:
        raise Refused(f"mapAsync: {size} bytes are no multiple of 4, or more than {buffer.size}")
    if not buffer.usage & USAGE.MAP_READ:
        raise Refused("mapAsync: the buffer lacks MAP_READ")


def check_dispatch(dispatch: Dispatch, limits: Limits) -> None:
    """GPUDevice.createBindGroup and GPUComputePassEncoder.dispatchWorkgroups"""
    kernel: Any = dispatch.kernel
    if max(dispatch.grid) > limits.workgroups:
        raise Refused(f"{kernel.name}: the grid {dispatch.grid} is too large")
    if sum(binding.access != "uniform" for binding in kernel.declared) > limits.storage_buffers:
        raise Refused(f"{kernel.name}: more than {limits.storage_buffers} storage buffers in one stage")
    written: dict[int, list[tuple[Span, bool]]] = {}  # by buffer: what is bound of it, and whether it may be written
    for binding in kernel.declared:
        bound = dispatch.bindings[binding.name]
        span = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
        check_binding(span, binding.access == "uniform", limits, kernel.name, binding.name)
        writes = binding.access == "read_write"
        for other, others in written.get(id(span.buffer), ()):
            apart = span.offset >= other.offset + other.size or other.offset >= span.offset + span.size
            if (writes or others) and not apart:
                raise Refused(f"{kernel.name}.{binding.name}: another binding shares what one of them writes")
        written.setdefault(id(span.buffer), []).append((span, writes))


def check_binding(span: Span, uniform: bool, limits: Limits, *name: str) -> None:
    buffer = span.buffer
    assert isinstance(buffer, NativeBuffer)
    what = ".".join(name)
    if span.size <= 0 or span.offset + span.size > buffer.handle.size:
        raise Refused(f"{what}: the binding is empty or ends past its buffer")
    if span.offset % limits.offset_alignment or (not uniform and span.size % 4):
        raise Refused(f"{what}: the offset {span.offset} is not aligned, or the size {span.size} not a multiple of 4")
    most = UNIFORM_BINDING if uniform else limits.binding
    if span.size > most:
        raise Refused(f"{what}: {span.size} bytes are more than the {most} of a binding")
    if not buffer.handle.usage & (USAGE.UNIFORM if uniform else USAGE.STORAGE):
        raise Refused(f"{what}: the buffer lacks its usage")


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
