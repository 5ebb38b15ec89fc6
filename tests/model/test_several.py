"""Rows of several sequences in one pass: each finds its own history, wherever its pages lie."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from one_sequence import engine_on
from wgemma.engine.engine import Engine
from wgemma.engine.options import Options
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import Dispatch
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.cache import CacheSegment, token_bytes
from wgemma.model.passes import Pass
from wgemma.model.rows import PAGE, Row, RowBuffer, pages_of
from wgemma.sync import run

Floats = NDArray[np.float32]


class Arena:
    """Keys and values of any number of sequences."""

    packed = False
    kv = "f32"

    def __init__(self, engine: Engine, ledger: Ledger, pages: int) -> None:
        self.segments: dict[int, list[CacheSegment]] = {}
        for layer in engine.config.layers:
            if layer.donor is None:
                size = pages * PAGE * token_bytes(layer, self.kv)
                keys, values = ledger.buffer(size, "keys"), ledger.buffer(size, "values")
                self.segments[layer.index] = [CacheSegment(0, pages * PAGE, keys, values)]


class Several:
    """Sequences in an arena, their pages in random order."""

    def __init__(self, engine: Engine, ledger: Ledger, sequences: Sequence[Sequence[int]]) -> None:
        self.engine, self.ledger, self.sequences = engine, ledger, sequences
        self.longest = max(map(len, sequences))
        counts = [pages_of(len(ids)) for ids in sequences]
        self.arena = Arena(engine, ledger, sum(counts))
        self.tables = []
        for seed in range(2):  # full layers' and sliding ones'
            pages = iter(random.Random(seed).sample(range(sum(counts)), sum(counts)))
            self.tables.append([[next(pages) for _ in range(count)] for count in counts])

    def rows(self, rows: Sequence[Row], which: Sequence[int], *, several: bool) -> RowBuffer:
        made = RowBuffer(self.ledger, len(rows), self.longest, several=several, label="rows")
        made.put_rows(rows)
        for row, sequence in enumerate(which):
            for sliding in (False, True):
                made.put_pages(row, 0, self.tables[sliding][sequence], sliding=sliding)
        return made

    def fill(self) -> None:
        """Computes all tokens but the last of each sequence, one after another."""
        for sequence, ids in enumerate(self.sequences):
            rows = [Row(1, t, token, t) for t, token in enumerate(ids[:-1])]
            buffer, tape = self.rows(rows, [sequence], several=False), Tape(self.engine.device, "fill")
            p = Pass(tape, len(rows), buffer.buffer, buffer.tables, self.arena, self.longest)
            self.engine.decoder.fill(p)
            tape.program().replay()
            tape.free()

    def last_logits(self, which: Sequence[int]) -> tuple[Floats, set[str]]:
        """The logits of these sequences' last tokens, in one pass, and its kernels."""
        last = [(self.sequences[i][-1], len(self.sequences[i]) - 1) for i in which]
        rows = [*(Row(1, position, token, position) for token, position in last), Row(0, 0, 0, 0)]
        buffer, tape = self.rows(rows, which, several=True), Tape(self.engine.device, "several")
        p = Pass(tape, len(rows), buffer.buffer, buffer.tables, self.arena, self.longest)
        vocab = self.engine.config.vocab_size
        logits = self.ledger.buffer(4 * len(rows) * vocab, "logits")
        self.engine.decoder.head(p, self.engine.decoder.record(p), logits)
        tape.program().replay()
        got = np.frombuffer(run(self.engine.device.read(logits)), "<f4").reshape(len(rows), vocab)
        kernels = {command.kernel.name for command in tape.commands if isinstance(command, Dispatch)}
        tape.free()
        return got[:-1], kernels


@pytest.fixture(params=["floor", "gpu", "compact"])
def device(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    if request.param != "compact":
        yield request.getfixturevalue(request.param)
        return
    device = NativeDevice(compact=True)
    yield device
    device.close()


def test_each_of_several_sequences_gets_its_own_logits(shared: Path, device: NativeDevice) -> None:
    texts = json.loads((shared / "tiny-e2b/golden.json").read_text())["sequences"]
    golden = {name: np.load(shared / f"tiny-e2b/logits_{name}.npy") for name in texts}
    cuts = [(name, end) for name, ids in texts.items() for end in (len(ids), len(ids) // 2, 3)]
    with Ledger(device) as ledger:
        engine = engine_on(device, Gguf.open(shared / "models/tiny-e2b-F16.gguf"), Options(kv="f32", context=1024))
        several = Several(engine, ledger, [texts[name][:end] for name, end in cuts])
        several.fill()
        for count in (3, 12, 63):  # and an unused row
            which = [i % len(cuts) for i in range(count)]
            got, kernels = several.last_logits(which)
            wanted = np.stack([golden[cuts[i][0]][cuts[i][1] - 1] for i in which])
            errors = np.sqrt(((got - wanted) ** 2).mean(1) / (wanted**2).mean(1))
            assert errors.max() <= 5e-4
            assert {name for name in kernels if name.startswith("attention")} <= {
                "attention" if device.compact else "attention_few",
                "attention_join",
            }
        engine.free()
