"""Many answers at once: a stream of (index, part) as they come, and the whole answers for whoever asks for them."""

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wgemma.answers import WholeAnswer
from wgemma.engine.continuing import Piece
from wgemma.engine.endings import Ending
from wgemma.engine.replying import Part
from wgemma.errors import Error, SessionError
from wgemma.habits import dead_end
from wgemma.together import Begin, merged, together

T = TypeVar("T", bound=Part | Piece)


class _Many(Generic[T]):
    """What has arrived of many answers, for those who want them whole."""

    def __init__(self) -> None:
        self._whole: list[WholeAnswer[T]] | None = None
        self._read = False  # parts were passed on, and not kept
        self._done = self._closed = False
        self._error: Error | None = None

    def _take(self, index: int, item: Any) -> bool:
        """Notes an item; returns whether it is for the reader."""
        if isinstance(item, Error):
            item.add_note(f"This is about number {index}, counted from 0.")
        if self._whole is not None:
            while len(self._whole) <= index:
                self._whole.append(WholeAnswer())
            self._whole[index].arrived(item)
        elif isinstance(item, Error):
            self._error = self._error or item
        self._read = True
        return not isinstance(item, Ending | Error)

    def _end(self) -> None:
        """All are complete: raises the first error, unless the whole answers tell it."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _keep(self) -> list[WholeAnswer[T]]:
        """From now on everything is kept."""
        if self._closed or self._whole is not None:
            raise SessionError("the answers ended before they were complete: they were closed, or an error came.")
        if self._read:
            raise SessionError("the parts of these answers that were read are not kept. Ask for all before iterating.")
        self._whole = []
        return self._whole


class Answers(_Many[T], Iterator[tuple[int, T]]):
    """Many answers that are being written. Iterate over (index, part) as they come, or ask for all of them:

        for index, part in model.chat_many(chats):
            print(index, part.text)

        print(model.generate_many(prompts).texts)

    An error ends its own answer only; it is raised after all others are complete. Leaving the loop and dropping this,
    `close()`, or the end of a `with` block cancels what is still being written.
    """

    def __init__(self, begins: Iterable[Begin], most: int) -> None:
        super().__init__()
        self._items = together(begins, most)

    def __next__(self) -> tuple[int, T]:
        for index, item in self._items:
            if self._take(index, item):
                return index, item
        self._end()
        raise StopIteration

    @property
    def answers(self) -> list[WholeAnswer[T]]:
        """All of them, in the order of the prompts, each with `text`, `usage`, `finish_reason` and the other properties
        of an `Answer`, and its `error` if one ended it. Ask before iterating: parts that were read are not kept."""
        if not self._done:
            self._keep()
            for _ in self:
                pass
            self._done = True
        assert self._whole is not None
        return self._whole

    @property
    def texts(self) -> list[str]:
        """The text of each; raises the first error."""
        return [_text(answer) for answer in self.answers]

    def close(self) -> None:
        """Cancels what is still being written."""
        self._closed = True
        self._items.close()

    def __enter__(self) -> "Answers[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:
        __await__ = dead_end("this is not awaited: write await model.achat_many(…) or model.agenerate_many(…).")
        __getitem__ = dead_end("answers come as they are written: take .answers[i], or iterate over (index, part).")


class AsyncAnswers(_Many[T], AsyncIterator[tuple[int, T]]):
    """`Answers`, for code that runs in an event loop. Iterate with `async for`, or await the list of whole answers:

        async for index, part in model.achat_many(chats):
            print(index, part.text)

        print([answer.text for answer in await model.agenerate_many(prompts)])

    `aclose()`, or the end of an `async with` block, cancels what is still being written.
    """

    def __init__(self, begins: Iterable[Begin], most: int) -> None:
        super().__init__()
        self._items = merged(begins, most)

    async def __anext__(self) -> tuple[int, T]:
        async for index, item in self._items:
            if self._take(index, item):
                return index, item
        self._end()
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, list[WholeAnswer[T]]]:
        return self._complete().__await__()

    async def _complete(self) -> list[WholeAnswer[T]]:
        if not self._done:
            self._keep()
            async for _ in self:
                pass
            self._done = True
        assert self._whole is not None
        return self._whole

    async def aclose(self) -> None:
        """Cancels what is still being written."""
        self._closed = True
        await self._items.aclose()

    async def __aenter__(self) -> "AsyncAnswers[T]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:
        __iter__ = dead_end("these answers are read in an event loop: write `async for`, or call the plain name.")


def _text(answer: WholeAnswer[Any]) -> str:
    if answer.error is not None:
        raise answer.error
    return answer.text
