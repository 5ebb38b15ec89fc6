"""Exits with 0 when some WebGPU adapter answers."""

import sys

try:
    from wgemma.gpu.native import adapters

    sys.exit(0 if adapters() else 1)
except Exception as trouble:  # a library that cannot be loaded means the same: no adapter
    print(f"WebGPU is out of reach: {trouble}", file=sys.stderr)
    sys.exit(1)
