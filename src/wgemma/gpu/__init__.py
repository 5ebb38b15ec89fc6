"""WebGPU, knowing no model: devices, shaders, and tapes of dispatches."""
