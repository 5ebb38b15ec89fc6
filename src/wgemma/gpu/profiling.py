"""How long each dispatch takes on the native device.

If the adapter has timestamps inside passes, a dispatch is timed from the end of the previous one to its own end, as in
a replay. Otherwise each gets its own pass, which adds a few microseconds.
"""

import struct
from collections.abc import Sequence
from typing import Any

import wgpu

from wgemma.gpu.device import Copy
from wgemma.gpu.raw import Owner, nanoseconds_of_a_tick, record_copy, stamp

_QUERIES = 4096  # the most WebGPU allows in a query set


def timed(device: Owner, steps: Sequence[Any]) -> list[float]:
    """Nanoseconds per dispatch of one run, in batches that fit a query set."""
    times: list[float] = []
    for start in range(0, len(steps), _QUERIES // 2):
        times += _timed_batch(device, steps[start : start + _QUERIES // 2])
    return times


def _timed_batch(owner: Owner, steps: Sequence[Any]) -> list[float]:
    device, count = owner._device, 2 * len(steps)
    queries = device.create_query_set(type="timestamp", count=count)
    usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
    stamps = device.create_buffer(size=8 * count, usage=usage)
    encoder, compute = device.create_command_encoder(), None
    inside = "timestamp-query-inside-passes" in owner.features
    used, spans = 0, list[tuple[int, int]]()
    for step in steps:
        if compute is not None and (isinstance(step, Copy) or not inside):
            compute.end()
            compute = None
        if isinstance(step, Copy):
            record_copy(encoder, step)
            continue
        if compute is None and inside:
            compute = encoder.begin_compute_pass()
            stamp(compute, queries, used)
            used += 1
        elif compute is None:
            writes = {"beginning_of_pass_write_index": used, "end_of_pass_write_index": used + 1}
            compute = encoder.begin_compute_pass(timestamp_writes={"query_set": queries, **writes})
            used += 1
        compute.set_pipeline(step[0])
        compute.set_bind_group(0, step[1])
        compute.dispatch_workgroups(*step[2])
        if inside:
            stamp(compute, queries, used)
        spans.append((used - 1, used))
        used += 1
    if compute is not None:
        compute.end()
    if used:
        encoder.resolve_query_set(queries, 0, used, stamps, 0)
    owner._submit(encoder)
    ticks = struct.unpack(f"<{count}Q", device.queue.read_buffer(stamps))[:used]
    queries.destroy()
    stamps.destroy()
    tick = nanoseconds_of_a_tick(device)
    return [max(ticks[end] - ticks[begin], 0) * tick for begin, end in spans]
