"""The device on this machine, through wgpu: Vulkan, Metal or D3D12."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import wgpu

from wgemma import forks
from wgemma.errors import DeviceError, DeviceLost, OutOfMemory
from wgemma.gpu.bytes import around, cut, put_end
from wgemma.gpu.device import DEFAULT_LIMITS, AdapterInfo, Buffer, Command, Copy, Limits, Program, Span
from wgemma.gpu.profiling import timed
from wgemma.gpu.raw import SMALL_READ, NativeProgram, Reading, commands_for, reading, trusted_module
from wgemma.gpu.shaders import BindingDeclaration, Uniform, declarations, enabled, load_shader, uniform

# wgpu's names of our limits.
_LIMIT_NAMES = {
    "binding": "max-storage-buffer-binding-size",
    "buffer": "max-buffer-size",
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "workgroup_memory": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "workgroups": "max-compute-workgroups-per-dimension",
    "offset_alignment": "min-storage-buffer-offset-alignment",
}
_MOST_COMPILERS = 16  # kernels compiled at once
_NAGA_KNOWS = ("f16",)  # extensions a shader must enable; naga has the others always on
_NVIDIA, _AMD = 0x10DE, 0x1002
_WIDE_VENDORS = (_NVIDIA, _AMD)  # subgroups of 32 threads or more
_FEATURES = {
    "shader-f16": "shader-f16",
    "subgroup": "subgroups",
    "timestamp-query": "timestamp-query",
    "timestamp-query-inside-passes": "timestamp-query-inside-passes",
}


def adapters() -> list[Any]:
    """All adapters, fastest kind first, without OpenGL, whose compute support is far behind Vulkan's."""
    order = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU")
    _refuse_forked()
    _leave_out_opengl()
    try:
        with _quiet_wayland():
            found = wgpu.gpu.enumerate_adapters_sync()
    except Exception as trouble:
        raise DeviceError("WebGPU failed to start. Install or update your GPU's driver.") from trouble
    usable = [adapter for adapter in found if adapter.info["backend_type"] != "OpenGL"]
    return sorted(usable, key=lambda adapter: order.index(kind) if (kind := _kind(adapter)) in order else 9)


_started: int | None = None  # `forks.count` when this process, or the one it was forked off, first used WebGPU


def _refuse_forked() -> None:
    """Refuses to use WebGPU in the child of a process that did: the driver's threads are missing, so it would hang."""
    global _started
    if _started is None:
        _started = forks.count
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_abandon)
    if _started != forks.count:
        raise DeviceError(
            "WebGPU was started before this process was forked, so it cannot be used here. Load the first model after "
            'the fork, or start processes with multiprocessing.get_context("spawn").'
        )


def _abandon() -> None:
    """Leaves the parent's GPU objects alone in a forked child, where releasing them would hang."""
    wgpu.GPUObjectBase.__del__ = lambda self: None


def _leave_out_opengl() -> None:
    """Keeps wgpu from starting an OpenGL driver we do not want. This works only before wgpu first enumerates adapters,
    and uses a private interface; if it fails, the caller filters those adapters out."""
    try:
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=["Vulkan", "Metal", "DX12"], dx12_compiler="Undefined")
    except (ImportError, RuntimeError, KeyError, TypeError):
        return


@contextmanager
def _quiet_wayland() -> Iterator[None]:
    """Silences libwayland: Mesa's device-select layer asks Wayland which GPU drives the screen, and outside a desktop
    session libwayland complains on standard error. Pointing it to a missing folder makes it fail silently."""
    name = "XDG_RUNTIME_DIR"
    if not sys.platform.startswith("linux") or os.environ.get(name):
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = "/nonexistent"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _kind(adapter: Any) -> str:
    return str(adapter.info["adapter_type"])


class NativeBuffer:
    """A wgpu buffer; `size` is the requested size rounded up to whole words."""

    __slots__ = ("handle", "size")

    def __init__(self, handle: Any, size: int) -> None:
        self.handle = handle
        self.size = size


class NativeKernel:
    """A compute pipeline, its layout, and its binding indices by name."""

    __slots__ = ("_making", "bindings", "declared", "layout", "name", "uniform")

    def __init__(
        self,
        name: str,
        making: Future[Any],
        layout: Any,
        declared: Sequence[BindingDeclaration],
        uniform: Uniform,
    ) -> None:
        self.name = name
        self.uniform = uniform
        self.layout = layout
        self.declared = declared
        self.bindings = {binding.name: binding.index for binding in declared}
        self._making = making

    @property
    def pipeline(self) -> Any:
        """The pipeline; blocks until it is compiled, and raises the compile error if that failed."""
        return self._making.result()


class NativeDevice:
    """One adapter, opened with every feature and limit it offers, or with fewer for tests of the minimum."""

    def __init__(
        self,
        adapter: Any = None,
        *,
        limits: Limits | None = None,
        features: bool = True,
        trusted: bool = True,
        compact: bool | None = None,
    ) -> None:
        _refuse_forked()
        adapter = adapter or _first_adapter()
        self._adapter, self._asked = adapter, (limits, features, trusted, compact)
        info = adapter.info
        self.info = AdapterInfo(info["device"], info["backend_type"], info["adapter_type"], info["description"])
        self.compact = self.info.kind == "CPU" if compact is None else compact
        wanted = {name for name in adapter.features if name in _FEATURES} if features else set[str]()
        asked = {_LIMIT_NAMES[field]: getattr(limits, field) for field in _LIMIT_NAMES} if limits else {}
        if not limits:
            asked = {name: adapter.limits[name] for name in _LIMIT_NAMES.values()}
        try:
            self._device = adapter.request_device_sync(required_features=sorted(wanted), required_limits=asked)
        except Exception as trouble:
            raise DeviceError(f"{self.info.name} failed to open. Update its driver.") from trouble
        self.limits = limits or _granted(self._device)
        self._largest_binding = self.limits.binding
        self.features = frozenset(_FEATURES[name] for name in wanted)
        self.subgroup_size = least_subgroup(info) if "subgroups" in self.features else 1
        self.shared = False
        # Where it was tested, or nearly so; elsewhere a waiting workgroup might keep the others from starting.
        self.in_order = self.info.backend == "Vulkan" and (self.info.kind == "CPU" or info["vendor_id"] == _NVIDIA)
        self.roomy = self.info.kind == "DiscreteGPU"
        self.ahead = 2
        self._trusted = trusted
        self._distrusted: set[str] = set()
        self._lost = ""
        self._forks = forks.count
        self._staging: list[Any] = []
        self._mark = NativeBuffer(self._device.create_buffer(size=4, usage=wgpu.BufferUsage.COPY_SRC), 4)
        self._paced: Reading | None = None  # of the mark, after everything submitted before the last `pace`
        # Compiling is slow, so kernels compile in parallel; building a program blocks until its own are done.
        self._compilers = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_COMPILERS))
        self._kernels: dict[tuple[str, tuple[tuple[str, Any], ...]], NativeKernel] = {}
        self.allocated = 0

    @property
    def pipelines(self) -> int:
        """The number of distinct pipelines created so far."""
        return len(self._kernels)

    # -- buffers

    def buffer(self, size: int, label: str) -> NativeBuffer:
        size = -(-max(size, 4) // 4) * 4
        if size > self.limits.buffer:
            raise OutOfMemory(f"{label} needs {size} bytes; buffers here hold at most {self.limits.buffer}.")
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        try:
            handle = self._device.create_buffer(label=label, size=size, usage=usage | wgpu.BufferUsage.UNIFORM)
        except wgpu.GPUOutOfMemoryError:
            raise OutOfMemory(f"the GPU has no room for {label} ({size / 1e6:.0f} MB).") from None
        except wgpu.GPUError as trouble:
            raise self.trouble(f"allocating {label} failed", trouble) from trouble
        self.allocated += size
        return NativeBuffer(handle, size)

    def free(self, buffer: Buffer) -> None:
        assert isinstance(buffer, NativeBuffer)
        self.allocated -= buffer.size
        buffer.handle.destroy()

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        assert isinstance(buffer, NativeBuffer)
        data = memoryview(data).cast("B")
        whole, ends = cut(offset, len(data))
        if whole:
            self._write_words(buffer, offset + whole.start, data[whole.start : whole.stop])
        for end in ends:
            put_end(self, buffer, offset + end.start, bytes(data[end.start : end.stop]))

    def _write_words(self, buffer: NativeBuffer, offset: int, data: memoryview) -> None:
        self.check()
        try:
            self._device.queue.write_buffer(buffer.handle, offset, data)
        except wgpu.GPUError as trouble:
            raise self.trouble("writing to the GPU failed", trouble) from trouble

    async def flush(self, most: int) -> None:
        """Waits for all of it, because wgpu does not say how much is left."""
        await self.wait()

    def read_later(self, buffer: Buffer, offset: int, size: int) -> Reading:
        assert isinstance(buffer, NativeBuffer)
        self.check()
        start, room = around(offset, size)
        staging = self._staging.pop() if self._staging and room <= SMALL_READ else None
        if staging is None:
            usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
            try:
                staging = self._device.create_buffer(size=max(room, SMALL_READ), usage=usage)
            except wgpu.GPUError as trouble:
                raise self.trouble("reading from the GPU failed", trouble) from trouble
        try:
            commands = commands_for(self)
            commands.copy_buffer_to_buffer(buffer.handle, start, staging, 0, room)
        except wgpu.GPUError as trouble:
            raise self.trouble("reading from the GPU failed", trouble) from trouble
        commands.submit()
        return reading(self, staging, range(offset - start, offset - start + size))

    async def read(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> bytes:
        return await self.read_later(buffer, offset, buffer.size - offset if size is None else size).bytes()

    async def confirm(self) -> None:
        """Waits for the kernels; a bad buffer has already raised when it was allocated."""
        for kernel in list(self._kernels.values()):
            self._compiled(kernel)

    async def pace(self) -> None:
        before, self._paced = self._paced, self.read_later(self._mark, 0, self._mark.size)
        if before is not None:
            await before.bytes()

    async def wait(self) -> None:
        self.check()
        try:
            self._device._poll_wait()
        except wgpu.GPUError as trouble:
            raise self.trouble("waiting for the GPU failed", trouble) from trouble
        self.check()

    def _submit(self, encoder: Any) -> None:
        try:
            self._device.queue.submit([encoder.finish()])
        except wgpu.GPUError as trouble:
            raise self.trouble("the GPU refused a command", trouble) from trouble

    def trouble(self, what: str, error: Exception) -> DeviceError:
        """The sentence for one of wgpu's errors, whose own text is for the traceback. Only that text tells that the
        device was lost."""
        if "lost" in str(error).lower():
            self._lost = self._lost or "the driver gave it up"
            return DeviceLost(f"{self.info.name} was lost: {self._lost}")
        if isinstance(error, wgpu.GPUOutOfMemoryError):
            return OutOfMemory(f"{what}: {self.info.name} is out of memory.")
        return DeviceError(f"{what} on {self.info.name}. `wgemma doctor` tests this GPU and its driver.")

    def check(self) -> None:
        """Raises `DeviceLost` when the GPU is gone, and `DeviceError` in a forked child, which never has it."""
        if self._forks != forks.count:
            raise DeviceError(f"{self.info.name} was opened in another process, before a fork.")
        if getattr(self._device, "_poller", self) is None:  # destroyed: no answer would ever come
            self._lost = self._lost or "the driver gave it up"
        if self._lost:
            raise DeviceLost(f"{self.info.name} was lost: {self._lost}")

    # -- kernels

    def kernel(self, name: str, constants: Mapping[str, Any] | None = None) -> NativeKernel:
        key = (name, tuple(sorted((constants or {}).items())))
        made = self._kernels.get(key)
        if made is None:
            given = {"SUBGROUPS": "subgroups" in self.features and name not in self._distrusted, **(constants or {})}
            code = load_shader(name, given)
            made = self._kernels[key] = self._compile(name, enabled(code, _NAGA_KNOWS) + code)
        return made

    def lanes(self, name: str) -> int:
        return 1 if name in self._distrusted else self.subgroup_size

    def plain(self, name: str) -> bool:
        return not self._trusted or name in self._distrusted

    def distrust(self, names: Iterable[str]) -> None:
        fresh = set(names) - self._distrusted
        self._distrusted |= fresh
        self._kernels = {key: made for key, made in self._kernels.items() if key[0] not in fresh}

    def _compile(self, name: str, code: str) -> NativeKernel:
        kinds = {"uniform": "uniform", "read": "read-only-storage", "read_write": "storage"}
        declared = declarations(code)
        entries = [
            {"binding": d.index, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[d.access]}}
            for d in declared
        ]
        try:
            layout = self._device.create_bind_group_layout(entries=entries)
        except wgpu.GPUError as trouble:
            raise self.trouble(f"{name} cannot be compiled", trouble) from trouble
        try:
            making = self._compilers.submit(self._pipeline, name, code, layout)
        except RuntimeError:  # Python ends, and has no new threads for those that still compute
            making = Future()
            making.set_result(self._pipeline(name, code, layout))
        return NativeKernel(name, making, layout, declared, uniform(name, code))

    def _pipeline(self, name: str, code: str, layout: Any) -> Any:
        try:
            return self._device.create_compute_pipeline(
                layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": self._module(name, code), "entry_point": "main"},
            )
        except wgpu.GPUError as trouble:
            raise self.trouble(f"{name} cannot be compiled", trouble) from trouble

    def _compiled(self, kernel: NativeKernel) -> Any:
        """The kernel's pipeline. A kernel that fails to compile is evicted, so that it does not fail later calls."""
        try:
            return kernel.pipeline
        except DeviceError:
            self._kernels = {key: made for key, made in self._kernels.items() if made is not kernel}
            raise

    def _module(self, name: str, code: str) -> Any:
        trusted = None if self.plain(name) else trusted_module(self._device, name, code)
        return trusted or self._device.create_shader_module(label=name, code=code)

    # -- programs

    def program(self, commands: Sequence[Command], label: str) -> Program:
        return NativeProgram(self, [self._ready(command) for command in commands])

    def _ready(self, command: Command) -> Any:
        if isinstance(command, Copy):
            return command
        kernel = command.kernel
        assert isinstance(kernel, NativeKernel)
        entries = [_entry(kernel.bindings[name], bound) for name, bound in command.bindings.items()]
        if (most := max(entry["resource"]["size"] for entry in entries)) > self._largest_binding:
            raise OutOfMemory(
                f"{kernel.name} needs {most} bytes at once; {self.info.name} allows {self._largest_binding}."
            )
        try:
            group = self._device.create_bind_group(layout=kernel.layout, entries=entries)
        except wgpu.GPUError as trouble:
            raise self.trouble(f"{kernel.name} cannot be bound", trouble) from trouble
        return self._compiled(kernel), group, command.grid

    def profile(self, commands: Sequence[Command], repeats: int = 5) -> list[tuple[str, float]]:
        """(kernel, nanoseconds) of every dispatch, the minimum of `repeats` runs, all of which take effect."""
        if "timestamp-query" not in self.features:
            raise DeviceError(f"{self.info.name} lacks timestamp-query, so its kernels cannot be timed.")
        self.check()
        steps = [self._ready(command) for command in commands]
        try:
            runs = [timed(self, steps) for _ in range(repeats)]
        except wgpu.GPUError as trouble:
            raise self.trouble("timing kernels failed", trouble) from trouble
        names = [command.kernel.name for command in commands if not isinstance(command, Copy)]
        return [(name, min(times)) for name, *times in zip(names, *runs, strict=True)]

    # -- life

    async def reopen(self) -> "NativeDevice":
        limits, features, trusted, compact = self._asked
        device = NativeDevice(self._adapter, limits=limits, features=features, trusted=trusted, compact=compact)
        device.distrust(self._distrusted)
        return device

    def close(self) -> None:
        if self._forks != forks.count:
            return
        self._lost = self._lost or "it was closed"
        self._compilers.shutdown(cancel_futures=True)
        self._kernels.clear()
        self._staging.clear()
        self._paced = None
        self._device.destroy()


def _first_adapter() -> Any:
    found = adapters()
    if not found:
        raise DeviceError(
            "no WebGPU adapter was found. Install your GPU's Vulkan driver, or mesa-vulkan-drivers for a software one."
        )
    return found[0]


def least_subgroup(info: Any) -> int:
    """The fewest threads a subgroup may have. wgpu does not query this and always says 4, WebGPU's minimum, so we use
    what we know of the vendor; llvmpipe says how wide its vectors are. If that were wrong somewhere, the self-test
    would catch it."""
    if width := re.match(r"llvmpipe \(.*\b(\d+) bits\)", info["device"]):
        return int(width[1]) // 32
    apple = info["backend_type"] == "Metal" and info["device"].startswith("Apple")
    if apple or info["vendor_id"] in _WIDE_VENDORS:
        return 32
    return int(info.get("stackgroup_min_size") or info.get("subgroup_min_size") or 1)


def _granted(device: Any) -> Limits:
    return Limits(**{field: device.limits[name] for field, name in _LIMIT_NAMES.items()})


def _entry(index: int, bound: Any) -> dict[str, Any]:
    span = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
    assert isinstance(span.buffer, NativeBuffer)
    return {"binding": index, "resource": {"buffer": span.buffer.handle, "offset": span.offset, "size": span.size}}


def open_floor_device() -> NativeDevice:
    """A device with exactly WebGPU's default limits and no optional features: what every browser offers."""
    return NativeDevice(limits=DEFAULT_LIMITS, features=False, compact=False)
