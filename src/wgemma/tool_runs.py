"""What `run_tools` returns: replies, the calls in them and their results, until there is an answer.

A round is a reply and the calls in it. Text, usage and the other properties are those of the last reply.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from inspect import isawaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wgemma.answers import Answer, AsyncAnswer, Whole, WholeAnswer
from wgemma.engine.endings import Ending, FinishReason
from wgemma.engine.replying import Part
from wgemma.engine.request import Cancel
from wgemma.errors import Error
from wgemma.functions import Function, ToolStep, told
from wgemma.habits import dead_end
from wgemma.sync import in_event_loop
from wgemma.text.reply import ToolCall

Item: TypeAlias = Part | ToolStep | Ending
Ask: TypeAlias = Callable[[list[dict[str, Any]]], AsyncGenerator[Part | Ending, None]]

_GLANCE = 0.05  # seconds until a run that awaits tools looks again whether it is cancelled
_ROUND: Final[Any] = object()  # begins a round
_CANCELLED = "the run was cancelled"
_CUT = "the reply was cut off before the call was complete"


class _Run(Whole[Part | ToolStep]):
    """The rounds as far as they have come."""

    _messages: list[dict[str, Any]]
    _steps: list[ToolStep]

    def _take(self, item: Item) -> Part | ToolStep | None:
        if item is _ROUND:
            self._arrived, self._ending = [], None
            return None
        if isinstance(item, ToolStep):
            self._steps.append(item)
            return item
        return super()._take(item)

    @property
    def _reason(self) -> FinishReason | None:
        return "cancelled" if self._closed else super()._reason

    @property
    def steps(self) -> list[ToolStep]:
        """All calls of tools and their results, in order."""
        self._read()
        return self._steps

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole chat: what was asked, the replies, the results of tools and the answer. The next call takes it as
        it is."""
        self._read()
        return self._messages


class ToolRun(_Run, Answer[Part | ToolStep]):
    """Replies and calls of tools, until there is an answer. Iterate over it, or ask for the answer:

        for item in model.run_tools(messages, [weather]):
            print(item if item.kind == "tool_result" else item.text)

        print(model.run_tools(messages, [weather]).text)

    Iterating yields the parts of every reply, and a `ToolStep` after each call. `text`, `parsed`, `usage` and the
    other properties are those of the last reply. Its `finish_reason` is "tool" if the rounds ran out: the calls were
    made, and `messages` end with their results.
    """

    def __init__(self, stream: AsyncGenerator[Item, None], messages: list[dict[str, Any]]) -> None:
        super().__init__(stream)
        self._messages, self._steps = messages, []

    if not TYPE_CHECKING:
        __await__ = dead_end("run_tools() is not awaited: write await model.arun_tools(…).")


class AsyncToolRun(_Run, AsyncAnswer[Part | ToolStep]):
    """`ToolRun`, for code that runs in an event loop: iterate with `async for`, or await the answer. Tools that are
    async are awaited, those of one reply together."""

    def __init__(self, stream: AsyncGenerator[Item, None], messages: list[dict[str, Any]]) -> None:
        super().__init__(stream)
        self._messages, self._steps = messages, []


async def rounds(
    first: AsyncGenerator[Part | Ending, None],
    ask: Ask,
    messages: list[dict[str, Any]],
    functions: Mapping[str, Function],
    most: int,
    cancel: Cancel | None,
) -> AsyncGenerator[Item, None]:
    """`first` is the first reply, and `ask` begins another. `messages` grow as the chat does."""
    for number in range(most):
        yield _ROUND
        reply, ending = WholeAnswer[Part](), None
        async with aclosing(ask([*messages]) if number else first) as items:
            async for item in items:
                ending = item if isinstance(item, Ending) else ending
                reply.arrived(item)
                yield item
        messages.append(_message(reply))
        calls = reply.tool_calls
        if not calls:
            return
        cut = ending is None or not ending.complete
        async with aclosing(_steps(calls, functions, cut, cancel)) as steps:
            async for step, result in steps:
                messages.append({"role": "tool", **({"name": step.name} if step.name else {}), "content": result})
                yield step
        if ending is not None and _is_set(cancel):
            yield replace(ending, finish_reason="cancelled")
            return


def _message(reply: WholeAnswer[Part]) -> dict[str, Any]:
    """The reply as a message. A call that could not be read stays as the model wrote it: it has a result, too."""
    readable = iter(reply.message.get("tool_calls", []))
    calls = [call if call.error is not None else next(readable) for call in reply.tool_calls]
    return {**reply.message, **({"tool_calls": calls} if calls else {})}


# -- calls

_Outcome: TypeAlias = tuple[ToolStep, str]  # a step, and what the model is told


async def _steps(
    calls: list[ToolCall], functions: Mapping[str, Function], cut: bool, cancel: Cancel | None
) -> AsyncGenerator[_Outcome, None]:
    """What comes of the calls, in their order. Coroutines run together; everything else runs when it is its turn. The
    last call of a reply that was cut off is not made."""
    waiting: list[_Outcome | asyncio.Task[_Outcome]] = []
    try:
        for number, call in enumerate(calls):
            if _is_set(cancel):
                begun: Any = _failed(call, _CANCELLED)
            elif cut and number == len(calls) - 1:
                begun = _failed(call, _CUT)
            else:
                begun = _begin(call, functions)
            waiting.append(begun)
            while waiting and isinstance(waiting[0], tuple):
                yield waiting.pop(0)  # type: ignore[misc]
        for number, step in enumerate(waiting, len(calls) - len(waiting)):
            yield step if isinstance(step, tuple) else await _awaited(step, calls[number], cancel)
    finally:
        tasks = [step for step in waiting if isinstance(step, asyncio.Task)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


def _begin(call: ToolCall, functions: Mapping[str, Function]) -> _Outcome | asyncio.Task[_Outcome]:
    """Makes the call; a coroutine becomes a task."""
    if call.error is not None:
        return _failed(call, call.error)
    function = functions.get(call.name)
    if function is None:
        return _failed(call, f"there is no tool named {call.name}; there are {', '.join(functions)}")
    begun = perf_counter()
    try:
        result = function.call(**function.arguments(call.arguments))
        if not isawaitable(result):
            return _succeeded(call, result, begun)
    except Exception as problem:
        return _failed(call, _described(problem), begun)
    if in_event_loop():
        return asyncio.ensure_future(_complete(call, result, begun))
    if isinstance(result, Coroutine):
        result.close()
    return _failed(call, f"{call.name} is async, which needs arun_tools()")


async def _complete(call: ToolCall, result: Any, begun: float) -> _Outcome:
    try:
        return _succeeded(call, await result, begun)
    except Exception as problem:
        return _failed(call, _described(problem), begun)


async def _awaited(task: asyncio.Task[_Outcome], call: ToolCall, cancel: Cancel | None) -> _Outcome:
    """What comes of a task, which ends early if the run is cancelled."""
    while not task.done():
        await asyncio.wait([task], timeout=_GLANCE if cancel is not None else None)
        if _is_set(cancel):
            task.cancel()
    return _failed(call, _CANCELLED) if task.cancelled() else task.result()


def _succeeded(call: ToolCall, result: Any, begun: float) -> _Outcome:
    seconds = perf_counter() - begun
    return ToolStep(call.name, call.arguments, result, seconds=seconds), told(result)


def _failed(call: ToolCall, error: str, begun: float | None = None) -> _Outcome:
    seconds = perf_counter() - begun if begun is not None else 0.0
    return ToolStep(call.name, call.arguments, error=error, seconds=seconds), told({"error": error})


def _described(problem: Exception) -> str:
    """An exception as the model is told it; ours are sentences."""
    if isinstance(problem, Error):
        return str(problem)
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__


def _is_set(cancel: Cancel | None) -> bool:
    return cancel is not None and cancel.is_set()
