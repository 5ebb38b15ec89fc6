"""Models of weight types that nobody here can quantise to: random blocks in place of real weights."""

from itertools import cycle
from pathlib import Path

import numpy as np

from wgemma.files.gguf import Gguf
from wgemma.files.quants import BY_NAME
from wgemma.files.writing import NewTensor, write_gguf
from wgemma.reference.lab import random_blocks


def randomised(model: Path, path: Path, *kinds: str) -> Path:
    """The model with random blocks in place of its matrices, of these types in turn."""
    rng, turn = np.random.default_rng(1), cycle(kinds)
    with Gguf.open(model) as gguf:
        tensors = {}
        for name, tensor in gguf.tensors.items():
            kind, data = tensor.type, gguf.read(name)
            if len(tensor.shape) == 2 and tensor.shape[0] % 256 == 0:
                kind = next(turn)
                data = random_blocks(rng, kind, tensor.elements // BY_NAME[kind].elements).tobytes()
            tensors[name] = NewTensor(kind, tensor.shape, data)
        write_gguf(path, gguf.metadata, tensors)
    return path
