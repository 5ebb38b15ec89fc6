"""From what a call wants its answer to look like to a constraint that the engine follows; one set of them per model."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from wgemma.checks import shown, yes_or_no
from wgemma.engine.constraint import Alphabet, Constraint
from wgemma.errors import GrammarError, SettingsError
from wgemma.sync import in_event_loop
from wgemma.text.grammar import Grammar, compile_tools
from wgemma.text.tokenizer import Tokenizer

_MOST = 64  # constraints kept for the next call, with their masks
_CHOICES = ("auto", "none", "required")


class Wanted(NamedTuple):
    """What the text of an answer follows, whether it may think, and whether forced text may go without being drawn."""

    text: Grammar | None = None
    thinks: bool = False
    forces: bool = True


class Constraints:
    """A model's constraints."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._alphabet: Alphabet | None = None
        self._kept: OrderedDict[Hashable, Constraint] = OrderedDict()
        self._lock, self._making = Lock(), Lock()

    def of(
        self,
        wanted: Wanted,
        tools: Sequence[Mapping[str, Any]] | None = None,
        choice: str | None = None,
        parallel: bool = True,
    ) -> Constraint | None:
        """The constraint of an answer that may call `tools`, as its `choice` says: "auto", "none", "required", or the
        name of the one to call. None if anything may follow."""
        check_choice(tools, choice)
        yes_or_no("parallel_tool_calls", parallel)
        if wanted.text is None and not tools:
            return None
        key = (wanted, _canonical(tools) if tools else "", choice, parallel)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        constraint = self._make(wanted, tools or (), choice, parallel)
        with self._lock:
            self._kept[key] = constraint
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return constraint

    def _make(self, wanted: Wanted, tools: Sequence[Any], choice: str | None, parallel: bool) -> Constraint:
        named = None if choice in (None, *_CHOICES) else choice
        required = choice == "required" or named is not None
        return Constraint(
            self.alphabet,
            text=None if required else wanted.text,
            calls=compile_tools(tools, named) if tools and choice != "none" else None,
            required=required,
            parallel=parallel and named is None,
            thinks=wanted.thinks,
            forces=wanted.forces,
        )

    def alphabet(self) -> Alphabet:
        """The model's tokens as grammars see them, made when first needed; that takes a moment."""
        with self._making:
            if self._alphabet is None:
                self._alphabet = Alphabet(self._tokenizer)
            return self._alphabet

    async def prepare(self, constraint: Constraint | None) -> None:
        """Makes the alphabet that a constraint needs, without keeping an event loop waiting where there are threads."""
        if constraint is None:
            return
        if self._alphabet is None and in_event_loop() and sys.platform != "emscripten":
            await asyncio.to_thread(self.alphabet)
        self.alphabet()


def check_choice(tools: Sequence[Any] | None, choice: Any) -> None:
    """Raises `SettingsError` for a `tool_choice` that is none."""
    if choice is None or (isinstance(choice, str) and choice in ("auto", "none")):
        return
    if not isinstance(choice, str) or choice == "any":
        raise SettingsError(
            f'tool_choice is {shown(choice)}; it must be "auto", "none", "required" or the name of a tool.'
        )
    if not tools:
        raise SettingsError(f"tool_choice is {shown(choice)}, but there are no tools.")
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    if choice != "required" and choice not in names:
        raise SettingsError(f"tool_choice is {shown(choice)}; there is no such tool, only {shown(names)}.")


def _canonical(tools: Any) -> str:
    try:
        return json.dumps(tools)
    except (TypeError, ValueError, RecursionError) as problem:
        raise GrammarError(f"the tools are no JSON: {problem}.") from None
