"""The table of the sweep, by family of kernels. Each `cases()` yields what `reference/sweep.py` runs."""
