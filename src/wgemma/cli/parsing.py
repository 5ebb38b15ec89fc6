"""The command line's parser, whose errors are safe to print."""

import argparse
from typing import NoReturn

from wgemma.cli.output import clean

LONGEST = 300  # characters of a word


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(told(message))


def told(message: str) -> str:
    """An error for a terminal, which may quote anything a user wrote: nothing to obey, and no endless words."""
    return " ".join(word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in clean(message).split(" "))
