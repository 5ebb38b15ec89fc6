"""Which token a text is, and what two tokens merge to, looked up in the file's own bytes.

A prompt needs a few thousand of half a million merges, so none is parsed beforehand: an index maps a text's hash to the
places in the array where the text may be, and the bytes there are compared. This takes about 8 bytes per string, where
a dict would take a hundred, and loading does not wait for three look-ups per merge.
"""

from array import array
from collections.abc import Callable
from typing import TypeVar

from wgemma.files.arrays import StringArray

K = TypeVar("K")
V = TypeVar("V")

_SPACE = ord(" ")
_HOT_TEXTS = 1 << 14


class Memo(dict[K, V]):
    """A cache of `answer`, emptied whenever it reaches `most` entries."""

    def __init__(self, answer: Callable[[K], V], most: int) -> None:
        self._answer = answer
        self._most = most

    def __missing__(self, key: K) -> V:
        if len(self) >= self._most:
            self.clear()
        self[key] = value = self._answer(key)
        return value


class Index:
    """Finds strings in a large array. `seen` gets every batch along the way, because reading them all takes time."""

    def __init__(self, strings: StringArray, seen: Callable[[list[bytes]], None] = lambda batch: None) -> None:
        self._data, self._starts = strings.data, strings.starts
        hashes = array("q")
        for batch in strings.batches():
            hashes.extend(map(hash, batch))
            seen(batch)
        # The strings of a slot form a chain of places: 1 is the first string, 0 ends the chain.
        self._mask = mask = (1 << len(strings).bit_length()) - 1
        self._first = first = array("I", bytes(4 * (mask + 1)))
        self._next = following = array("I", bytes(4 * (len(strings) + 1)))
        place = len(strings)
        for value in reversed(hashes):  # backwards, so that the first of equal strings leads its chain
            slot = value & mask
            following[place] = first[slot]
            first[slot] = place
            place -= 1

    def find(self, text: bytes) -> int:
        """The first index of `text` in the array, −1 if it is not there."""
        place = self._first[hash(text) & self._mask]
        while place:
            if self._data[self._starts[place - 1] + 8 : self._starts[place]] == text:
                return place - 1
            place = self._next[place]
        return -1


class Vocabulary:
    """Tokens and merges, as a file lists them. `seen` gets every batch of tokens. Text never becomes a `reserved`
    token, whatever the merges say."""

    def __init__(
        self,
        tokens: StringArray,
        merges: StringArray,
        seen: Callable[[list[bytes]], None],
        reserved: frozenset[int] = frozenset(),
    ) -> None:
        self._reserved = reserved
        self._texts = Memo(tokens.utf8, _HOT_TEXTS)
        self._ids = Index(tokens, seen)
        self._ranks = Index(merges)

    def id(self, text: str) -> int:
        """The id of a token, the first if there are several; −1 if there is none, or if it is reserved."""
        return self._find(text.encode())

    def _find(self, text: bytes) -> int:
        found = self._ids.find(text)
        return -1 if found in self._reserved else found

    def join(self, left: int, right: int) -> tuple[int, int] | None:
        """The rank of the merge of two tokens and the resulting id; None if there is no such merge, or it makes no
        token."""
        before, after = self._texts[left], self._texts[right]
        joined = self._find(before + after)  # first, because most pairs make no token
        if joined < 0:
            return None
        rank = self._ranks.find(before + b" " + after)
        # In the file, a merge's left part ends at the first space that is not its first character.
        return (rank, joined) if rank >= 0 and before and _SPACE not in before[1:] else None

    def forget(self) -> None:
        """Empties the cache of token texts."""
        self._texts.clear()
