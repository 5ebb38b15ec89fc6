"""Checks a GPU before loading: runs the kernels a model uses on small problems with known answers."""
