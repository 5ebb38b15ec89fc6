"""A chat with a model, beside others."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from wgemma.answering import Answering
from wgemma.answers import Answer, AsyncAnswer
from wgemma.checks import all_checked, whole
from wgemma.engine.adapting import Setting
from wgemma.engine.endings import Ending
from wgemma.engine.prefix import Replies
from wgemma.engine.replying import Part
from wgemma.engine.saved import Kept
from wgemma.errors import SessionError, SettingsError
from wgemma.files.paths import user_path
from wgemma.functions import Function, functions_of
from wgemma.habits import refuse_unknown_options
from wgemma.options import ChatOptions, RunToolsOptions
from wgemma.sync import run
from wgemma.tool_runs import AsyncToolRun, Item, ToolRun, rounds


@all_checked
class Conversation:
    """One of several chats with a model; `model.conversation()` begins it. Chats run at the same time, each remembers
    its own replies, and what their prompts have in common is computed once.
    """

    def __init__(self, model: Answering, replies: Replies | None = None, kept: Kept | None = None) -> None:
        self._model = model
        self._replies = replies or Replies()
        self._kept = kept or Kept()

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Answer[Part]:
        """Streams the reply to `messages`, like `Model.chat`, with the same options."""
        return Answer(*self._model._chat("chat", **options)(self, messages), most=self._model._at_a_time)

    def achat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> AsyncAnswer[Part]:
        """`chat`, for code that runs in an event loop: iterate with `async for`, or await the whole answer."""
        return AsyncAnswer(*self._model._chat("chat", **options)(self, messages), most=self._model._at_a_time)

    def run_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        rounds: int = 8,
        **options: Unpack[RunToolsOptions],
    ) -> ToolRun:
        """Calls tools until there is an answer, like `Model.run_tools`, with the same options."""
        functions = functions_of(tools)
        for name, function in functions.items():
            if function.is_async:
                raise SettingsError(f"the tool {name} is async: write await model.arun_tools(…).")
        return ToolRun(*self._rounds(messages, functions, rounds, options))

    def arun_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        rounds: int = 8,
        **options: Unpack[RunToolsOptions],
    ) -> AsyncToolRun:
        """`run_tools`, for code that runs in an event loop: iterate with `async for`, or await the answer."""
        return AsyncToolRun(*self._rounds(messages, functions_of(tools), rounds, options))

    def _rounds(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Mapping[str, Function],
        most: int,
        options: RunToolsOptions,
    ) -> tuple[AsyncGenerator[Item, None], list[dict[str, Any]]]:
        """The stream of a run, and its chat, which grows."""
        refuse_unknown_options("run_tools", options)
        most = whole("rounds", most, 1)
        tools = [function.declaration for function in functions.values()]
        begin = self._model._chat("run_tools", tools=tools, **options)
        first = begin(self, messages)[0]
        if options.get("tool_choice") != "none":  # a call that is asked for is the first one
            freely: RunToolsOptions = {**options, "tool_choice": None}
            begin = self._model._chat("run_tools", tools=tools, **freely)
        chat = [dict(message) for message in messages]

        def ask(messages: Sequence[Mapping[str, Any]]) -> AsyncGenerator[Part | Ending, None]:
            return begin(self, messages)[0]

        return rounds(first, ask, chat, functions, most, options.get("cancel")), chat

    def fork(self) -> "Conversation":
        """Another conversation that begins as this one stands."""
        return Conversation(self._model, self._replies.copy(), self._kept)

    def save(self, path: str | Path) -> None:
        """Saves this chat to the file `path`: its tokens and their KV cache."""
        file = user_path(path, SessionError)
        run(self._model._in_turn(lambda: self._model.backend.save(self._kept, file)))

    def restore(self, path: str | Path) -> None:
        """Restores a chat saved to `path` from the same model; any other file raises an error and changes nothing."""
        file = user_path(path, SessionError)
        self._kept = run(self._model._in_turn(lambda: self._model.backend.restore(file)))
        self._replies = Replies()

    def reset(self) -> None:
        """Forgets the chat."""
        self._replies, self._kept = Replies(), Kept()

    def _keep(self, adapter: Setting, ids: list[int]) -> None:
        """These tokens are computed now."""
        self._kept = Kept(ids, adapter)

    def __repr__(self) -> str:
        return f"<wgemma.Conversation with {self._model.name}, {len(self._kept.ids)} tokens>"
