"""Shows the progress of work on a store: a bar on a terminal, a line per step and per 10 % elsewhere, or JSON."""

import json
import sys
from contextlib import closing
from types import TracebackType
from typing import Any

from wgemma.cli.output import clean
from wgemma.files.events import Event, Work


def follow(work: Work, label: str, *, as_json: bool = False) -> None:
    """Does the work, which `label` describes, and shows how far it is."""
    with Follower(label, as_json=as_json) as follower, closing(work) as events:
        for event in events:
            follower.hear(event)


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
            if self._bars is None or self._status.startswith(("picked", "left out", "waiting")):
                print(clean(self._status), file=sys.stderr)
            else:
                self._bars.update(self._task, description=clean(self._status))

    def _draw(self, done: int, total: int) -> None:
        if self._bars is not None:
            self._bars.update(self._task, description=self._label, completed=done, total=total)
        elif (tenth := 10 * done // max(total, 1)) > self._tenth:
            self._tenth = tenth
            print(f"{self._label}: {tenth * 10} %", file=sys.stderr)
