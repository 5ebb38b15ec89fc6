"""Which tokens may follow: the vocabulary, ordered so that a grammar can be walked over it.

Tokens are sorted by their bytes; a node of the trie is a range of them and is only made when a walk comes by. Runs (see
`runs`) decide most tokens of a string at once, by sets that are kept per vocabulary. What remains is walked, in slices,
and masks are kept per state.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from wgemma.text.grammar.automaton import Grammar, State
from wgemma.text.grammar.runs import ENDLESS, NOT_ASCII, Run, Runs

_SLICE = 0.003  # seconds between two chances to do something else
_KEPT = 512  # masks; each takes a bit per token
_LARGE = 32  # tokens below a node that make it worth looking for a shortcut
_HUGE = 1024  # tokens below a node that make it worth keeping them as a set
_CHUNK = 2048
_JSON = ((1 << 128) - (1 << 32)) & ~(1 << 0x22) & ~(1 << 0x5C) | NOT_ASCII  # plain characters of a JSON string

T = TypeVar("T")
Masking = Generator[None, None, bytes]


class _Node:
    """The tokens `low … high` of the sorted vocabulary: all that start with the same `depth` bytes."""

    __slots__ = ("characters", "children", "depth", "ends", "high", "low", "set")

    def __init__(self, low: int, high: int, depth: int) -> None:
        self.low, self.high, self.depth = low, high, depth
        self.ends = low  # tokens low … ends are complete here
        self.children: list[tuple[int, _Node]] | None = None
        self.characters: int | None = None
        self.set: int | None = None


class TokenIndex:
    """The vocabulary of a model. `tokens` are bytes, None where a token has no text. `symbols` maps the ids of special
    tokens to their symbols in a grammar, 256 and up; `ends` are tokens allowed wherever the text may end."""

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        symbols: Mapping[int, int] | None = None,
        ends: Iterable[int] = (),
    ) -> None:
        self._count = len(tokens)
        self._symbols = dict(symbols or {})
        self._ends = [*ends]
        apart = {*self._symbols, *self._ends}
        known = [i for i, token in enumerate(tokens) if token and i not in apart]
        known.sort(key=tokens.__getitem__)  # type: ignore[arg-type]
        # Bytes that are no whole characters would be in the way of every shortcut.
        texts = [token for i in known if (token := tokens[i]) is not None]
        broken = {place for place, text in enumerate(texts) if not text.isascii() and not _is_utf8(text)}
        self._broken = [(known[place], texts[place]) for place in sorted(broken)]
        if broken:
            known = [i for place, i in enumerate(known) if place not in broken]
            texts = [text for place, text in enumerate(texts) if place not in broken]
        self._ids, self._texts = known, texts
        self._root = _Node(0, len(known), 0)
        self._runs = Runs(max(map(len, texts), default=0))
        self._all = _set_of(known, self._count)
        plain = bytes(byte for byte in range(256) if _JSON & _bit(byte))
        self._json = _set_of(
            [i for i, text in zip(known, texts, strict=True) if not text.translate(None, plain)], self._count
        )
        self._containing: list[int] = []  # made when first needed
        self._shorter: list[int] = []
        self._masks: dict[State, bytes] = {}
        for _, child in self._expand(self._root):
            self._characters(child)

    def mask(self, grammar: Grammar, state: State) -> bytes:
        """The tokens that may follow `state`: bit i % 8 of byte i / 8 for token i."""
        return finished(self.masking(grammar, state))

    def knows(self, state: State) -> bool:
        """Whether the mask of a state is there already."""
        return state in self._masks

    def masking(self, grammar: Grammar, state: State) -> Masking:
        """`mask` as a generator that yields every few milliseconds and returns the mask."""
        found = self._masks.get(state)
        if found is not None:
            return found
        run = self._runs.of(state)
        known = 0
        if run is not None:
            known = yield from self._of_run(run)
        bits = bytearray(self._count + 7 >> 3)
        self._mark_single(grammar, state, bits)
        sets = yield from self._walk(grammar, state, run, bits)
        result = (known | sets | int.from_bytes(bits, "little")).to_bytes(len(bits), "little")
        if len(self._masks) >= _KEPT:
            self._masks.clear()
        self._masks[state] = result
        return result

    def _mark_single(self, grammar: Grammar, state: State, bits: bytearray) -> None:
        """Special tokens, and the bytes that are no characters."""
        for i, symbol in self._symbols.items():
            if grammar.advance(state, symbol) is not None:
                bits[i >> 3] |= 1 << (i & 7)
        for i, text in self._broken:
            if grammar.advance_all(state, text) is not None:
                bits[i >> 3] |= 1 << (i & 7)
        if state.accepts:
            for i in self._ends:
                bits[i >> 3] |= 1 << (i & 7)

    def _walk(self, grammar: Grammar, start: State, run: Run | None, bits: bytearray) -> Generator[None, None, int]:
        """Marks the tokens that are alive and no part of the run; returns those marked as whole sets."""
        known = run.characters if run is not None else 0
        advance, ids, texts, sets = grammar.advance, self._ids, self._texts, 0
        waiting: list[tuple[_Node, State, bool]] = [(self._root, start, run is not None)]
        until = perf_counter() + _SLICE
        while waiting:
            node, state, pure = waiting.pop()  # pure: all bytes so far belong to the run
            children = self._expand(node) if node.children is None else node.children
            free, allowed = 0, -1
            if node.high - node.low >= _LARGE:
                allowed = grammar.allowed(state)
                if state is not start:
                    shortcut = self._runs.of(state)
                    free = shortcut.characters if shortcut is not None and shortcut.most == ENDLESS else 0
            for byte, child in children:
                if not allowed >> byte & 1:
                    continue
                if perf_counter() > until:
                    yield
                    until = perf_counter() + _SLICE
                if pure or free:
                    characters = self._characters(child)
                    if pure and not characters & ~known:
                        continue
                    if free and not characters & ~free:
                        sets |= self._add(child, bits)
                        continue
                after = advance(state, byte)
                if after is None:
                    continue
                if child.high - child.low == 1:  # one token: no need for nodes
                    for rest in texts[child.low][child.depth :]:
                        after = advance(after, rest)
                        if after is None:
                            break
                    else:
                        i = ids[child.low]
                        bits[i >> 3] |= 1 << (i & 7)
                    continue
                if child.children is None:
                    self._expand(child)
                for i in ids[child.low : child.ends]:
                    bits[i >> 3] |= 1 << (i & 7)
                waiting.append((child, after, pure and bool(known & _bit(byte))))
        return sets

    def _expand(self, node: _Node) -> list[tuple[int, _Node]]:
        texts, depth, place = self._texts, node.depth, node.low
        while place < node.high and len(texts[place]) == depth:
            place += 1
        node.ends = place
        children = []
        while place < node.high:
            byte = texts[place][depth]
            if place + 1 == node.high or texts[place + 1][depth] != byte:
                end = place + 1
            elif byte == 255:
                end = node.high
            else:
                end = bisect_left(texts, texts[place][:depth] + bytes((byte + 1,)), place, node.high)
            children.append((byte, _Node(place, end, depth + 1)))
            place = end
        node.children = children
        return children

    def _characters(self, node: _Node) -> int:
        """The characters of the node's tokens from its own byte on."""
        if node.characters is None:
            start = node.depth - 1
            mask = 0
            for byte in set(b"".join([text[start:] for text in self._texts[node.low : node.high]])):
                mask |= _bit(byte)
            node.characters = mask
        return node.characters

    def _add(self, node: _Node, bits: bytearray) -> int:
        """Marks all tokens of a node; those of a large one are returned as a set instead."""
        size = node.high - node.low
        if size < _HUGE:
            for i in self._ids[node.low : node.high]:
                bits[i >> 3] |= 1 << (i & 7)
            return 0
        if node.set is None:
            node.set = _set_of(self._ids[node.low : node.high], self._count)
        return node.set

    def _of_run(self, run: Run) -> Generator[None, None, int]:
        """The tokens of a run."""
        if run.characters == _JSON:
            result = self._json
        else:
            if not self._containing:
                yield from self._sort_by_character()
            result = self._all
            for character in range(129):
                if not run.characters >> character & 1:
                    result &= ~self._containing[character]
        if run.most < ENDLESS:
            if not self._shorter:
                yield from self._sort_by_length()
            result &= self._shorter[min(run.most, len(self._shorter) - 1)]
        return result

    def _sort_by_character(self) -> Generator[None, None, None]:
        """Fills `_containing[c]`: the tokens with ASCII character c; the last are those with any other."""
        sets = [bytearray(self._count + 7 >> 3) for _ in range(129)]
        for start in range(0, len(self._texts), _CHUNK):
            stop = start + _CHUNK
            for i, text in zip(self._ids[start:stop], self._texts[start:stop], strict=True):
                place, bit = i >> 3, 1 << (i & 7)
                for byte in set(text):
                    sets[byte if byte < 128 else 128][place] |= bit
            yield
        self._containing = [int.from_bytes(bits, "little") for bits in sets]

    def _sort_by_length(self) -> Generator[None, None, None]:
        """Fills `_shorter[n]`: the tokens of at most n characters."""
        sets = [bytearray(self._count + 7 >> 3)]
        for start in range(0, len(self._texts), _CHUNK):
            stop = start + _CHUNK
            for i, text in zip(self._ids[start:stop], self._texts[start:stop], strict=True):
                length = len(text) if text.isascii() else len(text.decode())
                while length >= len(sets):
                    sets.append(bytearray(len(sets[0])))
                sets[length][i >> 3] |= 1 << (i & 7)
            yield
        shorter = 0
        for bits in sets:
            shorter |= int.from_bytes(bits, "little")
            self._shorter.append(shorter)


def _set_of(ids: Iterable[int], count: int) -> int:
    """A set of tokens: bit i for token i."""
    bits = bytearray(count + 7 >> 3)
    for i in ids:
        bits[i >> 3] |= 1 << (i & 7)
    return int.from_bytes(bits, "little")


def _bit(byte: int) -> int:
    return 1 << byte if byte < 128 else NOT_ASCII


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def finished(work: Generator[None, None, T]) -> T:
    """The result of a generator that is not interrupted."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
