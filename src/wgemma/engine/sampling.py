"""How the next token is chosen: the user's settings, and the GPU kernels that apply them."""

import math
import random
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wgemma.checks import number, shown, whole
from wgemma.errors import SettingsError
from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.config import Config

RESULTS = 64  # how many steps the GPU may be ahead of the host
RESULT_BYTES = 32
REPORT = 32  # (token, log-probability) pairs per step
MAX_ALTERNATIVES = REPORT - 1
THREADS = 1024  # in the one workgroup that samples, if the adapter allows it
FEW_THREADS = 256  # on a software adapter, where every thread costs time
QUAD = 16  # bytes: logits are read four at a time
BLOCK = 64  # logits that share a peak
PEAKS = 32  # peaks per workgroup
MAX_BIAS = 1e9  # far above any logit, and finite in float32 at any temperature

# The least and the most each setting may be.
NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-3, 1e3),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
}
WHOLE: dict[str, tuple[int, int]] = {
    "top_k": (0, 1 << 31),
    "repeat_last_n": (-1, 1 << 31),
    "seed": (-(1 << 63), (1 << 64) - 1),
    "logprobs": (0, MAX_ALTERNATIVES),
}
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

    def biases(self, vocab: int) -> Mapping[int, float]:
        """`logit_bias`, which raises if a token is not in the vocabulary."""
        for token in self.logit_bias:
            if token >= vocab:
                raise SettingsError(f"logit_bias has token {shown(token)}; the vocabulary has {vocab}.")
        return self.logit_bias

    def pack(self, context: int) -> bytes:
        """The kernels' Settings (kernels/sampler.wgsl)."""
        seed = (self.seed or 0) & (1 << 64) - 1
        last_n = context if self.repeat_last_n < 0 else min(self.repeat_last_n, context)
        return struct.pack(
            "<6f6I",
            max(self.temperature, 1e-6),
            self.top_p,
            math.log(self.min_p) if self.min_p > 0 else -1e30,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.top_k,
            last_n,
            seed & 0xFFFFFFFF,
            seed >> 32,
            self.greedy,
            self.logprobs or 0,
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
    """The result of one step. `bad`: the logits contain NaN or Inf; the rest describes the sampled distribution."""

    token: int
    bad: bool
    threshold: int
    total: float
    highest: float
    position: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings that shape the recording; the others are data the kernels read."""

    penalises: bool
    adjusts: bool
    past: int  # workgroups of 256 history tokens to count; −1: all
    logprobs: bool


class Sampler:
    """A runner's sampling buffers, and the recording of its kernels."""

    def __init__(self, ledger: Ledger, config: Config, rows: Buffer, history: Buffer) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.config = config
        self.rows = rows
        self.history = history
        self.logits = ledger.buffer(QUAD * -(-config.vocab_size // 4), "logits")
        peaks = QUAD * -(-config.vocab_size // (4 * BLOCK))
        self.peaks = ledger.buffer(peaks, "largest logits")
        self.sums = ledger.buffer(peaks, "sums of blocks")
        self.picked = ledger.buffer(4, "picked row")
        self.settings = ledger.buffer(48, "sampling settings")
        self.results = ledger.buffer(RESULTS * RESULT_BYTES, "results")
        self.report = ledger.buffer(RESULTS * REPORT * 8, "log-probabilities")
        self._adjusted: tuple[Buffer, Buffer, Buffer] | None = None  # bias, counts, adjusted logits, on first use

    def begin(self, sampling: Sampling, context: int) -> Recipe:
        """Uploads the settings and returns what to record for them."""
        adjusts = sampling.penalises or bool(sampling.logit_bias) or bool(self.config.suppress_tokens)
        last_n = sampling.repeat_last_n if sampling.penalises else 0
        past = -1 if last_n < 0 else -(-last_n // 256)
        recipe = Recipe(sampling.penalises, adjusts, past, sampling.logprobs is not None)
        self.device.write(self.settings, 0, sampling.pack(context))
        if adjusts:
            bias = array("f", bytes(4 * self.config.vocab_size))
            for token, value in sampling.biases(self.config.vocab_size).items():
                bias[token] = value
            for token in self.config.suppress_tokens:
                bias[token] = -math.inf
            self.device.write(self._adjustment()[0], 0, bias.tobytes())
        return recipe

    def _adjustment(self) -> tuple[Buffer, Buffer, Buffer]:
        if self._adjusted is None:
            size = QUAD * -(-self.config.vocab_size // 4)
            labels = ("logit bias", "token counts", "adjusted logits")
            bias, counts, adjusted = self.ledger.buffers((size, label) for label in labels)
            self._adjusted = bias, counts, adjusted
        return self._adjusted

    def record(self, tape: Tape, recipe: Recipe, depth: int) -> None:
        """From logits to the next row; `depth` bounds the history to count."""
        bindings: dict[str, Binding] = {
            "settings": self.settings,
            "logits": self.logits,
            "peaks": self.peaks,
            "sums": self.sums,
            "rows": self.rows,
            "picked": self.picked,
            "history": self.history,
            "results": self.results,
            "report": self.report,
        }
        drawn_from = dict(bindings)
        if recipe.adjusts:
            bias, counts, adjusted = self._adjustment()
            extra: dict[str, Binding] = {**bindings, "bias": bias, "counts": counts, "adjusted": adjusted}
            if recipe.penalises:
                past = -(-depth // 256)
                tape.run("count", [past if recipe.past < 0 else min(recipe.past, past)], extra)
            tape.run("adjust", [-(-self.config.vocab_size // 256)], extra)
            drawn_from["logits"] = adjusted
        vocab = {"vocab": self.config.vocab_size}
        blocks = [-(-self.config.vocab_size // (BLOCK * PEAKS))]
        most = FEW_THREADS if self.device.compact else THREADS
        threads = {"THREADS": min(most, self.device.limits.invocations)}
        tape.run("peaks", blocks, drawn_from, vocab, {"SUMS": False})
        tape.run("sample", [1], drawn_from, vocab, threads)
        if recipe.logprobs:
            tape.run("peaks", blocks, bindings, vocab, {"SUMS": True})
            tape.run("logprobs", [1], bindings, vocab, threads)


def outcome(data: bytes, position: int) -> Outcome:
    """The result for the token at `position`, from the results ring."""
    fields: tuple[Any, ...] = struct.unpack_from("<3I2fI", data, position % RESULTS * RESULT_BYTES)
    return Outcome(fields[0], bool(fields[1]), *fields[2:])


def alternatives(data: bytes, position: int, count: int) -> list[tuple[int, float]]:
    """(token, log-probability) of the sampled token, then of the most likely ones."""
    first = position % RESULTS * REPORT * 8
    return [struct.unpack_from("<If", data, first + 8 * i) for i in range(count + 1)]
