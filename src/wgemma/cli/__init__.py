"""The `wgemma` command: one file per verb, each with `add(verbs)` for its options and a function that does the work.

A user's mistake prints one sentence to standard error and exits with 1; a bad option exits with 2, Ctrl-C with 130.
Everything is imported inside `main`, so that Ctrl-C is quiet from the start.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def parser() -> "argparse.ArgumentParser":
    from wgemma.cli import (
        app,
        batch,
        bench,
        copy_model,
        create,
        doctor,
        finetune,
        list_models,
        merge,
        pull,
        remove,
        run,
        running,
        serve,
        show,
        tokenize,
        transcribe,
        verify,
    )
    from wgemma.cli.parsing import Parser
    from wgemma.version import __version__

    top = Parser(prog="wgemma", description="Gemma 4 on any GPU, by WGSL over WebGPU.")
    top.add_argument("--version", action="version", version=f"wgemma {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    models = (pull, list_models, show, copy_model, create, remove, running)
    for verb in (run, app, serve, batch, transcribe, *models, finetune, merge, verify, tokenize, bench, doctor):
        verb.add(verbs)
    return top


def main(arguments: "Sequence[str] | None" = None) -> int:
    try:
        return _command(arguments)
    except KeyboardInterrupt:
        return 130


def _command(arguments: "Sequence[str] | None") -> int:
    import io
    import os
    import sys

    from wgemma.cli.output import sentence
    from wgemma.cli.parsing import told
    from wgemma.errors import Error

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # never fail over a character the terminal lacks
    try:
        options = parser().parse_args(arguments)
        code: int = options.do(options)
        sys.stdout.flush()
        return code
    except Error as error:
        print(f"wgemma: {told(sentence(str(error)))}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed the pipe; keep the interpreter from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
