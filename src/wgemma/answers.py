"""What `chat` and `generate` return: a stream to iterate over, and the whole answer for whoever asks for it."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from wgemma.engine.continuing import Piece
from wgemma.engine.endings import Ending, FinishReason, TokenLogprob, Usage
from wgemma.engine.replying import Part
from wgemma.errors import Error, SessionError
from wgemma.functions import ToolStep
from wgemma.habits import dead_end
from wgemma.sync import iterate
from wgemma.text.reply import ToolCall
from wgemma.together import Begin, Numbered, merged, together

T = TypeVar("T", bound=Part | Piece | ToolStep)

_AS_A_DICT = "an answer is no dictionary: write answer.text, answer.tool_calls, answer.usage or answer.message."


class Whole(Generic[T]):
    """An answer as far as it has arrived. Each property is about the whole of it: `_read` makes sure of that."""

    def __init__(self) -> None:
        self._arrived: list[T] = []
        self._ending: Ending | None = None
        self._parsed: list[Any] = []  # the object, once somebody asked for it
        self._over = False  # the stream has ended, or an error ended it
        self._closed = False  # before its end

    def _take(self, item: T | Ending) -> T | None:
        """Notes what the stream yields; returns what is for the reader."""
        if isinstance(item, Ending):
            self._ending = item
            return None
        self._arrived.append(item)
        return item

    def _read(self) -> list[T]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The answer itself, without its thinking."""
        return "".join(item.text for item in self._read() if not (isinstance(item, Part) and item.kind == "thinking"))

    @property
    def parsed(self) -> Any:
        """The object that `format` describes: an instance of its class, a JSON value, or the text for a Regex, Choice
        or Grammar. None if there is no format, or if a stop string, a limit or a tool call ended the answer."""
        text = self.text
        if self._ending is None or self._ending.parse is None:
            return None
        if not self._parsed:
            self._parsed = [self._ending.parse(text)]
        return self._parsed[0]

    @property
    def thinking(self) -> str:
        """What the model thought before it answered; empty unless `think` was set."""
        return "".join(item.text for item in self._read() if isinstance(item, Part) and item.kind == "thinking")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools the model called. The list can go back as it is, as the `tool_calls` of an assistant message."""
        return [item.tool_call for item in self._read() if isinstance(item, Part) and item.tool_call is not None]

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message to append to a chat, ready for JSON. Calls that could not be read are left out."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            said["thinking"] = self.thinking
        calls = [call for call in self.tool_calls if call.error is None]
        if calls:
            said["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        return said

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended: "stop", "length", "tool" or "cancelled"; None if an error ended it."""
        self._read()
        return self._reason

    @property
    def usage(self) -> Usage | None:
        """The tokens it took; None if it was closed before its end."""
        self._read()
        return self._ending.usage if self._ending else None

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The log-probabilities of its tokens; empty unless `logprobs` was set."""
        return [token for item in self._read() if not isinstance(item, ToolStep) for token in item.logprobs]

    @property
    def prompt_logprobs(self) -> list[TokenLogprob]:
        """Those of the prompt's tokens, from the second on, if `logprobs` was set and `max_tokens` was 0."""
        self._read()
        return list(self._ending.prompt_logprobs) if self._ending else []

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = f"finish_reason {self._reason}" if self._reason else "not complete yet; .text is all of it"
        return f"<wgemma.{type(self).__name__}, {len(self._arrived)} parts: {state}>"

    @property
    def _reason(self) -> FinishReason | None:
        """Why it ended, if it has."""
        return self._ending.finish_reason if self._ending else "cancelled" if self._closed else None

    if not TYPE_CHECKING:
        __getitem__ = dead_end(_AS_A_DICT)


class WholeAnswer(Whole[T]):
    """An answer that came beside others, with the properties of an `Answer`; `error` is what ended it, if anything."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Error | None = None

    def arrived(self, item: T | Ending | Error) -> None:
        """The next part, its ending, or the error that ended it."""
        if isinstance(item, Error):
            self.error = item
        else:
            self._take(item)

    def _read(self) -> list[T]:
        return self._arrived


class _Chosen(Whole[T]):
    """An answer that may have alternatives; it is the first of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._others = [WholeAnswer[T]() for _ in range(count - 1)]

    def _note(self, index: int, item: T | Ending) -> T | None:
        """Notes what alternative `index` yields; returns what is for the reader."""
        if isinstance(item, Error):
            raise item
        if index == 0:
            return self._take(item)
        said = item if isinstance(item, Ending | ToolStep) else replace(item, index=index)
        return self._others[index - 1]._take(said)

    def _close(self) -> None:
        self._closed = self._closed or not self._over
        for other in self._others:
            other._closed = self._closed

    @property
    def alternatives(self) -> list[WholeAnswer[T]]:
        """All `n` answers, this one first, each with the same properties."""
        first = WholeAnswer[T]()
        first._arrived, first._ending, first._closed = self._read(), self._ending, self._closed
        return [first, *self._others]


class Answer(_Chosen[T], Iterator[T]):
    """An answer that is being written. Iterate over it, or ask for all of it:

        for part in model.chat(messages):
            print(part.text, end="")

        print(model.chat(messages).text)

    `text` and the other properties first read what has not been read yet; after that, iterating yields nothing more.
    Leaving the loop and dropping the answer cancels it, and so does `close()` or the end of a `with` block; the
    properties then tell what had arrived.
    """

    def __init__(self, *streams: AsyncGenerator[T | Ending, None], most: int = 1) -> None:
        super().__init__(len(streams))
        self._stream = iterate(_numbered(streams[0])) if len(streams) == 1 else together(_begun(streams), most)

    def __next__(self) -> T:
        try:
            for index, item in self._stream:
                shown = self._note(index, item)
                if shown is not None:
                    return shown
        except BaseException:
            self._over = True
            raise
        self._over = True
        raise StopIteration

    def _read(self) -> list[T]:
        for _ in self:
            pass
        return self._arrived

    def close(self) -> None:
        """Cancels the answer; does nothing if it has ended."""
        self._close()
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:
        __await__ = dead_end("chat() and generate() are not awaited: write await model.achat(…) or model.agenerate(…).")


class AsyncAnswer(_Chosen[T], AsyncIterator[T]):
    """An answer that is being written, for code that runs in an event loop. Iterate over it, or await all of it:

        async for part in model.achat(messages):
            print(part.text, end="")

        print((await model.achat(messages)).text)

    Once it is complete, it has the same properties as an `Answer`. `aclose()` or the end of an `async with` block
    cancels it.
    """

    def __init__(self, *streams: AsyncGenerator[T | Ending, None], most: int = 1) -> None:
        super().__init__(len(streams))
        self._stream = _numbered(streams[0]) if len(streams) == 1 else merged(_begun(streams), most)

    async def __anext__(self) -> T:
        try:
            async for index, item in self._stream:
                shown = self._note(index, item)
                if shown is not None:
                    return shown
        except BaseException:
            self._over = True
            raise
        self._over = True
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Self]:
        return self._complete().__await__()

    async def _complete(self) -> Self:
        async for _ in self:
            pass
        return self

    def _read(self) -> list[T]:
        if not (self._ending or self._over):
            raise SessionError("this answer is not complete: write `answer = await model.achat(…)` to wait for all.")
        return self._arrived

    def _repr_markdown_(self) -> str:
        return self.text if self._ending or self._over else repr(self)

    async def aclose(self) -> None:
        """Cancels the answer; does nothing if it has ended."""
        self._close()
        self._over = True
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:
        __iter__ = dead_end("this answer is read in an event loop: write `async for`, or call chat() or generate().")


async def _numbered(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Numbered, None]:
    """A stream without alternatives."""
    async with aclosing(stream):
        async for item in stream:
            yield 0, item


def _begun(streams: Iterable[AsyncGenerator[Any, None]]) -> Iterator[Begin]:
    """Alternatives, each to be begun."""
    for stream in streams:
        yield partial(_itself, stream)


def _itself(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    return stream
