"""Exits with 0 if there is a WebGPU adapter."""

import sys

try:
    from wgemma.gpu.native import adapters

    sys.exit(0 if adapters() else 1)
except Exception as trouble:  # a library that cannot be loaded means no adapter, too
    print(f"WebGPU is not available: {trouble}", file=sys.stderr)
    sys.exit(1)
