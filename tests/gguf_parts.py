"""Cuts a GGUF into parts for tests, as llama.cpp's gguf-split does: all metadata in the first, tensors in order."""

from pathlib import Path
from typing import Any

from gguf_writer import write_gguf
from wgemma.files.gguf import Gguf

NUMBERS = ("split.no", "split.count", "split.tensors.count")


def cut(gguf: Gguf, count: int) -> list[bytes]:
    """The parts of a whole file."""
    names = list(gguf.tensors)
    each = -(-len(names) // count)
    metadata = {key: plain(item) for key, item in gguf.metadata.items()}
    parts = []
    for i in range(count):
        held = {
            name: (gguf.tensors[name].type, gguf.tensors[name].shape, gguf.read(name))
            for name in names[i * each : (i + 1) * each]
        }
        numbers = dict(zip(NUMBERS, (i, count, len(names)), strict=True))
        parts.append(write_gguf((metadata if i == 0 else {}) | numbers, held))
    return parts


def plain(item: Any) -> Any:
    return item if isinstance(item, str | int | float) else list(item)


def part_name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def write_parts(folder: Path, gguf: Gguf, count: int, stem: str = "model") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / part_name(stem, i, count) for i in range(1, count + 1)]
    for path, data in zip(paths, cut(gguf, count), strict=True):
        path.write_bytes(data)
    return paths
