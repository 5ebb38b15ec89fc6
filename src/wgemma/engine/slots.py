"""The rows of a decoding pass: slot i is row i, one token of one sequence, with its page tables and its sampling."""

from wgemma.engine.paging import Paging
from wgemma.engine.sampling import Recipe, Sampler, Sampling
from wgemma.engine.sequence import TokenSequence
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config
from wgemma.model.rows import Row, RowBuffer

BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # rows of a recorded pass


class Slots:
    """Room for `count` sequences of up to `context` tokens."""

    def __init__(self, whole: Ledger, config: Config, paging: Paging, count: int, context: int) -> None:
        self.ledger = whole.part()
        self.count = count
        self.context = context
        try:
            self.rows = RowBuffer(self.ledger, count, context, several=True, label="rows of slots")
            self.sampler = Sampler(self.ledger, config, self.rows, paging.arena.history, count)
        except BaseException:
            self.ledger.free()
            raise

    def put(self, slot: int, sequence: TokenSequence, token: int, sampling: Sampling) -> Recipe:
        """Lets a sequence go on with `token` in this slot; returns what its sampling needs."""
        position = len(sequence.ids)
        self.put_pages(slot, sequence)
        recipe = self.sampler.begin(slot, sampling, self.context)
        self.rows.put_rows([Row(1, position, token, position)], slot)
        return recipe

    def put_pages(self, slot: int, sequence: TokenSequence, first: int = 0) -> None:
        """Enters the sequence's pages from number `first` on."""
        put_tables(self.rows, slot, sequence, first)

    def clear(self, slot: int) -> None:
        """Nothing is computed in this slot until a sequence is put there."""
        self.rows.put_rows([Row(0, 0)], slot)

    def free(self) -> None:
        self.ledger.free()


def put_tables(rows: RowBuffer, row: int, sequence: TokenSequence, first: int = 0) -> None:
    """Enters a sequence's pages from number `first` on into a row's tables."""
    rows.put_pages(row, first, sequence.full[first:], sliding=False)
    numbers = sorted(number for number in sequence.sliding if number >= first)
    if numbers:  # they follow each other without a gap
        rows.put_pages(row, numbers[0], [sequence.sliding[number] for number in numbers], sliding=True)


def bucket_of(rows: int) -> int:
    return next(size for size in BUCKETS if rows <= size)
