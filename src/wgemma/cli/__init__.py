"""The `wgemma` command: one file per verb, each with `add(verbs)` for its options and a function that does the work.

A user's mistake prints one sentence to standard error and exits with 1; a bad option exits with 2, Ctrl-C with 130.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from wgemma.cli.output import clean, sentence
from wgemma.errors import Error
from wgemma.version import __version__

LONGEST = 300  # characters of a word


class _Parser(argparse.ArgumentParser):
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
        super().error(_told(message))


def _told(message: str) -> str:
    """An error for a terminal, which may quote anything a user wrote: nothing to obey, and no endless words."""
    return " ".join(word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in clean(message).split(" "))


def parser() -> argparse.ArgumentParser:
    from wgemma.cli import app, bench, doctor, finetune, list_models, merge, run, show, tokenize, transcribe, verify

    top = _Parser(prog="wgemma", description="Gemma 4 on any GPU, by WGSL over WebGPU.")
    top.add_argument("--version", action="version", version=f"wgemma {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in (run, app, transcribe, list_models, show, finetune, merge, verify, tokenize, bench, doctor):
        verb.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # never fail over a character the terminal lacks
    try:
        options = parser().parse_args(arguments)  # inside `try`: Ctrl-C may come while verbs are imported
        code: int = options.do(options)
        sys.stdout.flush()
        return code
    except Error as error:
        print(f"wgemma: {_told(sentence(str(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; keep the interpreter from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
