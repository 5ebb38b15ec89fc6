"""Which words of a command line name the model, and which are the prompt.

`-m NAME` names the model. Without it, the first word does if it is an installed model, a path or a URL, or looks like
one of them; everything else is the prompt.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from wgemma.cli.chat_media import PATH_STARTS, SUFFIXES
from wgemma.embedded import NAME, is_embedded
from wgemma.errors import SettingsError, SourceError, StoreError
from wgemma.files.locate import is_download, locate
from wgemma.files.names import Name, is_on_hub
from wgemma.files.paths import mode, user_path
from wgemma.files.sources import is_url
from wgemma.files.stores import Stores
from wgemma.files.web import without_password

MODEL = "a model's name, a .gguf path or an http(s) URL (default: the tiny model that comes with wgemma)"
DEFAULT = f"{NAME}, the tiny demonstration model that comes with wgemma"
LONGEST = 60  # characters of a word to repeat
NEAR = 0.75  # how similar a word must be to a model's name to be taken for a misspelt one


def add_model_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-m", "--model", metavar="MODEL", help=f"use {MODEL}")


def add_device_option(verb: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    choice = "its number in `wgemma doctor` or part of its name"
    verb.add_argument("--device", metavar="NAME", help=f"use this GPU adapter ({choice}), or `reference` for NumPy")


def add_precision_option(verb: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "round activations to 8 bits, or compute exactly (default: fast)"
    verb.add_argument("--precision", choices=("fast", "exact"), default="fast", help=what)


def model_and_words(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The model that `options.model` or the first of `options.words` names, and the other words. If neither names one,
    it is the embedded model, and unless JSON is wanted a line on standard error says so."""
    words: list[str] = options.words
    if options.model is not None:
        return options.model, words
    if words and _may_be_a_model(words[0]):
        _check_model(words, options.verb)
        return words[0], words[1:]
    if not options.json:
        print(f"Using {DEFAULT}.", file=sys.stderr)
    return NAME, words


def named_model(options: argparse.Namespace) -> str | None:
    """What the command line calls a model by name, if it does; a path or URL is none."""
    words: list[str] = options.words
    found = options.model if options.model is not None else words[0] if words and _may_be_a_model(words[0]) else None
    if found is None or is_embedded(found) or found.startswith(PATH_STARTS) or _exists(found) or is_download(found):
        return None
    if is_on_hub(found):
        return found
    return None if is_url(found) or found.lower().endswith(".gguf") else found


def _check_model(words: Sequence[str], verb: str) -> None:
    """Raises if the first word is no model; unless it is an installed one, the message says how to send it as text."""
    try:
        locate(words[0])
    except (SourceError, StoreError) as error:
        if words[0] in Stores.find():
            raise
        text = without_password(words[0])
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
        command = f"wgemma {verb} -m {NAME} {shlex.quote(text)}" + (" …" if len(words) > 1 else "")
        raise SettingsError(f"{error} If that is text and no model, name a model before it: `{command}`.") from None


def _may_be_a_model(word: str) -> bool:
    if is_embedded(word) or word.lower().endswith(".gguf"):
        return True
    if not word.strip() or Path(word).suffix.lower() in SUFFIXES:
        return False
    if _exists(word):
        return True
    return not any(map(str.isspace, word)) and (
        is_url(word) or word.startswith(PATH_STARTS) or _looks_like_a_name(word)
    )


def _exists(word: str) -> bool:
    try:
        return mode(user_path(word)) != 0
    except SourceError:
        return False


def _looks_like_a_name(word: str) -> bool:
    """Whether a store has a model of that name or might: gemma4:e2c, me/model, gema4."""
    try:
        Name.parse(word)
        stores = Stores.find()
        return word in stores or any(mark in word for mark in ":/") or _is_near(word, stores.names())
    except StoreError:
        return False


def _is_near(word: str, names: Sequence[Name]) -> bool:
    known = {"gemma4", *(name.model for name in names)}
    return bool(get_close_matches(word, known, n=1, cutoff=NEAR))
