"""What the page costs: host time per token, and memory, whatever the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

DISPATCHES = 280  # of one token of E2B
HEAP = 120 << 20

Lab = Callable[[str], Any]

# A tape as long as a token's, of kernels that find nothing to do, replayed and read back.
TAPE = """
import json
from statistics import median
from time import perf_counter

import lab
from wgemma.gpu.browser import BrowserDevice
from wgemma.gpu.tape import Tape

device = await BrowserDevice.open(lab.openGpu, "")
words, other = device.buffer(1 << 12, "words"), device.buffer(1 << 12, "other")
tape = Tape(device, "as long as a token's")
for i in range(%d):
    if i %% 2:
        tape.run("clear", [1], {"words": words}, {"count": 0})
    else:
        tape.run("activate", [1, 1], {"x": words, "y": other}, {"n": 0}, {"GEGLU": True})
program = tape.program()
await device.confirm()
recording, reading = [], []
for _ in range(10):
    began = perf_counter()
    for _ in range(5):
        program.replay()
    recording.append((perf_counter() - began) / 5)
    await device.wait()
    began = perf_counter()
    for _ in range(5):
        await device.read(other, 0, 2048)
    reading.append((perf_counter() - began) / 5)
json.dumps({"recording": 1e3 * median(recording), "reading": 1e3 * median(reading)})
"""

VOCABULARY = """
import json

import lab
from wgemma.files.gguf import Gguf
from wgemma.files.page_sources import PageSource
from wgemma.text.tokenizer import Tokenizer

gguf = await Gguf.aopen(PageSource(await lab.fileAt("/models/gemma4-vocab.gguf")))
tokenizer = Tokenizer.from_gguf(gguf)
json.dumps({"tokens": len(tokenizer), "ids": tokenizer.encode("Why is the sky blue?"), "heap": lab.heap()})
"""


def test_a_tokens_commands_are_recorded_within_a_millisecond(lab: Lab) -> None:
    """Measured apart from the GPU; a machine with other things to do may need a second try."""
    tries = []
    for _ in range(3):
        tries.append(lab(TAPE % DISPATCHES))
        if tries[-1]["recording"] <= 1:
            break
    print(tries)  # milliseconds; `reading` is from an idle GPU
    assert min(told["recording"] for told in tries) <= 1


def test_the_real_vocabulary_fits_into_a_small_heap(fresh_lab: Lab, server: Any, shared: Path) -> None:
    server.offer(shared / "vocab/gemma4-vocab.gguf")
    told = fresh_lab(VOCABULARY)
    assert told["tokens"] == 262_144 and told["heap"] < HEAP
