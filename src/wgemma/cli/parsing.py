"""The command line's parser, whose errors are safe to print."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from wgemma.cli.output import clean

LONGEST = 300  # characters of a word


class Parser(argparse.ArgumentParser):
    """Options may stand anywhere on the line, and an optional value is only taken if it is one of its choices."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True  # argparse's intermixed mode calls this method again for each of its two passes
        try:
            return self.parse_known_intermixed_args(self._settled(args), namespace)
        finally:
            self._mixing = False

    def _settled(self, words: Sequence[str]) -> list[str]:
        """`--think PROMPT` → `--think=true PROMPT`; `--think low` stays as it is."""
        optional = {name: action for action in self._actions if action.nargs == "?" for name in action.option_strings}
        settled, last = list(words), words.index("--") if "--" in words else len(words)
        for i, word in enumerate(words[:last]):
            action = optional.get(word)
            if action is not None and action.choices is not None and [*words, ""][i + 1] not in action.choices:
                settled[i] = f"{word}={action.const}"
        return settled

    def error(self, message: str) -> NoReturn:
        super().error(told(message))


def told(message: str) -> str:
    """An error for a terminal, which may quote anything a user wrote: nothing to obey, and no endless words."""
    return " ".join(word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in clean(message).split(" "))
