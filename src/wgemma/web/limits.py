"""Bounds how long a client may keep the server waiting, and how many may connect.

Uvicorn limits the pause between two requests of a connection. This protocol also limits the time for a request's head,
drops a connection whose client neither sends nor takes what it has to, and refuses connections beyond a number.
"""

from asyncio import TimerHandle, Transport
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    head: float = 10  # seconds for a request's head, from connecting or from its first byte
    pause: int = 5  # seconds between a response and the next request
    stall: float = 60  # seconds in which the client moves no byte of a body
    connections: int = 128


_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"Too many connections are open. Try again later.\n"
)


class LimitedProtocol(H11Protocol):
    """One connection. Subclass it for other limits."""

    limits = Limits()
    _head: TimerHandle | None = None
    _stall: TimerHandle | None = None
    _moves = 0  # of bytes in and out

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(_FULL)
            transport.close()
        self._expect_head()
        self._look((0, 0))

    def data_received(self, data: bytes) -> None:
        self._moves += 1
        if not self._is_answering():
            self._expect_head()
        super().data_received(data)
        if self._is_answering() and self._head:
            self._head.cancel()
            self._head = None

    def resume_writing(self) -> None:
        self._moves += 1
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._stall):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        """Starts the clock for a request's head; more bytes do not restart it."""
        self._head = self._head or self.loop.call_later(self.limits.head, self.transport.abort)

    def _look(self, before: tuple[int, int]) -> None:
        """Drops the connection if it is the client's turn and nothing has moved since the last look."""
        unsent = self.transport.get_write_buffer_size()
        now = (self._moves, unsent)
        if now == before and (unsent or (self._is_answering() and self.cycle.more_body)):
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(self.limits.stall, self._look, now)
