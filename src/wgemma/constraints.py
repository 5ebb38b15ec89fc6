"""From what a call wants its answer to look like to a constraint that the engine follows; one set of them per model."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from threading import Lock
from typing import Any

from wgemma.engine.constraint import Alphabet, Constraint
from wgemma.errors import GrammarError
from wgemma.sync import in_event_loop
from wgemma.text.grammar import Grammar, compile_tools
from wgemma.text.tokenizer import Tokenizer

_MOST = 64  # constraints kept for the next call, with their masks


class Constraints:
    """A model's constraints."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._alphabet: Alphabet | None = None
        self._kept: OrderedDict[Hashable, Constraint] = OrderedDict()
        self._lock = Lock()

    def of(
        self,
        text: Grammar | None,
        tools: Sequence[Mapping[str, Any]] | None,
        choice: str | None = None,
        *,
        parallel: bool = True,
        thinks: bool = False,
        forces: bool = True,
    ) -> Constraint | None:
        """The constraint of an answer whose text follows a grammar, if there is one, and that may call `tools`: as its
        `choice` says, "auto", "none", "required", or the name of the one to call. None if anything may follow."""
        if text is None and not tools:
            return None
        declared = _canonical(tools) if tools and choice != "none" else None
        key = (text, declared, choice, parallel, thinks, forces)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        named = choice if choice not in (None, "auto", "none", "required") else None
        constraint = Constraint(
            self.alphabet,
            text=text if named is None and choice != "required" else None,
            calls=compile_tools(tools or (), named) if declared is not None else None,
            required=choice == "required" or named is not None,
            parallel=parallel and named is None,
            thinks=thinks,
            forces=forces,
        )
        with self._lock:
            self._kept[key] = constraint
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return constraint

    def alphabet(self) -> Alphabet:
        """The model's tokens as grammars see them, made when first needed; that takes a moment."""
        with self._lock:
            if self._alphabet is None:
                self._alphabet = Alphabet(self._tokenizer)
            return self._alphabet

    async def prepare(self) -> None:
        """Makes the alphabet without keeping an event loop waiting, where there are threads."""
        if self._alphabet is None and in_event_loop() and sys.platform != "emscripten":
            await asyncio.to_thread(self.alphabet)
        self.alphabet()


def _canonical(tools: Any) -> str:
    try:
        return json.dumps(tools)
    except (TypeError, ValueError, RecursionError) as problem:
        raise GrammarError(f"the tools are no JSON: {problem}.") from None
