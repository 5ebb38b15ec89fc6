"""`wgemma tokenize [MODEL] TEXT`: prints the tokens of a text in a model's vocabulary."""

import argparse
import sys

from wgemma.cli.output import as_json, clean
from wgemma.cli.words import add_model_option, model_and_words
from wgemma.errors import SettingsError
from wgemma.files.download import readable
from wgemma.files.locate import locate
from wgemma.text.tokenizer import Tokenizer


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("tokenize", help="print the tokens of a text")
    verb.add_argument(
        "words",
        metavar="TEXT",
        nargs="*",
        help="the text (default: standard input). The first word may name the model instead of -m",
    )
    add_model_option(verb)
    verb.add_argument("--special", action="store_true", help="recognise special tokens such as <|turn>")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=tokenize)


def tokenize(options: argparse.Namespace) -> int:
    model, words = model_and_words(options)
    files = locate(model)
    if not words and sys.stdin is None:
        raise SettingsError("there is no text to tokenise, and no standard input.")
    given = " ".join(words).encode(errors="replace") if words else sys.stdin.buffer.read()
    text = given.decode(errors="replace")
    tokenizer = Tokenizer.from_gguf(readable(files.model))
    ids = tokenizer.encode(text, special=options.special)
    if options.json:
        as_json({"ids": ids, "tokens": [tokenizer.text(token_id) for token_id in ids]})
        return 0
    width = max((len(str(token_id)) for token_id in ids), default=0)
    for token_id in ids:
        shown = tokenizer.text(token_id).replace("\n", "⏎")
        print(f"{token_id:>{width}}  {clean(shown)}")
    return 0
