"""Times tapes on a warmed-up GPU.

Times are the best of several, from timestamps if the adapter has them, otherwise from the clock. A GPU that idled while
pipelines were compiled runs at a fraction of its clock rate for a while; so before every timing it multiplies and adds
for 30 ms, in the same submission (unless the adapter is the CPU). Each timing is a chain of repeats that takes about
2 ms, in one compute pass between two timestamps, so the figure excludes the overhead of a pass.
"""

import math
import time
from collections.abc import Sequence

import numpy as np
import wgpu

from wgemma.cli.bench_timing import AWAKE
from wgemma.gpu.device import Dispatch, Program
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.raw import nanoseconds_of_a_tick
from wgemma.gpu.tape import Tape
from wgemma.sync import run

HEAT = 0.03  # seconds of work before every timing
CHAIN = 0.002  # seconds per timing; ten times that with the clock
LONGEST = 512  # dispatches per timing

FMA = """
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let f = vec4<f32>(0.999 + f32(id.x & 1u) * 0.0005);
  var a = f;
  var b = f + 1.0;
  var c = f + 2.0;
  var d = f + 3.0;
  for (var i = 0u; i < ROUNDSu; i++) {
    a = fma(a, f, f);
    b = fma(b, f, f);
    c = fma(c, f, f);
    d = fma(d, f, f);
  }
  let sum = a + b + c + d;
  if (sum.x + sum.y + sum.z + sum.w == 12345.0) { y[0] = 1.0; }
}
"""


class Stopwatch:
    """Times tapes on one device, at its clock rate under load."""

    def __init__(self, device: NativeDevice, repeat: int, longest: int = LONGEST) -> None:
        self.device, self.repeat, self.longest = device, repeat, longest
        self.software = device.info.kind == "CPU"
        self.stamps = "timestamp-query" in device.features and not self.software
        self.heat: list[Dispatch] = []
        self.arithmetic = self._warm_up()  # operations per second of a kernel that only multiplies and adds

    def seconds(self, tape: Tape) -> float:
        """Seconds per run of the tape, which is freed."""
        tape.program().replay()
        run(self.device.wait())
        commands = [command for command in tape.placed() if isinstance(command, Dispatch)]
        time_chain = self._by_stamps if self.stamps else self._by_clock
        wanted, most = CHAIN if self.stamps else 10 * CHAIN, max(1, self.longest // len(commands))
        found = [time_chain(commands, 1)]
        for _ in range(self.repeat):
            found.append(time_chain(commands, min(most, math.ceil(wanted / max(found[-1], 1e-9)))))
        tape.free()
        return min(found[1:])

    def _by_stamps(self, commands: Sequence[Dispatch], times: int) -> float:
        """Seconds per run, out of `times` in a row. One extra run precedes them, so that the warm-up is over when they
        start."""
        gpu = self.device._device
        queries = gpu.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        stamps = gpu.create_buffer(size=16, usage=usage)
        writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        encoder = gpu.create_command_encoder()
        heat, steps = ([self.device._ready(command) for command in part] for part in (self.heat, commands))
        for dispatches, timed in (([*heat, *steps], None), (steps * times, writes)):
            compute = encoder.begin_compute_pass(timestamp_writes=timed)
            for pipeline, group, grid in dispatches:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
            compute.end()
        encoder.resolve_query_set(queries, 0, 2, stamps, 0)
        gpu.queue.submit([encoder.finish()])
        begin, end = np.frombuffer(gpu.queue.read_buffer(stamps), "<u8").tolist()
        queries.destroy()
        stamps.destroy()
        return float(max(end - begin, 0)) * nanoseconds_of_a_tick(gpu) / 1e9 / times

    def _by_clock(self, commands: Sequence[Dispatch], times: int) -> float:
        """The same with the clock, which sees only when everything is done."""
        heat, chain = (self.device.program(part, "bench") for part in (self.heat, [*commands] * times))
        self._spent(heat)
        return self._spent(chain) / times

    def _spent(self, program: Program) -> float:
        begin = time.perf_counter()
        program.replay()
        run(self.device.wait())
        return time.perf_counter() - begin

    def _warm_up(self) -> float:
        """Multiplies and adds until the clock rate has risen; returns the best rate, and sizes the work for HEAT."""
        rounds, groups = (64, 16) if self.software else (2048, 8448)
        kernel = self.device._compile("fma", FMA.replace("ROUNDS", str(rounds)))
        command = Dispatch(kernel, {"y": self.device.buffer(4, "fma")}, (groups, 1, 1))
        time_chain = self._by_stamps if self.stamps else self._by_clock
        end = time.perf_counter() + (0 if self.software else AWAKE)
        times = [time_chain([command], 1) for _ in range(2 + self.repeat)]
        while time.perf_counter() < end:
            times.append(time_chain([command], 1))
        if not self.software:
            self.heat = [command] * math.ceil(HEAT / min(times))
        return 2 * 16 * 256 * groups * rounds / min(times)
