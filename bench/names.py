"""Names of models and adapters in charts and file names."""

import re
from pathlib import PurePath


def called(model: str) -> str:
    """A model's name in a chart: a file by its name alone."""
    return PurePath(model).stem if model.endswith(".gguf") else model


def slug(name: str) -> str:
    """For a file's name: 'NVIDIA H200' → 'nvidia-h200', 'llvmpipe (LLVM 15.0.6, 256 bits)' → 'llvmpipe'."""
    return re.sub(r"[^a-z0-9._]+", "-", name.split("(")[0].lower()).strip("-.")
