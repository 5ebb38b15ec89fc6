"""`--ray [ADDRESS]`, which `wgemma batch` and `wgemma serve` have."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from wgemma.files.paths import mode, user_path
from wgemma.scale.ray_cluster import LOCAL


class _Addresses:
    """What may follow --ray; anything else is the next word of the command."""

    _FORM = re.compile(r"local|auto|(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._FORM.fullmatch(word) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(("local", "auto", "HOST:PORT"))


def add_ray_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        choices=_Addresses(),
        metavar="ADDRESS",
        help="work on this Ray cluster: HOST:PORT, or `auto` for the one here; without an address, start one here",
    )


def shared_model(model: str | None) -> str | None:
    """A model as other processes find it: a file by its whole path."""
    if model is None:
        return None
    path = user_path(model)
    return str(Path(path).absolute()) if mode(path) else model
