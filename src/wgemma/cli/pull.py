"""`wgemma pull NAME`: downloads a model into wgemma's store, or goes on with it."""

import argparse
import sys

from wgemma.checks import human_bytes
from wgemma.cli.following import follow
from wgemma.cli.output import clean
from wgemma.cli.stored import how_to_run
from wgemma.errors import StoreError
from wgemma.files.names import Name
from wgemma.files.stores import Stores
from wgemma.pulling import pull


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("pull", help="download a model")
    verb.add_argument(
        "model",
        metavar="NAME",
        help="a name in Ollama's registry, such as gemma4:e2b, or on Hugging Face, such as hf.co/user/repo:Q4_K_M, or "
        "the address of a repository or a file there",
    )
    verb.add_argument("--json", action="store_true", help="print progress as JSON, one object per line")
    verb.set_defaults(do=pull_model)


def pull_model(options: argparse.Namespace) -> int:
    told = download(options.model, as_json=options.json)
    if not options.json:
        print(told)
    return 0


def download(text: str, *, as_json: bool = False) -> str:
    """Pulls a model and says how far it is; the result is a sentence about where it is."""
    name, stores = Name.parse(text), Stores.find()
    try:
        follow(pull(text, stores), f"pulling {name}", as_json=as_json)
    except KeyboardInterrupt:
        if not as_json:
            print(f"Stopped. `wgemma pull {clean(text)}` goes on where it stopped.", file=sys.stderr)
        raise
    size = human_bytes(stores.own.model(name).size)
    return f"{name} is here: {size} in {clean(str(stores.own.root))}. {how_to_run(name, stores)}"


def offer(text: str) -> None:
    """Asks whether to pull a model that is not here, and does; whatever else is wrong is told by who loads it. Where
    the name may be a misspelt one, the answer must be a yes. Without a terminal nobody is asked."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return
    try:
        name, stores = Name.parse(text), Stores.find()
        if text in stores:
            return
        near = stores.near(name)
    except StoreError:
        return
    hint = f"Did you mean {' or '.join(near)}? Pull {name} now? [y/N]" if near else "Pull it now? [Y/n]"
    print(clean(f"{name} is not on this computer. {hint} "), end="", file=sys.stderr)
    sys.stderr.flush()
    answer = sys.stdin.readline()  # empty at the end of input, which is Ctrl-D
    if not answer:
        print(file=sys.stderr)
    elif (answer.strip().lower() or ("n" if near else "y")) in ("y", "yes"):
        print(download(text), file=sys.stderr)
