"""What the page costs: host time per token, and memory, whatever the model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # until they were seen to hold on a quiet machine

DISPATCHES = 280  # of one token of E2B
HEAP = 200 << 20

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
        tape.run("clear", [1], {"words": words}, (0,))
    else:
        tape.run("activate", [1, 1], {"x": words, "y": other}, (0, 0, 0), {"GEGLU": True})
program = tape.program()
await device.confirm()
recording, reading = [], []
for i in range(40):
    began = perf_counter()
    program.replay()
    replayed = perf_counter()
    await device.wait()
    waited = perf_counter()
    await device.read(other, 0, 2048)
    recording.append(replayed - began)
    reading.append(perf_counter() - waited)
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

Lab = Callable[[str], Any]


@pytest.fixture(scope="module")
def lab(browser: Any, server: Any) -> Iterator[Lab]:
    """Runs Python in a Worker and gives what its last expression says in JSON."""
    server.files["lab.js"] = Path(__file__).with_name("lab.js")
    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    page.evaluate("() => { globalThis.lab = new Worker('/lab.js', {type: 'module'}); }")

    def run(code: str) -> Any:
        script = "(code) => new Promise((done) => { lab.onmessage = ({data}) => done(data); lab.postMessage(code); })"
        told = page.evaluate(script, code)
        assert "error" not in told, told
        return json.loads(told["value"])

    yield run
    page.close()


def test_a_tokens_commands_are_recorded_within_a_millisecond(lab: Lab) -> None:
    """Measured apart from the GPU; a machine with other things to do may need a second try."""
    tries = []
    for _ in range(3):
        tries.append(lab(TAPE % DISPATCHES))
        if tries[-1]["recording"] <= 1:
            break
    print(tries)
    assert min(told["recording"] for told in tries) <= 1


def test_the_real_vocabulary_fits_into_a_small_heap(lab: Lab, server: Any, shared: Path) -> None:
    server.offer(shared / "vocab/gemma4-vocab.gguf")
    told = lab(VOCABULARY)
    print(told)
    assert told["tokens"] == 262_144 and told["heap"] < HEAP
