"""The sweep's cases, by family of kernels. `reference/sweep.py` runs what each `cases()` yields."""
