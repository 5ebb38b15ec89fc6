"""Models of weight types that nobody here can quantise to: random blocks in place of real weights."""

from pathlib import Path

import numpy as np

from wgemma.files.gguf import Gguf
from wgemma.files.quants import BY_NAME
from wgemma.files.writing import NewTensor, write_gguf
from wgemma.reference.lab import random_blocks


def randomised(model: Path, kind: str, path: Path) -> Path:
    """The model with random blocks of this type in place of its matrices."""
    rng, elements = np.random.default_rng(1), BY_NAME[kind].elements
    with Gguf.open(model) as gguf:
        tensors = {
            name: NewTensor(kind, t.shape, random_blocks(rng, kind, t.elements // elements).tobytes())
            if len(t.shape) == 2 and t.shape[0] % elements == 0
            else NewTensor(t.type, t.shape, gguf.read(name))
            for name, t in gguf.tensors.items()
        }
        write_gguf(path, gguf.metadata, tensors)
    return path
