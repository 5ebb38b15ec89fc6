"""Cases of the kernels that choose a token: count, adjust, peaks, sample, logprobs.

Each slot has settings and logits of its own, and its past in shuffled pages; one in the middle may be unused. A drawn
token is either right or wrong, so integers are compared by their difference from the expected value.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding, Buffer
from wgemma.model.rows import PAGE, PageTables, Row, pages_of
from wgemma.reference.lab import F32, UNTOUCHED, Case, Lab, Outcome, case, framed, takes, untouched
from wgemma.reference.sampling import distribution, drawn, keys, peaks
from wgemma.reference.twins import Array

VOCAB = 262144  # of every Gemma 4
POSITION = 77
CONTEXT = 250
LOWEST = -1e30  # used for ln 0
RING = 8  # results per slot
MARGIN = 1e-5  # how close a drawn token may be to the next, as a share of the total


def cases() -> Iterator[Case]:
    yield from _count_cases()
    yield from _adjust_cases()
    yield from _peaks_cases()
    yield from _sample_cases()
    yield from _logprobs_cases()


# -- slots


@dataclass(frozen=True, slots=True)
class Slot:
    """One sequence: its row's position, and how it samples."""

    position: int = POSITION - 1
    used: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    last_n: int = 0
    seed: int = 0
    adjusts: bool = False
    logprobs: int | None = None

    def pack(self) -> bytes:
        """Its Settings (sampler.wgsl)."""
        floats = (max(self.temperature, 1e-6), self.top_p, math.log(self.min_p) if self.min_p else LOWEST)
        penalties, seed = (self.repeat, self.presence, self.frequency), (self.seed & 0xFFFFFFFF, self.seed >> 32)
        flags = (self.temperature == 0, self.adjusts, 0 if self.logprobs is None else 1 + self.logprobs)
        return struct.pack("<6f7I", *floats, *penalties, self.top_k, self.last_n, *seed, *flags)


class Slots:
    """Several slots on the device: their settings, their rows, and a shuffled page table for each."""

    def __init__(self, lab: Lab, slots: Sequence[Slot], tokens: Sequence[int] = ()) -> None:
        self.lab, self.slots, count = lab, slots, len(slots)
        pages = pages_of(CONTEXT)
        quads = -(-pages // 4)
        self.tables = PageTables(count, quads, 2 * quads).params(sliding=False)
        self.pages = lab.rng.permutation(count * pages).reshape(count, pages)  # [slots, pages]
        behind = np.full((count, 2, 4 * quads), 0xFFFFFFFF)
        behind[:, 0, :pages] = self.pages
        chosen = [*tokens, *[0] * (count - len(tokens))]
        rows = [Row(int(slot.used), slot.position, token) for slot, token in zip(slots, chosen, strict=True)]
        self.words = np.concatenate([np.array(rows).ravel(), behind.ravel()])
        self.rows = lab.put(self.words, "<u4")
        settings = b"".join(slot.pack() for slot in slots)
        self.bindings: dict[str, Binding] = {
            "settings": lab.put(np.frombuffer(settings, "<u4"), "<u4"),
            "rows": self.rows,
        }

    def place(self, slot: int, position: int) -> int:
        return int(self.pages[slot, position // PAGE]) * PAGE + position % PAGE

    @property
    def places(self) -> int:
        return self.pages.size * PAGE

    def padded(self, values: Array, kind: str = "<f4") -> Buffer:
        """An input [slots, V], with NaN up to a multiple of four."""
        wide = np.full((len(values), 4 * -(-values.shape[1] // 4)), 0xFFFFFFFF, "<u4")
        wide[:, : values.shape[1]] = np.ascontiguousarray(values, kind).view("<u4")
        return self.lab.put(wide, "<u4")

    def put_logits(self, logits: Array) -> None:
        """Those of slots that adjust theirs are NaN, and so are the adjusted ones of those that do not."""
        adjusts = np.array([slot.adjusts for slot in self.slots])[:, None]
        self.bindings["logits"] = self.padded(np.where(adjusts, np.nan, logits))
        self.bindings["adjusted"] = self.padded(np.where(adjusts, logits, np.nan))

    def find_peaks(self, vocab: int, *, sums: bool) -> tuple[Buffer, Buffer]:
        blocks = len(self.slots) * 4 * -(-vocab // 256)
        found, added = self.lab.out(blocks), self.lab.out(blocks)
        self.bindings |= {"peaks": found, "sums": added}
        self.run_peaks(vocab, {"SUMS": sums})
        return found, added

    def run_peaks(self, vocab: int, constants: dict[str, Any]) -> None:
        grid = [-(-vocab // 2048), len(self.slots)]
        self.lab.run("peaks", grid, self.bindings, {"vocab": vocab}, {**constants, "ADJUSTED": self.adjusted})

    def put_masks(self, allowed: Array, positions: Sequence[int]) -> None:
        """`allowed` [slots, V] holds for the tokens at `positions`."""
        bits = np.packbits(allowed, axis=1, bitorder="little")
        words = np.full((len(positions), 1 + -(-allowed.shape[1] // 32)), 0xFFFFFFFF, "<u4")  # rests are nobody's
        words[:, 0] = positions
        words.view(np.uint8)[:, 4 : 4 + bits.shape[1]] = bits
        self.bindings["masks"] = self.lab.put(words, "<u4")

    @property
    def adjusted(self) -> bool:
        return any(slot.adjusts for slot in self.slots)


def _neighbours(first: Slot, *, adjusts: bool) -> list[Slot]:
    """A slot that neither adjusts nor reports, an unused one, one that does both, and one at the end of the context,
    whose token has no place in the history."""
    other = Slot(130, temperature=1.1, top_k=7, top_p=0.8, seed=first.seed + 1, adjusts=adjusts, logprobs=3)
    return [first, replace(other, used=False), other, replace(first, position=CONTEXT - 1, temperature=0, logprobs=0)]


def _count_cases() -> Iterator[Case]:
    for last_n in (1, 100, 1000):
        yield case(_count, last_n == 100, last_n=last_n)


def _count(lab: Lab, last_n: int) -> Outcome:
    vocab = 301
    slots = [Slot(60, last_n=last_n), Slot(70), Slot(80, False, last_n=last_n), Slot(CONTEXT - 1, last_n=last_n)]
    given = Slots(lab, slots)
    history = lab.rng.integers(0, vocab, given.places)
    before = np.zeros((len(slots), 304))
    counts = lab.held(before)
    bindings = {**given.bindings, "history": lab.put(history, "<u4"), "counts": counts}
    lab.run("count", [-(-CONTEXT // 256), len(slots)], bindings, {"vocab": vocab, **given.tables})
    for i in (0, 3):
        length = slots[i].position + 1
        for position in range(max(0, length - last_n), length):
            before[i, history[given.place(i, position)]] += 1
    expected = framed(before)
    return Outcome((_off(lab.read(counts, "<u4"), expected),), (_right(expected),), 0)


def _adjust_cases() -> Iterator[Case]:
    for vocab in (1, 257, 1030):
        yield case(_adjust, vocab == 257, vocab=vocab)


def _adjust(lab: Lab, vocab: int) -> Outcome:
    harsh = Slot(repeat=1.5, presence=0.25, frequency=-0.5, adjusts=True)
    mild = Slot(repeat=0.5, frequency=2.0, adjusts=True)
    slots = [harsh, replace(harsh, adjusts=False), replace(mild, used=False), mild]
    given, stride = Slots(lab, slots), 4 * -(-vocab // 4)
    logits, bias = lab.normal(4, vocab, scale=4), lab.normal(4, vocab)
    bias[:, ::5] = -np.inf
    seen = lab.rng.integers(0, 4, (4, stride))
    seen[:, vocab:] = 9  # nobody's
    counts, adjusted = lab.held(seen.astype("<u4").view("<f4")), lab.out(4 * stride)
    bindings: dict[str, Binding] = {**given.bindings, "logits": given.padded(logits), "bias": given.padded(bias)}
    bindings |= {"counts": counts, "adjusted": adjusted}
    lab.run("adjust", [-(-vocab // 256), len(slots)], bindings, {"vocab": vocab})
    expected, left = untouched(4, stride), seen.copy()
    for i in (0, 3):
        asked, biased, count = slots[i], logits[i].astype(np.float64) + bias[i], seen[i, :vocab]
        scaled = np.where(biased <= 0, biased * asked.repeat, biased / asked.repeat)
        expected[i, :vocab] = np.where(count > 0, scaled - count * asked.frequency - asked.presence, biased)
        left[i, :vocab] = 0
    # Infinities are compared by their places.
    got, wanted = lab.read(adjusted), framed(expected)
    endless = np.isneginf(wanted)
    got, wanted = (np.where(endless, np.where(np.isneginf(x), 0.0, x), x) for x in (got, wanted))
    counted = framed(left)
    return Outcome((got, _off(lab.read(counts, "<u4"), counted)), (wanted, _right(counted)), F32)


def _peaks_cases() -> Iterator[Case]:
    for vocab in (1, 63, 64, 257, 2049, VOCAB):
        for sums in (False, True):
            yield case(_peaks, vocab == 257, vocab=vocab, sums=sums)
    for extreme in ("nan", "infinite", "suppressed", "zeros"):
        yield case(_peaks, extreme == "nan", vocab=300, sums=extreme == "suppressed", extreme=extreme)
    for vocab in (3, 2049):
        for sums, adjusts in ((False, False), (False, True), (True, False)):
            yield case(_peaks, vocab == 2049, vocab=vocab, sums=sums, several=True, adjusts=adjusts)


def _peaks(
    lab: Lab, vocab: int, sums: bool, extreme: str = "", several: bool = False, adjusts: bool = False
) -> Outcome:
    slots = _neighbours(Slot(), adjusts=adjusts) if several else [Slot(logprobs=0)]
    logits = np.stack([_logits(lab, vocab, 4.0, extreme) for _ in slots])
    given = Slots(lab, slots)
    given.put_logits(logits)
    found, added = given.find_peaks(vocab, sums=sums)
    blocks = -(-vocab // 64)
    order, shares = (untouched(len(slots), 4 * -(-blocks // 4)) for _ in range(2))
    for i, slot in enumerate(slots):
        if slot.used and not (sums and slot.logprobs is None):
            order[i, :blocks], share = peaks(logits[i])
            if sums:
                shares[i, :blocks] = share
    got = (_off(lab.read(found, "<u4"), framed(order)), lab.read(added))
    return Outcome(got, (_right(framed(order)), framed(shares)), F32)


def _logits(lab: Lab, vocab: int, scale: float, extreme: str) -> Array:
    """`extreme` is nan or infinite (one of them), suppressed (most are), equal (all are), zeros, or nothing."""
    logits = lab.normal(vocab, scale=scale)
    if extreme == "nan":
        logits[vocab // 2] = -np.float32(np.nan)
    elif extreme == "infinite":
        logits[vocab // 2] = np.inf
    elif extreme == "suppressed":
        logits[np.arange(vocab) % 97 != 40] = -np.inf
    elif extreme == "equal":
        logits[:] = -1.5
    elif extreme == "zeros":
        logits[:] = np.where(np.arange(vocab) % 3 == 2, 0.0, -0.0)
    return logits


def _off(got: Array, expected: Array) -> Array:
    """The differences of integers from their expected values."""
    return np.where(expected == UNTOUCHED, got, got - expected)


def _right(expected: Array) -> Array:
    return np.where(expected == UNTOUCHED, expected, 0.0)


def _sample_cases() -> Iterator[Case]:
    for threads in (256, 1024):
        quick = threads == 256
        # All logits of a small vocabulary, those of a large one above a bound, and all of a large one.
        for vocab in (1, 3, 64, 300, 513, VOCAB):
            yield case(_sample, quick, threads=threads, vocab=vocab)
            yield case(_sample, quick, threads=threads, vocab=vocab, top_k=64, top_p=0.95, temperature=1.3)
            yield case(_sample, quick, threads=threads, vocab=vocab, scale=8.0, top_k=0, top_p=0.9, temperature=1.0)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=8.0, top_k=0, temperature=0.7)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=8.0, top_k=3000, min_p=0.01, temperature=1.0)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, scale=6.0, top_k=300, temperature=1.0)  # many blocks
        yield case(_sample, quick, threads=threads, vocab=VOCAB, top_k=99, top_p=0.99, min_p=0.1, temperature=1.5)
        yield case(_sample, quick, threads=threads, vocab=VOCAB, min_p=0.1, temperature=1.5)
        yield case(_sample, quick, threads=threads, vocab=300, top_k=300, top_p=0.3, temperature=1.0)
    for extreme in ("suppressed", "equal", "zeros"):
        yield case(_sample, False, threads=1024, vocab=2000, extreme=extreme)
        yield case(_sample, extreme == "equal", threads=1024, vocab=2000, top_k=5, temperature=1.0, extreme=extreme)
    for adjusts in (False, True):
        for vocab, top_k in ((1030, 0), (301, 50)):
            options: dict[str, Any] = {"vocab": vocab, "top_k": top_k, "several": True, "adjusts": adjusts}
            yield case(_sample, True, threads=256, temperature=0.7, **options)
    yield case(_sample, False, threads=256, vocab=513, top_k=64, temperature=1.0, adjusts=True)
    # Forbidden tokens are drawn again: among the survivors, or among those that have no other.
    for allowed in ("half", "rare", "one"):
        options = {"threads": 256, "vocab": 1030, "allowed": allowed}
        yield case(_sample, True, **options)
        yield case(_sample, True, **options, top_k=20, top_p=0.9, temperature=1.0)
        yield case(_sample, True, **options, temperature=1.3, min_p=0.05, several=True, adjusts=allowed == "half")
        yield case(_sample, allowed == "half", threads=1024, vocab=VOCAB, allowed=allowed, top_k=64, temperature=1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    threads: int
    vocab: int
    scale: float = 4.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    temperature: float = 0.0
    extreme: str = ""
    several: bool = False
    adjusts: bool = False
    allowed: str = ""  # by the grammar of every slot but the last: half of the tokens, few and unlikely ones, or one


@takes(Sample)
def _sample(lab: Lab, asked: Sample) -> Outcome:
    logits = _logits(lab, asked.vocab, asked.scale, asked.extreme)[None]
    seed = int(lab.rng.integers(1 << 63))
    how: dict[str, Any] = {"temperature": asked.temperature, "min_p": asked.min_p, "adjusts": asked.adjusts}
    slots = [Slot(top_k=asked.top_k, top_p=asked.top_p, seed=seed, **how)]
    if asked.several:
        slots = _neighbours(replace(slots[0], adjusts=False), adjusts=asked.adjusts)
        logits = np.concatenate([logits, lab.normal(len(slots) - 1, asked.vocab, scale=asked.scale)])
    given = Slots(lab, slots)
    given.put_logits(logits)
    given.find_peaks(asked.vocab, sums=False)
    history, results = lab.out(given.places), lab.out(len(slots) * RING * 8)
    bindings = {**given.bindings, "history": history, "results": results}
    params = {"vocab": asked.vocab, "context": CONTEXT, **given.tables}
    constants = {"THREADS": min(asked.threads, lab.device.limits.invocations), "ADJUSTED": given.adjusted}
    lab.run("sample", [len(slots)], bindings, params, constants)
    masks = [_mask(lab, row, slot, asked.allowed) for row, slot in zip(logits, slots, strict=True)]
    if asked.allowed:
        if asked.several:
            masks[-1][:] = True  # nothing is forbidden
        given.put_masks(np.stack(masks), [slot.position + 1 for slot in slots])
        given.run_peaks(asked.vocab, {"MASKED": True})
        lab.run("sample", [len(slots)], {**bindings, **given.bindings}, params, {**constants, "MASKED": True})

    whole, real = (lab.read(results, kind) for kind in ("<u4", "<f4"))
    numbers, floats = untouched(len(slots), RING, 8), untouched(len(slots), RING, 8)
    past, rows = untouched(given.places), given.words.copy()
    for i, slot in enumerate(slots):
        if not slot.used:
            continue
        position = slot.position + 1
        token, total, ids = _drawn(logits[i], slot)
        highest, again = logits[i].max(), not masks[i][token]
        if again:
            token, total, ids = _drawn(logits[i], slot, masks[i])
            highest = logits[i][masks[i]].max()
        ring = position % RING
        at = (i * RING + ring) * 8
        # Only what can be drawn lies above the threshold; of a greedy choice the largest, and those tied with it.
        order = keys(logits[i])
        if again:
            order[~masks[i]] = 0
        astray = np.setxor1d(np.flatnonzero(order >= int(whole[at + 2])), ids).size
        whole[at + 2] = astray if slot.temperature > 0 else whole[at + 2] - order.max()
        numbers[i, ring] = [token, 0, 0, UNTOUCHED, UNTOUCHED, position, again, 0]
        floats[i, ring, 3:5] = total, highest
        rows[4 * i : 4 * i + 4] = 1, position, token, position
        if position < CONTEXT:
            past[given.place(i, position)] = token
    sizes = framed(floats) != UNTOUCHED
    whole[sizes] = UNTOUCHED  # compared as floats
    got = (
        _off(whole, framed(numbers)),
        real[sizes],
        lab.read(given.rows, "<u4")[: rows.size] - rows,
        _off(lab.read(history, "<u4"), framed(past)),
    )
    expected = (_right(framed(numbers)), framed(floats)[sizes], np.zeros(rows.size), _right(framed(past)))
    return Outcome(got, expected, F32)


def _mask(lab: Lab, logits: Array, slot: Slot, allowed: str) -> Array:
    """Which tokens are allowed: not the one that is drawn first, unless all are."""
    if not allowed:
        return np.ones(logits.size, bool)
    token, _, ids = _drawn(logits, slot)
    mask = lab.rng.random(logits.size) < 0.5
    if allowed == "rare":
        mask &= logits < np.sort(logits)[logits.size // 4]
        mask[ids] = False
    elif allowed == "one":
        mask[:] = np.arange(logits.size) == (token + logits.size // 2) % logits.size
    mask[token] = False
    return mask


def _drawn(logits: Array, asked: Slot, allowed: Array | None = None) -> tuple[int, float, Array]:
    """The token to draw, Σ e^((l − max) / T), and what could be drawn; `allowed` if it is drawn again."""
    top_k, temperature = asked.top_k, asked.temperature
    # Ties stay together, so there may be more than top_k.
    least = np.sort(logits)[-top_k] if 0 < top_k < logits.size else -np.inf
    most = int(np.count_nonzero(logits >= least))
    settings: dict[str, Any] = {"top_p": asked.top_p, "min_p": asked.min_p, "temperature": temperature}
    ids, shares = distribution(logits, top_k=most, allowed=allowed, **settings)
    if temperature == 0:
        return int(ids[0]), 1.0, ids
    token = drawn(ids, shares, asked.seed, asked.position + 1, MARGIN, again=allowed is not None)
    return token, 1 / shares.max(), ids


def _logprobs_cases() -> Iterator[Case]:
    for threads in (256, 1024):
        for vocab, count in ((1, 0), (3, 3), (300, 31), (VOCAB, 0), (VOCAB, 5), (VOCAB, 31)):
            yield case(_logprobs, threads == 256, threads=threads, vocab=vocab, count=count)
    for extreme in ("suppressed", "equal"):
        yield case(_logprobs, extreme == "equal", threads=1024, vocab=2000, count=9, extreme=extreme)
    yield case(_logprobs, True, threads=256, vocab=1001, count=3, several=True)


def _logprobs(lab: Lab, threads: int, vocab: int, count: int, extreme: str = "", several: bool = False) -> Outcome:
    slots = _neighbours(Slot(), adjusts=False) if several else [Slot(POSITION, logprobs=count)]
    logits = np.stack([_logits(lab, vocab, 4.0, extreme) for _ in slots])
    if vocab > 200:
        logits[:, [100, 200]] = logits.max()  # the lower comes first
    tokens = [(vocab * 2 // 3 if extreme != "suppressed" else 40) + i for i in range(len(slots))]
    given, report = Slots(lab, slots, tokens), lab.out(len(slots) * RING * 32 * 2)
    given.put_logits(logits)
    given.find_peaks(vocab, sums=True)
    constants = {"THREADS": min(threads, lab.device.limits.invocations)}
    lab.run("logprobs", [len(slots)], {**given.bindings, "report": report}, {"vocab": vocab}, constants)

    numbers, values = (untouched(len(slots), RING, 32, 2) for _ in range(2))
    for i, slot in enumerate(slots):
        if not slot.used or slot.logprobs is None:
            continue
        wide = logits[i].astype(np.float64)
        exact = wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))
        found = [tokens[i], *np.argsort(-exact, kind="stable")[: slot.logprobs]]
        numbers[i, slot.position % RING, : len(found), 0] = found
        values[i, slot.position % RING, : len(found), 1] = exact[found]
    whole, real = (lab.read(report, kind).reshape(-1, 2) for kind in ("<u4", "<f4"))
    ids, shares = (framed(x).reshape(-1, 2) for x in (numbers, values))
    got = (_off(whole[:, 0], ids[:, 0]), real[:, 1])
    return Outcome(got, (_right(ids[:, 0]), shares[:, 1]), F32)
