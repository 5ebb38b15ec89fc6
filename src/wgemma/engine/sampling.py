"""How the next token is chosen: the user's settings, and the GPU kernels that apply them."""

import math
import random
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from wgemma.checks import number, shown, whole
from wgemma.errors import SettingsError
from wgemma.gpu.device import Binding, Buffer, Reading
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.config import Config
from wgemma.model.rows import RowBuffer
from wgemma.ranges import MAX_ALTERNATIVES, NUMBERS, WHOLE

RING = 8  # how many steps the GPU may be ahead of the host
RESULT_BYTES = 32
RESULTS_BYTES = RING * RESULT_BYTES  # of one slot
REPORT = MAX_ALTERNATIVES + 1  # (token, log-probability) pairs per step
REPORT_BYTES = RING * REPORT * 8  # of one slot
SETTINGS_BYTES = 52
THREADS = 1024  # in the workgroup that samples for a slot, if the adapter allows it
FEW_THREADS = 256  # on a software adapter, where every thread costs time
QUAD = 16  # bytes: logits are read four at a time
BLOCK = 64  # logits that share a peak
PEAKS = 32  # peaks per workgroup
MAX_BIAS = 1e9  # far above any logit, and finite in float32 at any temperature

OPTIONAL = ("seed", "logprobs")
RANDOM = -1  # as a seed, as in Ollama and llama.cpp


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings, Gemma 4's by default."""

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int = 64  # 0: no limit
    top_p: float = 0.95  # of the likeliest tokens, as many as have this probability together
    min_p: float = 0.0  # only tokens at least this share as likely as the likeliest
    repeat_penalty: float = 1.0  # divides the positive logits of repeated tokens
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # −1: everything, 0: nothing
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits, by token id
    seed: int | None = None  # None or −1: random
    logprobs: int | None = None  # each token's own, and as many alternatives; True: its own alone

    def __post_init__(self) -> None:
        if isinstance(self.logprobs, bool):
            object.__setattr__(self, "logprobs", 0 if self.logprobs else None)
        for name, (least, most) in NUMBERS.items():
            object.__setattr__(self, name, number(name, getattr(self, name), least, most))
        for name, bounds in WHOLE.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                object.__setattr__(self, name, whole(name, getattr(self, name), *bounds))
        if self.seed == RANDOM:
            object.__setattr__(self, "seed", None)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def penalises(self) -> bool:
        """Whether a penalty is in effect."""
        neutral = self.repeat_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral and self.repeat_last_n != 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature <= 0 or self.top_k == 1

    def settled(self) -> "Sampling":
        """The same with a fixed seed, so that a restarted reply continues as it began."""
        return self if self.seed is not None else replace(self, seed=random.getrandbits(64))

    def alternative(self, index: int) -> "Sampling":
        """For the `index`-th of several answers: its seed is a hash of the seed and the index; the first has the seed
        itself."""
        if index == 0 or self.seed is None:
            return self
        digest = blake2b(f"{self.seed} {index}".encode(), digest_size=8).digest()
        return replace(self, seed=int.from_bytes(digest, "little"))

    def biases(self, vocab: int) -> Mapping[int, float]:
        """`logit_bias`, which raises if a token is not in the vocabulary."""
        for token in self.logit_bias:
            if token >= vocab:
                raise SettingsError(f"logit_bias has token {shown(token)}; the vocabulary has {vocab}.")
        return self.logit_bias

    def pack(self, context: int, *, adjusts: bool) -> bytes:
        """The kernels' Settings (kernels/sampler.wgsl)."""
        seed = (self.seed or 0) & (1 << 64) - 1
        last_n = context if self.repeat_last_n < 0 else min(self.repeat_last_n, context)
        return struct.pack(
            "<6f7I",
            max(self.temperature, 1e-6),
            self.top_p,
            math.log(self.min_p) if self.min_p > 0 else -1e30,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.top_k,
            last_n if self.penalises else 0,
            seed & 0xFFFFFFFF,
            seed >> 32,
            self.greedy,
            adjusts,
            0 if self.logprobs is None else 1 + self.logprobs,
        )


def _biases(given: Any) -> dict[int, float]:
    """A bias of −∞ rules a token out."""
    if not isinstance(given, Mapping):
        raise SettingsError(f"logit_bias is {shown(given)}; it must map token ids to numbers.")
    return {
        whole("a token of logit_bias", token, 0): number("a value of logit_bias", bias, -math.inf, MAX_BIAS)
        for token, bias in given.items()
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step. `bad`: the logits contain NaN or Inf; `again`: the first token drawn was forbidden; the
    rest describes the sampled distribution."""

    token: int
    bad: bool
    threshold: int
    total: float
    highest: float
    position: int
    again: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings that shape the recording; the others are data the kernels read."""

    past: int = 0  # workgroups of 256 history tokens to count for penalties; −1: all
    adjusts: bool = False
    logprobs: bool = False

    def merged(self, other: "Recipe") -> "Recipe":
        """What serves a slot of either kind: slots skip what only others need."""
        past = -1 if min(self.past, other.past) < 0 else max(self.past, other.past)
        return Recipe(past, self.adjusts or other.adjusts, self.logprobs or other.logprobs)


class Sampler:
    """The sampling buffers of `slots` sequences, and the recording of their kernels. Row i of a pass is slot i: its
    logits are row i of `logits`, and the token drawn from them becomes row i of the next pass. `history` holds the
    tokens of all positions, in the places that the full page tables of `rows` name."""

    def __init__(self, ledger: Ledger, config: Config, rows: RowBuffer, history: Buffer, slots: int) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.config = config
        self.rows = rows
        self.history = history
        self.slots = slots
        self.stride = 4 * -(-config.vocab_size // 4)  # logits per slot
        self.logits = ledger.buffer(4 * self.stride * slots, "logits")
        peaks = QUAD * -(-config.vocab_size // (4 * BLOCK)) * slots
        self.peaks = ledger.buffer(peaks, "largest logits")
        self.sums = ledger.buffer(peaks, "sums of blocks")
        self.settings = ledger.buffer(SETTINGS_BYTES * slots, "sampling settings")
        self.results = ledger.buffer(RESULTS_BYTES * slots, "results")
        self.report = ledger.buffer(REPORT_BYTES * slots, "log-probabilities")
        self._adjusted: tuple[Buffer, Buffer, Buffer] | None = None  # bias, counts, adjusted logits, on first use
        self._masks: Buffer | None = None  # likewise
        self._masked: set[int] = set()  # slots with a mask, perhaps an old one
        self._biases: dict[int, dict[int, float]] = {}  # what a slot's bias holds beside zeros

    def begin(self, slot: int, sampling: Sampling, context: int) -> Recipe:
        """Uploads a slot's settings and returns what to record for them."""
        biases = dict(sampling.biases(self.config.vocab_size)) | dict.fromkeys(self.config.suppress_tokens, -math.inf)
        adjusts = sampling.penalises or bool(biases)
        if adjusts:
            self._put_bias(slot, biases)
        self.device.write(self.settings, SETTINGS_BYTES * slot, sampling.pack(context, adjusts=adjusts))
        if slot in self._masked:
            self._masked.remove(slot)
            self.device.write(self._mask_buffer(), 4 * (1 + -(-self.config.vocab_size // 32)) * slot, bytes(4))
        last_n = sampling.repeat_last_n if sampling.penalises else 0
        past = -1 if last_n < 0 else -(-last_n // 256)
        return Recipe(past, adjusts, sampling.logprobs is not None)

    def _put_bias(self, slot: int, biases: dict[int, float]) -> None:
        """Uploads a slot's bias, unless it is there from before."""
        buffer = self._adjustment()[0]
        if self._biases.get(slot, {}) == biases:
            return
        bias = array("f", bytes(4 * self.stride))
        for token, value in biases.items():
            bias[token] = value
        self.device.write(buffer, 4 * self.stride * slot, bias.tobytes())
        self._biases[slot] = biases

    def put_mask(self, slot: int, position: int, mask: bytes) -> None:
        """Forbids the tokens whose bits in `mask` are 0 to be drawn at `position`; `record_again` sees to that."""
        words = -(-self.config.vocab_size // 32)
        data = struct.pack("<I", position) + mask[: 4 * words].ljust(4 * words, b"\0")
        self.device.write(self._mask_buffer(), len(data) * slot, data)
        self._masked.add(slot)

    def _mask_buffer(self) -> Buffer:
        if self._masks is None:
            self._masks = self.ledger.buffer(4 * (1 + -(-self.config.vocab_size // 32)) * self.slots, "masks")
        return self._masks

    def _adjustment(self) -> tuple[Buffer, Buffer, Buffer]:
        if self._adjusted is None:
            labels = ("logit bias", "token counts", "adjusted logits")
            bias, counts, adjusted = self.ledger.buffers((self.logits.size, label) for label in labels)
            self._adjusted = bias, counts, adjusted
        return self._adjusted

    def record(self, tape: Tape, recipe: Recipe, depth: int, rows: int) -> None:
        """From the logits of `rows` slots to their next rows; `depth` bounds the history to count."""
        assert rows <= self.slots
        bindings = self._bindings(recipe)
        vocab, tables = {"vocab": self.config.vocab_size}, self.rows.tables.params(sliding=False)
        if recipe.adjusts:
            if recipe.past:
                past = -(-depth // 256)
                grid = [past if recipe.past < 0 else min(recipe.past, past), rows]
                tape.run("count", grid, bindings, {**vocab, **tables})
            tape.run("adjust", [-(-self.config.vocab_size // 256), rows], bindings, vocab)
        self._draw(tape, recipe, rows, bindings, masked=False)

    def record_again(self, tape: Tape, recipe: Recipe, rows: int) -> None:
        """Draws again for slots whose mask forbids what the pass before has drawn."""
        self._draw(tape, recipe, rows, {**self._bindings(recipe), "masks": self._mask_buffer()}, masked=True)

    def _bindings(self, recipe: Recipe) -> dict[str, Binding]:
        bindings: dict[str, Binding] = {
            "settings": self.settings,
            "logits": self.logits,
            "peaks": self.peaks,
            "sums": self.sums,
            "rows": self.rows.buffer,
            "history": self.history,
            "results": self.results,
            "report": self.report,
        }
        if recipe.adjusts:
            bias, counts, adjusted = self._adjustment()
            bindings |= {"bias": bias, "counts": counts, "adjusted": adjusted}
        return bindings

    def _draw(self, tape: Tape, recipe: Recipe, rows: int, bindings: dict[str, Binding], *, masked: bool) -> None:
        vocab, tables = {"vocab": self.config.vocab_size}, self.rows.tables.params(sliding=False)
        blocks = [-(-self.config.vocab_size // (BLOCK * PEAKS)), rows]
        most = FEW_THREADS if self.device.compact else THREADS
        threads = {"THREADS": min(most, self.device.limits.invocations)}
        source = {"ADJUSTED": recipe.adjusts, **({"MASKED": True} if masked else {})}
        tape.run("peaks", blocks, bindings, vocab, source)
        tape.run("sample", [rows], bindings, {**vocab, "context": self.rows.context, **tables}, threads | source)
        if recipe.logprobs:
            tape.run("peaks", blocks, bindings, vocab, {"SUMS": True})
            tape.run("logprobs", [rows], bindings, vocab, threads)

    def read(self, rows: int, *, logprobs: bool) -> tuple[Reading, Reading | None]:
        """Asks for the results of the first `rows` slots, and for their log-probabilities."""
        results = self.device.read_later(self.results, 0, RESULTS_BYTES * rows)
        return results, self.device.read_later(self.report, 0, REPORT_BYTES * rows) if logprobs else None


def outcome(data: bytes, slot: int, position: int) -> Outcome:
    """The result for a slot's token at `position`, from the results of all slots up to it."""
    at = RESULTS_BYTES * slot + position % RING * RESULT_BYTES
    token, bad, threshold, total, highest, drawn_at, again = struct.unpack_from("<3I2f2I", data, at)
    return Outcome(token, bool(bad), threshold, total, highest, drawn_at, bool(again))


def alternatives(data: bytes, slot: int, position: int, count: int) -> list[tuple[int, float]]:
    """(token, log-probability) of a slot's sampled token, then of the most likely ones."""
    first = REPORT_BYTES * slot + position % RING * REPORT * 8
    return [struct.unpack_from("<If", data, first + 8 * i) for i in range(count + 1)]
