"""`wgemma merge MODEL ADAPTER -o out.gguf`: writes the model with the adapter merged in.

The new file is the old one byte for byte, including all metadata, except for the rows an adapter changes: those are
dequantised, get scale · B · A added, and are requantised to their original type. A tensor of a type that wgemma can
only read becomes Q8_0 if it changes. A table shared by embedding and output becomes two if only one of them is adapted.
"""

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.checks import counted, human_bytes
from wgemma.cli.output import as_json, progress
from wgemma.engine.adapting import checked_scale
from wgemma.errors import AdapterError, Error
from wgemma.files.adapter_names import EMBEDDING, OUTPUT
from wgemma.files.adapters import Pair, fitting_adapter, open_adapter
from wgemma.files.download import readable
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.locate import locate
from wgemma.files.paths import user_path
from wgemma.files.quants import BY_NAME
from wgemma.files.sources import Buffer
from wgemma.files.writing import ALIGNMENT, growth, replacing, revised_header
from wgemma.model.config import Config
from wgemma.reference.dequantize import dequantize
from wgemma.reference.quantize import QUANTIZERS, quantize
from wgemma.sync import run

Floats = NDArray[np.float32]

PIECE = 8 << 20  # bytes copied at a time
SLAB = 32 << 20  # bytes of float32 worked on at a time
WIDE = ("F32", "BF16")  # types that hold any number; the others have scales in f16
INSTEAD = "Q8_0"  # what a changed tensor becomes whose type has no quantiser


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("merge", help="merge an adapter into a new model file")
    verb.add_argument("model", metavar="MODEL", nargs="?", help="a model's name, a .gguf path or an http(s) URL")
    verb.add_argument("adapter", metavar="ADAPTER", help="a PEFT folder or a .gguf adapter")
    verb.add_argument("-o", "--output", metavar="FILE", type=user_path, required=True, help="write to this file")
    verb.add_argument("--scale", type=float, default=1.0, metavar="S", help="scale the adapter (default: 1)")
    verb.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=merge)


@dataclass(frozen=True, slots=True)
class Change:
    """B · A with its final scale."""

    pair: Pair
    scale: float

    @property
    def is_none(self) -> bool:
        """Whether it is all zeros."""
        return not (self.scale and all(np.frombuffer(side, np.float32).any() for side in (self.pair.a, self.pair.b)))

    def rows(self, expert: int, start: int, count: int) -> Floats:
        """scale · B · A, rows [start, start + count) of one expert: [count, columns]."""
        pair = self.pair
        a = np.frombuffer(pair.a, np.float32).reshape(pair.experts, pair.rank, pair.columns)[expert]
        b = np.frombuffer(pair.b, np.float32).reshape(pair.experts, pair.rows, pair.rank)[expert]
        product: Floats = np.float32(self.scale) * (b[start : start + count] @ a)
        return product


Changes = Mapping[str, Sequence[Change]]


def merge(options: argparse.Namespace) -> int:
    scale = checked_scale(options.scale)
    files = locate(options.model)
    wanted = open_adapter(options.adapter)
    adapters = [(open_adapter(path), 1.0) for path in files.adapters] + [(wanted, scale)]
    with Gguf.open(readable(files.model)) as gguf:
        Config.from_gguf(gguf)
        changes: dict[str, list[Change]] = {}
        for adapter, share in adapters:
            for name, pair in run(fitting_adapter(gguf.tensors, adapter, None)).pairs.items():
                change = Change(pair, share * pair.scale)
                if not change.is_none:
                    changes.setdefault(name, []).append(change)
        try:
            total = _check(gguf, changes, options.output, files.model, replace=options.force)
            with replacing(options.output) as file, progress(f"merging {files.name}", total) as bar:
                for piece in merged(gguf, changes):
                    file.write(piece)
                    bar(len(piece))
        except OSError as error:
            raise Error(f"{options.output} cannot be written: {error.strerror or error}.") from None
        kept = len(gguf.tensors) - len(changes.keys() & gguf.tensors.keys())
        retyped = {name: _source(gguf, name).type for name in _retyped(gguf, changes)}
    counts = {"changed": len(changes), "kept": kept, "size": total}
    _report(options, {"model": files.name, "adapter": wanted.name, **counts}, retyped)
    return 0


def _report(options: argparse.Namespace, facts: dict[str, Any], retyped: Mapping[str, str]) -> None:
    if options.json:
        as_json({"scale": options.scale, "output": str(options.output), **facts, "retyped": retyped})
        return
    counts = f"{counted(facts['changed'], 'tensor')} changed, {facts['kept']} kept"
    print(f"{options.output} is {facts['model']} with {facts['adapter']}: {counts}, {human_bytes(facts['size'])}.")
    if retyped:
        types = sorted(set(retyped.values()))
        them = "it" if len(types) == 1 else "them"
        print(
            f"{counted(len(retyped), 'tensor')} became {INSTEAD}, because wgemma reads {' and '.join(types)} but does "
            f"not write {them}."
        )


def _check(gguf: Gguf, changes: Changes, output: Path, model: str | Path | tuple[Path, ...], *, replace: bool) -> int:
    """The size of the new file; raises if it cannot or must not be written."""
    if gguf.parts > 1:
        raise Error(
            f"{gguf.source.name} is in {gguf.parts} parts, and merge wants a single file. "
            "Join them first: llama-gguf-split --merge FIRST-PART OUT.gguf"
        )
    if output.is_dir():
        raise Error(f"{output} is a folder; name a file instead.")
    if output.exists():
        if isinstance(model, Path) and output.samefile(model):
            raise Error(f"{output} is the model itself; choose another name.")
        if not replace:
            raise Error(f"{output} already exists. Use --force to overwrite it.")
    if not output.absolute().parent.is_dir():
        raise Error(f"{output.parent} is not a folder; create it first.")
    total = _size(gguf, changes)
    free = shutil.disk_usage(output.absolute().parent).free
    if free < total:
        raise Error(f"{output} needs {human_bytes(total)}, but only {human_bytes(free)} are free there.")
    return total


def _size(gguf: Gguf, changes: Changes) -> int:
    """How long the new file will be."""
    size, parts, retyped, alignment = gguf.source.size, _parts(gguf, changes), _retyped(gguf, changes), _alignment(gguf)
    if parts or retyped:
        head, start = _header(gguf, retyped, parts)
        size += len(head) - start
    size += sum(growth(gguf.tensors[name], INSTEAD, alignment) for name in retyped if name in gguf.tensors)
    if parts:
        table = gguf.tensors[EMBEDDING]
        columns, rows = table.shape
        size += -gguf.source.size % alignment + rows * BY_NAME[_kind(gguf, OUTPUT, retyped)].row_nbytes(columns)
    return size


def _kind(gguf: Gguf, name: str, retyped: Sequence[str]) -> str:
    """The type of a tensor in the new file."""
    return INSTEAD if name in retyped else _source(gguf, name).type


def _parts(gguf: Gguf, changes: Changes) -> bool:
    """Whether embedding and output share a table that must become two."""
    return OUTPUT not in gguf.tensors and (EMBEDDING in changes or OUTPUT in changes)


def _source(gguf: Gguf, name: str) -> Tensor:
    """The tensor that a changed one is made from."""
    return gguf.tensors.get(name) or gguf.tensors[EMBEDDING]


def _retyped(gguf: Gguf, changes: Changes) -> list[str]:
    """The changed tensors whose type nobody here can write."""
    return [name for name in changes if _source(gguf, name).type not in QUANTIZERS]


def merged(gguf: Gguf, changes: Changes) -> Iterator[Buffer]:
    """The new file from its first byte to its last."""
    position = 0
    parts, retyped, alignment = _parts(gguf, changes), _retyped(gguf, changes), _alignment(gguf)
    if parts or retyped:
        head, position = _header(gguf, retyped, parts)
        yield head
    for tensor in sorted(gguf.tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.name in changes:
            yield from _copied(gguf, position, tensor.offset)
            size = 0
            for piece in _changed(gguf, tensor, _kind(gguf, tensor.name, retyped), changes[tensor.name]):
                size += len(piece)
                yield piece
            yield bytes((tensor.nbytes - size) % alignment)
            position = tensor.offset + tensor.nbytes
    yield from _copied(gguf, position, gguf.source.size)
    if parts:
        yield bytes(-gguf.source.size % alignment)
        kind = _kind(gguf, OUTPUT, retyped)
        yield from _changed(gguf, gguf.tensors[EMBEDDING], kind, changes.get(OUTPUT, ()))


def _header(gguf: Gguf, retyped: Sequence[str], parts: bool) -> tuple[bytes, int]:
    """The header with the new types, and maybe an output matrix after all other tensors; and where the old file's
    tensors start."""
    head = bytes(run(gguf.source.read(0, min(tensor.offset for tensor in gguf.tensors.values()))))
    added = (OUTPUT, gguf.tensors[EMBEDDING], _kind(gguf, OUTPUT, retyped)) if parts else None
    kinds = {name: INSTEAD for name in retyped if name in gguf.tensors}
    return revised_header(head, list(gguf.tensors.values()), kinds, added, gguf.source.size, _alignment(gguf))


def _alignment(gguf: Gguf) -> int:
    return int(gguf.metadata.get("general.alignment", ALIGNMENT))


def _copied(gguf: Gguf, start: int, end: int) -> Iterator[Buffer]:
    for position in range(start, end, PIECE):
        yield run(gguf.source.read(position, min(PIECE, end - position)))


def _changed(gguf: Gguf, tensor: Tensor, kind: str, changes: Sequence[Change]) -> Iterator[Buffer]:
    """A tensor's new bytes in this type, expert by expert, in slabs of rows."""
    columns, rows, experts = (*tensor.shape, 1)[:3]
    row_nbytes = tensor.format.row_nbytes(columns)
    most = max(1, SLAB // (4 * columns))
    for expert in range(experts):
        for start in range(0, rows, most):
            count = min(most, rows - start)
            offset = tensor.offset + (expert * rows + start) * row_nbytes
            old = run(gguf.source.read(offset, count * row_nbytes))
            difference = sum(
                (change.rows(expert, start, count) for change in changes), np.zeros((count, columns), "f4")
            )
            yield _requantised(tensor, kind, old, difference)


def _requantised(tensor: Tensor, kind: str, old: Buffer, difference: Floats) -> Buffer:
    """`old` + `difference` in this type; in the same type, rows whose difference is zero stay bit for bit the same."""
    same = kind == tensor.type
    touched = difference.any(axis=1) if same else np.ones(len(difference), bool)
    if not touched.any():
        return old
    blocks = np.frombuffer(old, np.uint8).reshape(len(difference), -1)
    values = dequantize(blocks[touched], tensor.type, (-1, tensor.shape[0])) + difference[touched]
    if not (np.abs(values) <= np.finfo(np.float32 if kind in WIDE else np.float16).max).all():
        raise AdapterError(f"{tensor.name} would overflow {kind}. Try a smaller --scale.")
    new = quantize(values, kind)
    if same:
        new, some = blocks.copy(), new
        new[touched] = some
    return new.data.cast("B")
