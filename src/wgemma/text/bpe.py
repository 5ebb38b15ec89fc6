"""Byte-pair merging over token ids: repeatedly joins the adjacent pair with the lowest rank, leftmost first.

Knows numbers only: what a symbol means, which pairs exist, and what to do with symbols outside the vocabulary is up to
the tokenizer. Negative symbols never merge.
"""

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush

ID_BITS = 21
MAX_IDS, MAX_MERGES = 1 << ID_BITS, (1 << 22) - 1
_NEVER = MAX_MERGES  # the rank of a pair that does not merge
_SCAN = 32  # up to this many symbols, scanning for the minimum beats a heap
_PIECE = 24  # symbols of a long run merged at a time
_HOT_PAIRS = 1 << 16
_SEEN_PIECES = 1 << 10


class Merges:
    """`find` returns a pair's rank, below `count`, and the id it merges to, or None; each id means one text, however it
    was merged. It is called when a pair first turns up, and the result is cached."""

    def __init__(self, find: Callable[[int, int], tuple[int, int] | None], count: int) -> None:
        self._find = find
        self._joined = array("I", bytes(4 * count))  # by rank, for every pair found so far
        self._hot: dict[int, int] = {}

    def _rank(self, left: int, right: int) -> int:
        """The rank of a pair that is not in the cache."""
        if left < 0 or right < 0:
            return _NEVER
        if len(self._hot) >= _HOT_PAIRS:
            self._hot.clear()
        rank = _NEVER
        if found := self._find(left, right):
            rank, joined = found
            self._joined[rank] = joined
        self._hot[left << ID_BITS | right] = rank
        return rank

    def forget(self) -> None:
        """Empties the cache of hot pairs."""
        self._hot.clear()

    def apply(self, symbols: list[int]) -> list[int]:
        """The symbols after all merges."""
        if len(symbols) <= _SCAN:
            return self._scan(symbols)[0] if len(symbols) > 1 else symbols
        return self._stitch(symbols) or self._drain(symbols)

    def _scan(self, symbols: list[int]) -> tuple[list[int], list[int]]:
        """The merged symbols of a short word and where each starts: find the lowest rank, join, update both sides."""
        hot, slow, joined = self._hot.get, self._rank, self._joined
        symbols = symbols.copy()
        starts = list(range(len(symbols)))
        ranks = []
        left = symbols[0]
        for right in symbols[1:]:
            rank = hot(left << ID_BITS | right)
            ranks.append(slow(left, right) if rank is None else rank)
            left = right
        while ranks and (lowest := min(ranks)) != _NEVER:
            at = ranks.index(lowest)
            symbols[at] = result = joined[lowest]
            del symbols[at + 1], starts[at + 1], ranks[at]
            if at < len(ranks):
                right = symbols[at + 1]
                rank = hot(result << ID_BITS | right)
                ranks[at] = slow(result, right) if rank is None else rank
            if at:
                left = symbols[at - 1]
                rank = hot(left << ID_BITS | result)
                ranks[at - 1] = slow(left, result) if rank is None else rank
        return symbols, starts

    def _stitch(self, symbols: list[int]) -> list[int] | None:
        """A long run, merged piece by piece; None if the pieces grow too large.

        Tokens are the encoding of their text if and only if every two neighbours are the encoding of theirs: the first
        merge to cross a border would also be the lowest within the two tokens next to it. So each piece is merged
        together with the two tokens before it (the last one was often cut short). If the first of them comes out
        unchanged, the border holds; if not, the piece takes in more tokens on its left. Long runs often repeat, so
        pieces are cached.
        """
        seen: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        result, starts = self._scan(symbols[:_PIECE])
        count, end = len(symbols), _PIECE
        while end < count:
            end = min(end + _PIECE, count)
            back = min(2, len(result))
            while True:
                begin, last = starts[-back], result[-back]
                if end - begin > 8 * _PIECE:
                    return None
                window = tuple(symbols[begin:end])
                known = seen.get(window)
                if known is None:
                    known = self._scan(symbols[begin:end])
                    if len(seen) < _SEEN_PIECES:
                        seen[window] = known
                piece, piece_starts = known
                if back == len(result) or piece[0] == last:
                    break
                back = min(2 * back, len(result))
            del result[-back:], starts[-back:]
            result += piece
            starts += [begin + start for start in piece_starts]
        return result

    def _drain(self, symbols: list[int]) -> list[int]:
        """For runs that cannot be cut, O(n log n): a heap of (rank, place) over a linked list."""
        hot, slow, joined = self._hot.get, self._rank, self._joined
        count = len(symbols)
        symbols = [*symbols, -1]
        after, before = list(range(1, count + 2)), list(range(-1, count))
        ranks = [_NEVER] * (count + 1)  # of the pair that starts at each place
        heap = []
        for place in range(count - 1):
            left, right = symbols[place], symbols[place + 1]
            rank = hot(left << ID_BITS | right)
            if rank is None:
                rank = slow(left, right)
            if rank != _NEVER:
                ranks[place] = rank
                heap.append(rank << 40 | place)
        heapify(heap)
        gone = -(1 << 60)
        while heap:
            entry = heappop(heap)
            rank, place = entry >> 40, entry & (1 << 40) - 1
            if ranks[place] != rank:
                continue  # stale: a neighbour has merged since
            eaten = after[place]
            symbols[place] = result = joined[rank]
            symbols[eaten], ranks[eaten] = gone, _NEVER
            following = after[eaten]
            after[place] = following
            rank = _NEVER
            if following < count:
                before[following] = place
                right = symbols[following]
                known = hot(result << ID_BITS | right)
                rank = slow(result, right) if known is None else known
                if rank != _NEVER:
                    heappush(heap, rank << 40 | place)
            ranks[place] = rank
            previous = before[place]
            if previous >= 0:
                left = symbols[previous]
                known = hot(left << ID_BITS | result)
                rank = slow(left, result) if known is None else known
                ranks[previous] = rank
                if rank != _NEVER:
                    heappush(heap, rank << 40 | previous)
        del symbols[count]
        return [symbol for symbol in symbols if symbol != gone]
