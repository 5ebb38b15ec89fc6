"""Does this GPU compute right? The kernels a model uses, on small problems with known answers, before it is loaded."""
