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

from wgemma.checks import counted
from wgemma.cli.output import as_json, human_bytes, progress
from wgemma.engine.adapting import checked_scale
from wgemma.errors import AdapterError, Error
from wgemma.files.adapter_names import EMBEDDING, OUTPUT
from wgemma.files.adapters import Pair, fitting_adapter, open_adapter
from wgemma.files.download import readable
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.locate import locate
from wgemma.files.paths import user_path
from wgemma.files.sources import Buffer
from wgemma.files.writing import ALIGNMENT, growth, replacing, revised_header
from wgemma.model.config import Config
from wgemma.reference.dequantize import dequantize
from wgemma.reference.quantize import QUANTIZERS, quantize
from wgemma.sync import run

Floats = NDArray[np.float32]

PIECE = 8 << 20  # bytes copied at a time
SLAB = 32 << 20  # bytes of float32 worked on at a time
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
                changes.setdefault(name, []).append(Change(pair, share * pair.scale))
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
        types = ", ".join(sorted(set(retyped.values())))
        print(
            f"{counted(len(retyped), 'tensor')} became {INSTEAD}, because wgemma reads {types} but does not write it."
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
    retyped, alignment = _retyped(gguf, changes), _alignment(gguf)
    total = gguf.source.size + sum(growth(_source(gguf, name), INSTEAD, alignment) for name in retyped)
    if _parts(gguf, changes):
        total += gguf.tensors[EMBEDDING].nbytes
    free = shutil.disk_usage(output.absolute().parent).free
    if free < total:
        raise Error(f"{output} needs {human_bytes(total)}, but only {human_bytes(free)} are free there.")
    return total


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
            kind = INSTEAD if tensor.name in retyped else tensor.type
            size = 0
            for piece in _changed(gguf, tensor, kind, changes[tensor.name]):
                size += len(piece)
                yield piece
            yield bytes((tensor.nbytes - size) % alignment)
            position = tensor.offset + tensor.nbytes
    yield from _copied(gguf, position, gguf.source.size)
    if parts:
        yield bytes(-gguf.source.size % alignment)
        table = gguf.tensors[EMBEDDING]
        yield from _changed(gguf, table, INSTEAD if OUTPUT in retyped else table.type, changes.get(OUTPUT, ()))


def _header(gguf: Gguf, retyped: Sequence[str], parts: bool) -> tuple[bytes, int]:
    """The header with the new types, and maybe an output matrix after all other tensors; and where the old file's
    tensors start."""
    head = bytes(run(gguf.source.read(0, min(tensor.offset for tensor in gguf.tensors.values()))))
    table = gguf.tensors[EMBEDDING]
    added = (OUTPUT, table, INSTEAD if OUTPUT in retyped else table.type) if parts else None
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
    """`old` + `difference`, requantised; rows whose difference is zero stay bit for bit the same, in the same type."""
    if kind != tensor.type:
        return quantize(dequantize(old, tensor.type, difference.shape) + difference, kind).data.cast("B")
    touched = difference.any(axis=1)
    if not touched.any():
        return old
    blocks = np.frombuffer(old, np.uint8).reshape(len(difference), -1).copy()
    values = dequantize(blocks[touched], tensor.type, (-1, tensor.shape[0])) + difference[touched]
    if not (np.abs(values) <= np.finfo(np.float16 if tensor.type == "F16" else np.float32).max).all():
        raise AdapterError(f"{tensor.name} would overflow {tensor.type}. Try a smaller --scale.")
    blocks[touched] = quantize(values, tensor.type)
    return blocks.data.cast("B")
