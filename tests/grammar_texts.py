"""Texts and grammars, for tests: how a value is written in the order a grammar wants, and walks that end."""

import json
import random
from collections.abc import Iterator
from typing import Any

from wgemma.text.grammar import Grammar, State

_MOST_STEPS = 500


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    state = grammar.advance_all(grammar.start, text.encode() if isinstance(text, str) else text)
    return state is not None and grammar.accepts(state)


class Speller:
    """Writes values like `json.dumps`, with the keys of objects in whatever order the grammar takes."""

    def __init__(self, grammar: Grammar, schema: Any = None, ensure_ascii: bool = True) -> None:
        self.grammar = grammar
        self.ensure_ascii = ensure_ascii
        self.order: dict[str, int] = {}
        self.orders: list[dict[str, int]] = []
        self._note(schema)
        self._steps = 0

    def accepts(self, value: Any) -> bool:
        self._steps = 0
        return any(state.accepts for state in self._write(self.grammar.start, value))

    def _note(self, schema: Any) -> None:
        """Names in the order in which the schema has them: a good guess at the order of keys."""
        if isinstance(schema, dict):
            for name, inner in schema.items():
                self.order.setdefault(name, len(self.order))
                self._note(inner)
            self.orders.append({name: i for i, name in enumerate(schema)})
        elif isinstance(schema, list):
            for inner in schema:
                if isinstance(inner, str):
                    self.order.setdefault(inner, len(self.order))
                self._note(inner)

    def _sorted(self, value: dict[str, Any]) -> list[str]:
        """The keys in the most likely order: as in the part of the schema that knows most of them."""
        best = max(self.orders, key=lambda names: len(names.keys() & value.keys()), default={})
        return sorted(value, key=lambda key: (best.get(key, 1 << 30), self.order.get(key, 1 << 30)))

    def _after(self, state: State | None, text: str) -> State | None:
        return self.grammar.advance_all(state, text.encode())

    def _dumped(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=self.ensure_ascii)

    def _write(self, state: State, value: Any) -> Iterator[State]:
        """The states after a value, one per order of its keys."""
        if isinstance(value, dict):
            keys = self._sorted(value)
            start = self._after(state, "{")
            if start is not None:
                yield from self._members(start, value, tuple(keys), "", set())
        elif isinstance(value, list):
            start = self._after(state, "[")
            if start is not None:
                yield from self._items(start, value, 0)
        else:
            after = self._after(state, self._dumped(value))
            if after is not None:
                yield after

    def _members(
        self, state: State, value: dict[str, Any], keys: tuple[str, ...], comma: str, seen: set[Any]
    ) -> Iterator[State]:
        self._steps += 1
        if (state, keys) in seen or self._steps > _MOST_STEPS:
            return
        seen.add((state, keys))
        if not keys and (after := self._after(state, "}")) is not None:
            yield after
        for key in keys:
            if self._steps > _MOST_STEPS:
                return
            inner = self._after(state, f"{comma}{self._dumped(key)}: ")
            if inner is not None:
                rest = tuple(other for other in keys if other != key)
                for after in self._write(inner, value[key]):
                    yield from self._members(after, value, rest, ", ", seen)

    def _items(self, state: State, value: list[Any], index: int) -> Iterator[State]:
        if index == len(value):
            after = self._after(state, "]")
            if after is not None:
                yield after
            return
        inner = self._after(state, ", ") if index else state
        if inner is not None:
            for after in self._write(inner, value[index]):
                yield from self._items(after, value, index + 1)


def walk(grammar: Grammar, seed: int, most: int = 1500) -> bytes | None:
    """A random text of the grammar; None if it does not end in time. Asserts that there is always a way on."""
    draw = random.Random(seed)
    state, text = grammar.start, bytearray()
    while len(text) < most:
        allowed = grammar.allowed(state)
        choices = [byte for byte in range(256) if allowed >> byte & 1]
        assert choices or state.accepts, f"a dead end after {bytes(text)!r}"
        assert bool(choices) != grammar.only_ends(state)
        if state.accepts and (not choices or draw.random() < 0.2):
            return bytes(text)
        closing = [byte for byte in b'"}]' if byte in choices]
        if closing and draw.random() < 0.1 + len(text) / 300:
            byte = closing[0]
        else:
            plain = [byte for byte in choices if 0x20 <= byte < 0x7F]
            byte = draw.choice(plain if plain and draw.random() < 0.9 else choices)
        following = grammar.advance(state, byte)
        assert following is not None, f"{byte} was allowed after {bytes(text)!r}"
        text.append(byte)
        state = following
    return None
