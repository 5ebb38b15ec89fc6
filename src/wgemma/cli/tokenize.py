"""`wgemma tokenize MODEL TEXT`: prints the tokens of a text in a model's vocabulary."""

import argparse
import sys

from wgemma.cli.output import as_json, clean
from wgemma.errors import SettingsError
from wgemma.files.locate import locate
from wgemma.text.tokenizer import Tokenizer


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("tokenize", help="print the tokens of a text")
    verb.add_argument("model", metavar="MODEL", help="an Ollama name, a .gguf path or an http(s) URL")
    verb.add_argument("text", metavar="TEXT", nargs="?", help="the text (default: standard input)")
    verb.add_argument("--special", action="store_true", help="recognise special tokens such as <|turn>")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=tokenize)


def tokenize(options: argparse.Namespace) -> int:
    files = locate(options.model)
    if options.text is None and sys.stdin is None:
        raise SettingsError("there is no text to tokenise, and no standard input.")
    given = sys.stdin.buffer.read() if options.text is None else options.text.encode(errors="replace")
    text = given.decode(errors="replace")
    tokenizer = Tokenizer.from_gguf(files.model)
    ids = tokenizer.encode(text, special=options.special)
    if options.json:
        as_json({"ids": ids, "tokens": [tokenizer.text(token_id) for token_id in ids]})
        return 0
    width = max((len(str(token_id)) for token_id in ids), default=0)
    for token_id in ids:
        shown = tokenizer.text(token_id).replace("\n", "⏎")
        print(f"{token_id:>{width}}  {clean(shown)}")
    return 0
