"""The processes that attack: each opens all readers once and takes slices of the work."""

from collections.abc import Mapping

from fuzz.harness import Reader, Report, attack
from fuzz.readers import open_readers

_opened = open_readers()
_readers: Mapping[str, Reader] = {}


def start() -> None:
    global _readers
    _readers = {reader.name: reader for reader in _opened.__enter__()}


def attack_slice(name: str, seed: int, numbers: range) -> Report:
    return attack(_readers[name], seed, numbers)
