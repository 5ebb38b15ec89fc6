"""The native device's direct calls of wgpu-native's C functions: recording, reading back, compiling without checks.

Recording is a tight loop over them, three times as fast as wgpu's Python methods. Reading back uses them because wgpu
waits in a thread that notices only the end of the last submission, and blocks submissions meanwhile. They are private
to wgpu; if they are missing, its slower public methods take over, and if their structs have changed, importing fails.
"""

import time
from collections.abc import Sequence
from itertools import count, groupby
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

import wgpu

from wgemma.gpu.bytes import around
from wgemma.gpu.c_types import check_structs, look_up_types
from wgemma.gpu.device import Copy

try:
    from wgpu.backends.wgpu_native import GPUShaderModule, ffi, lib
    from wgpu.backends.wgpu_native._api import from_c_string_view, libf
except ImportError:  # another wgpu backend: use the public methods
    GPUShaderModule = ffi = lib = libf = None
else:
    look_up_types(ffi)
    check_structs(ffi, wgpu.__version__)

SMALL_READ = 1 << 16  # readings up to this size share buffers
_LONGEST_PAUSE = 0.001  # seconds between polls for a result


class Owner(Protocol):
    """What this module needs of the native device."""

    features: frozenset[str]
    _device: Any
    _staging: list[Any]

    def check(self) -> None: ...
    def trouble(self, what: str, trouble: Exception) -> Exception: ...
    def _submit(self, encoder: Any) -> None: ...


def trusted_module(device: Any, name: str, code: str) -> Any | None:
    """Compiles a shader without naga's run-time checks, if wgpu offers that: our shaders are tested with the checks on
    and run up to twice as fast without them."""
    if not hasattr(lib, "wgpuDeviceCreateShaderModuleTrusted"):
        return None
    text = code.encode()
    data = ffi.new("char[]", text)
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = data, len(text)
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    return GPUShaderModule(name, lib.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0), device)


def nanoseconds_of_a_tick(device: Any) -> float:
    """The timestamp period."""
    if not hasattr(lib, "wgpuQueueGetTimestampPeriod"):
        return 1.0
    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def stamp(compute: Any, queries: Any, index: int) -> None:
    """Writes a timestamp once everything recorded before is done."""
    lib.wgpuComputePassEncoderWriteTimestamp(compute._internal, queries._internal, index)


def record_copy(commands: Any, copy: Copy) -> None:
    source, target = cast(Any, copy.source).handle, cast(Any, copy.target).handle
    commands.copy_buffer_to_buffer(source, copy.source_offset, target, copy.target_offset, copy.size)


# -- reading back


class Reading:
    """A copy in flight to a mappable staging buffer, which returns to the pool once read."""

    def __init__(self, device: Owner, staging: Any, wanted: range) -> None:
        self._device = device
        self._staging = staging
        self._wanted = wanted  # bytes within the whole words mapped
        self._size = around(wanted.start, len(wanted))[1]
        self._ask()

    def _ask(self) -> None:
        self._promise = self._staging.map_async(wgpu.MapMode.READ, 0, self._size)

    def _wait(self) -> None:
        """Waits for the copy, checking that the device is still there: a lost one never answers."""
        arrived = getattr(self._promise, "_thread_event", None)
        while arrived is not None and not arrived.is_set():
            self._device.check()
            arrived.wait(0.25)
        self._promise.sync_wait()

    def _take(self) -> bytes:
        data = bytes(self._staging.read_mapped(0, self._size))
        self._staging.unmap()
        return data

    async def bytes(self) -> bytes:
        try:
            self._wait()
            data = self._take()
        except wgpu.GPUError as trouble:
            raise self._device.trouble("reading a result from the GPU failed", trouble) from trouble
        if self._staging.size == SMALL_READ:
            self._device._staging.append(self._staging)
        return data if len(data) == len(self._wanted) else data[self._wanted.start : self._wanted.stop]


class PolledReading(Reading):
    """A reading that polls the GPU itself, so its bytes arrive before later submissions are done."""

    def _ask(self) -> None:
        self.answer: str | BaseException | None = None  # "" once the bytes are there, otherwise the error
        number = next(_numbers)
        _asked[number] = self
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = _map_answered
        info.userdata1 = ffi.cast("void *", number)
        try:
            libf.wgpuBufferMapAsync(self._staging._internal, lib.WGPUMapMode_Read, 0, self._size, info[0])
        except wgpu.GPUError as trouble:
            raise self._device.trouble("reading from the GPU failed", trouble) from trouble

    def _wait(self) -> None:
        """Polls for the answer, pausing in proportion to the time waited: no call blocks for long, so Ctrl-C works, and
        a software GPU can use this core, too."""
        begun = time.perf_counter()
        while self.answer is None:
            self._device.check()
            self._device._device._poll()
            if self.answer is None:
                time.sleep(min((time.perf_counter() - begun) / 8, _LONGEST_PAUSE))
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer:
            raise wgpu.GPUError(self.answer)

    def _take(self) -> bytes:
        data = libf.wgpuBufferGetConstMappedRange(self._staging._internal, 0, self._size)
        taken = bytes(ffi.buffer(data, self._size))
        libf.wgpuBufferUnmap(self._staging._internal)
        return taken


# Readings by the number passed to the callback. The answer to a reading that was dropped is ignored.
_asked: WeakValueDictionary[int, PolledReading] = WeakValueDictionary()
_numbers = count(1)


def _answer(status: int, message: Any, number: Any, _: Any) -> None:
    reading = _asked.get(int(ffi.cast("uintptr_t", number)))
    if reading is not None:
        good = status == lib.WGPUMapAsyncStatus_Success
        reading.answer = "" if good else from_c_string_view(message) or f"mapping ended with status {status}"


def _interrupted(_: Any, error: BaseException, trace: Any) -> None:
    """Ctrl-C hit `_answer`, a C callback, which cannot raise it; the waiting reading will."""
    reading = _asked.get(int(ffi.cast("uintptr_t", trace.tb_frame.f_locals["number"])))
    if reading is not None:
        reading.answer = error


_map_answered = ffi.callback("WGPUBufferMapCallback", _answer, onerror=_interrupted) if ffi is not None else None


def reading(device: Owner, staging: Any, wanted: range) -> Reading:
    """A reading of the wanted bytes of a copy into `staging`."""
    return Reading(device, staging, wanted) if _map_answered is None else PolledReading(device, staging, wanted)


# -- recording


class NativeProgram:
    """Bind groups and pipelines in order; each replay records a new command buffer, as WebGPU requires."""

    def __init__(self, device: Owner, steps: list[Any]) -> None:
        self._device = device
        # The dispatches between two copies form one compute pass.
        self._parts = [(copies, list(part)) for copies, part in groupby(steps, lambda step: isinstance(step, Copy))]
        raw = lib is not None and all(hasattr(step[0], "_internal") for step in steps if not isinstance(step, Copy))
        self._raw = [(copies, part if copies else _internals(part)) for copies, part in self._parts] if raw else None

    def replay(self) -> None:
        self._device.check()
        try:
            commands = (Commands if self._raw is None else RawCommands)(self._device)
            for copies, part in self._raw or self._parts:
                if copies:
                    for copy in part:
                        record_copy(commands, copy)
                else:
                    commands.dispatch(part)
        except wgpu.GPUError as trouble:
            raise self._device.trouble("the GPU refused a command", trouble) from trouble
        commands.submit()


def _internals(dispatches: Sequence[Any]) -> list[Any]:
    return [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in dispatches]


class Commands:
    """One submission, recorded through wgpu's public methods."""

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._encoder = device._device.create_command_encoder()
        self.copy_buffer_to_buffer = self._encoder.copy_buffer_to_buffer

    def dispatch(self, dispatches: Sequence[Any]) -> None:
        """A compute pass of (pipeline, group, grid)."""
        compute = self._encoder.begin_compute_pass()
        for pipeline, group, grid in dispatches:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)
        compute.end()

    def submit(self) -> None:
        self._device._submit(self._encoder)


class RawCommands:
    """One submission, recorded through wgpu-native's functions; those in `libf` raise errors, those in `lib` do not."""

    def __init__(self, device: Owner) -> None:
        self._device = device
        encoder = libf.wgpuDeviceCreateCommandEncoder(device._device._internal, ffi.NULL)
        self._encoder = ffi.gc(encoder, lib.wgpuCommandEncoderRelease)

    def copy_buffer_to_buffer(
        self, source: Any, source_offset: int, target: Any, target_offset: int, size: int
    ) -> None:
        copy = libf.wgpuCommandEncoderCopyBufferToBuffer
        copy(self._encoder, source._internal, source_offset, target._internal, target_offset, size)

    def dispatch(self, dispatches: Sequence[Any]) -> None:
        """A compute pass of (pipeline, group, x, y, z), with wgpu-native's own handles."""
        null = ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        begun = libf.wgpuCommandEncoderBeginComputePass(self._encoder, null)
        compute = ffi.gc(begun, lib.wgpuComputePassEncoderRelease)
        for pipeline, group, x, y, z in dispatches:
            set_pipeline(compute, pipeline)
            set_group(compute, 0, group, 0, null)
            dispatch(compute, x, y, z)
        libf.wgpuComputePassEncoderEnd(compute)

    def submit(self) -> None:
        try:
            commands = libf.wgpuCommandEncoderFinish(self._encoder, ffi.NULL)
            commands = ffi.gc(commands, lib.wgpuCommandBufferRelease)
            queue = self._device._device.queue._internal
            libf.wgpuQueueSubmit(queue, 1, ffi.new("WGPUCommandBuffer[1]", [commands]))
        except wgpu.GPUError as trouble:
            raise self._device.trouble("the GPU refused a command", trouble) from trouble


def commands_for(device: Owner) -> Commands | RawCommands:
    return Commands(device) if lib is None else RawCommands(device)
