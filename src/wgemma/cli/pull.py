"""`wgemma pull NAME`: downloads a model into wgemma's store, or goes on with it."""

import argparse
import json
import sys
from contextlib import closing
from types import TracebackType
from typing import Any

from wgemma.cli.output import clean, human_bytes
from wgemma.errors import StoreError
from wgemma.files.managing import Event, pull
from wgemma.files.names import Name
from wgemma.files.stores import Stores


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("pull", help="download a model")
    verb.add_argument(
        "model",
        metavar="NAME",
        help="a name in Ollama's registry, such as gemma4:e2b, or on Hugging Face, such as hf.co/user/repo:Q4_K_M",
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
        with Follower(f"pulling {name}", as_json=as_json) as follower, closing(pull(text, stores)) as events:
            for event in events:
                follower.hear(event)
    except KeyboardInterrupt:
        if not as_json:
            print(f"Stopped. `wgemma pull {clean(text)}` goes on where it stopped.", file=sys.stderr)
        raise
    size = human_bytes(stores.own.model(name).size)
    return f"{name} is here: {size} in {clean(str(stores.own.root))}. `wgemma run {name}` starts it."


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


class Follower:
    """Shows a stream of events: a bar on a terminal, a line per step and per 10 % elsewhere, or JSON."""

    def __init__(self, label: str, *, as_json: bool) -> None:
        self._label = label
        self._json = as_json
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._status = ""
        self._tenth = 0
        self._bars: Any = None
        self._task: Any = None

    def __enter__(self) -> "Follower":
        if not self._json and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            label = TextColumn("{task.description}", markup=False)
            columns = (label, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bars.add_task(self._label, total=None)  # its size is not known yet
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def hear(self, event: Event) -> None:
        if self._json:
            print(json.dumps(event), flush=True)
        elif "digest" in event:
            self._totals[event["digest"]], self._done[event["digest"]] = event["total"], event["completed"]
            self._draw(sum(self._done.values()), sum(self._totals.values()))
        elif event["status"] != self._status:
            self._status = event["status"]
            if self._bars is None or self._status.startswith(("picked", "waiting")):
                print(clean(self._status), file=sys.stderr)
            else:
                self._bars.update(self._task, description=clean(self._status))

    def _draw(self, done: int, total: int) -> None:
        if self._bars is not None:
            self._bars.update(self._task, description=self._label, completed=done, total=total)
        elif (tenth := 10 * done // max(total, 1)) > self._tenth:
            self._tenth = tenth
            print(f"{self._label}: {tenth * 10} %", file=sys.stderr)
