"""Exits with 0 when some WebGPU adapter answers."""

import sys

try:
    import wgpu

    sys.exit(0 if wgpu.gpu.enumerate_adapters_sync() else 1)
except Exception as trouble:  # a library that cannot be loaded means the same: no adapter
    print(f"WebGPU is out of reach: {trouble}", file=sys.stderr)
    sys.exit(1)
