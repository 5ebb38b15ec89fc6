"""The WGSL kernels: data that `gpu.shaders` reads, one file per operation."""
