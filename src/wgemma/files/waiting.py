"""Waiting for servers: while one is silent, whoever waits hears of it, and may stop."""

from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

from wgemma.files.events import Event

T = TypeVar("T")
PATIENCE = 3.0  # seconds without an answer before that is told, and told again


def patiently(work: Callable[[], T], whom: str) -> Generator[Event, None, T]:
    """The result of `work`, which asks `whom`. It is done in a thread: Ctrl-C, or closing the generator, need not wait
    for an answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not wait([future], PATIENCE).done:
        yield {"status": f"waiting for {whom}"}
    return future.result()
