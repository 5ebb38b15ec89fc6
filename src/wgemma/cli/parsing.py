"""The command line's parser, whose errors are safe to print."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from wgemma.cli.output import clean

LONGEST = 300  # characters of a word
_PLAIN = "\0"  # begins a word after `--`, so that it is no option; no word of a command line has one


class Parser(argparse.ArgumentParser):
    """Options may stand anywhere on the line, and an optional value is only taken if it is one of its choices."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        end = args.index("--") if "--" in args else len(args)
        words = self._settled(args[:end]) + [_PLAIN + word for word in args[end + 1 :]]
        self._mixing = True  # argparse's intermixed mode calls this method again for each of its two passes
        try:
            options, others = self.parse_known_intermixed_args(words, namespace)
        finally:
            self._mixing = False
        for name, value in vars(options).items():
            setattr(options, name, _unmarked(value))
        return options, _unmarked(others)

    def _settled(self, words: Sequence[str]) -> list[str]:
        """`--think PROMPT` → `--think=true PROMPT`; `--think low` stays as it is."""
        optional = {name: action for action in self._actions if action.nargs == "?" for name in action.option_strings}
        settled = list(words)
        for i, word in enumerate(words):
            action = optional.get(word)
            if action is not None and action.choices is not None and [*words, ""][i + 1] not in action.choices:
                settled[i] = f"{word}={action.const}"
        return settled

    def error(self, message: str) -> NoReturn:
        super().error(told(message))


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    return value.removeprefix(_PLAIN) if isinstance(value, str) else value


def told(message: str) -> str:
    """An error for a terminal, which may quote anything a user wrote: nothing to obey, and no endless words."""
    return " ".join(word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in clean(message).split(" "))
