"""`wgemma tokenize MODEL TEXT`: prints the tokens of a text in a model's vocabulary."""

import argparse
import sys

from wgemma.cli.output import as_json, clean
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
    text = options.text if options.text is not None else sys.stdin.buffer.read().decode(errors="replace")
    tokenizer = Tokenizer.from_gguf(locate(options.model).model)
    ids = tokenizer.encode(text, special=options.special)
    if options.json:
        as_json({"ids": ids, "tokens": [tokenizer.text(token_id) for token_id in ids]})
        return 0
    width = max((len(str(token_id)) for token_id in ids), default=0)
    for token_id in ids:
        shown = tokenizer.text(token_id).replace("\n", "⏎")
        print(f"{token_id:>{width}}  {clean(shown)}")
    return 0
