"""The page's GPU: with less than usual, gone for a moment, and gone for good. What is asked of the network is ours."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from face import Face
from test_engine import HELLO, errors, sequence

# In the Worker: what the adapter grants, and the devices it gave.
REFUSE = """() => {
  self.granted ??= Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "features");
  Object.defineProperty(GPUAdapter.prototype, "features", {configurable: true, get: () => new Set()});
}"""
GRANT = """() => Object.defineProperty(GPUAdapter.prototype, "features", self.granted)"""
WATCH = """() => {
  self.request ??= GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...how) {
    return (self.latest = await self.request.apply(this, how));
  };
}"""
HIDE = """() => { self.adapters = GPU.prototype.requestAdapter; GPU.prototype.requestAdapter = async () => null; }"""
SHOW = """() => { GPU.prototype.requestAdapter = self.adapters; }"""


@contextmanager
def worker(face: Face, before: str, after: str = "() => {}") -> Iterator[Any]:
    """The engine's Worker, changed for a while."""
    face.run("() => { globalThis.model?.close(); globalThis.model = null; w.warm(); }")
    if not face.page.workers:
        face.page.wait_for_event("worker")
    (found,) = face.page.workers
    found.evaluate(before)
    try:
        yield found
    finally:
        found.evaluate(after)


def test_logits_hold_without_subgroups_and_f16(face: Face, server: Any, shared: Path) -> None:
    with worker(face, REFUSE, GRANT):
        face.load(server.offer(shared / "models/tiny-e2b-Q4_K_M.gguf"))
        golden = np.load(shared / "tiny-e2b/logits_short.Q4_K_M.npy")
        assert errors(face.logits(sequence(shared / "tiny-e2b", "short")), golden).max() <= 2e-3


def test_the_per_layer_table_may_stay_with_the_host(face: Face, server: Any, shared: Path) -> None:
    address = server.offer(shared / "models/tiny-e2b-Q4_K_M.gguf")
    ids = sequence(shared / "tiny-e2b", "short")
    golden = np.load(shared / "tiny-e2b/logits_short.Q4_K_M.npy")
    for save in (True, False):
        face.load(address, ple="host", save=save)
        assert errors(face.logits(ids), golden).max() <= 2e-3
    assert len(face.chat(HELLO, maxTokens=5, temperature=0)["parts"]) > 1


# There is room for everything but the per-layer table.
FILL = """() => {
  self.create ??= GPUDevice.prototype.createBuffer;
  self.pop ??= GPUDevice.prototype.popErrorScope;
  let refused = 0; // error scopes around the table
  GPUDevice.prototype.createBuffer = function (how) {
    if (how.label?.startsWith("per_layer_token_embd")) refused = 2;
    return self.create.call(this, how);
  };
  GPUDevice.prototype.popErrorScope = function () {
    const real = self.pop.call(this);
    return refused-- > 0 ? real.then(() => new GPUOutOfMemoryError("no room")) : real;
  };
}"""
EMPTY = """() => {
  GPUDevice.prototype.createBuffer = self.create;
  GPUDevice.prototype.popErrorScope = self.pop;
}"""


def test_a_table_that_finds_no_room_on_the_gpu_stays_with_the_host(face: Face, server: Any, shared: Path) -> None:
    address = server.offer(shared / "models/tiny-e2b-Q4_K_M.gguf")
    ids = sequence(shared / "tiny-e2b", "short")
    golden = np.load(shared / "tiny-e2b/logits_short.Q4_K_M.npy")
    assert face.load(address)["info"]["table"] == "gpu"
    with worker(face, FILL, EMPTY):
        assert face.load(address)["info"]["table"] == "host"
        assert errors(face.logits(ids), golden).max() <= 2e-3
        refused = face.attempt(address, ple="gpu")
        assert refused["code"] == "out-of-memory" and "per_layer_token_embd" in refused["message"]


PHONE = "Mozilla/5.0 (Linux; Android 16; K) AppleWebKit/537.36 Chrome/156.0.0.0 Mobile Safari/537.36"
LISTEN = """() => {
  globalThis.orders = [];
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (order, ...rest) {
    orders.push(order);
    return post.call(this, order, ...rest);
  };
}"""


@pytest.mark.parametrize(("how", "memory", "small"), [({}, 32, False), ({}, 4, True), ({"user_agent": PHONE}, 8, True)])
def test_phones_and_small_machines_are_not_filled(
    browser: Any, server: Any, micro: str, how: dict[str, str], memory: int, small: bool
) -> None:
    context = browser.new_context(**how)
    context.add_init_script(f"Object.defineProperty(navigator, 'deviceMemory', {{get: () => {memory}}})")
    page = context.new_page()
    page.goto(f"{server.url}/empty.html")
    page.evaluate(LISTEN)
    page.evaluate("async () => { (await import('/wgemma.js')).load('/models/nothing.gguf').catch(() => {}); }")
    page.wait_for_function("() => orders.some(({verb}) => verb === 'load')")
    assert page.evaluate("() => orders.find(({verb}) => verb === 'load').small") is small
    context.close()


# -- gone, and back


def test_a_device_that_is_lost_is_replaced_in_the_middle_of_a_reply(face: Face, micro: str) -> None:
    with worker(face, WATCH) as engine:
        face.load(micro)
        whole = face.chat(HELLO, maxTokens=20, temperature=0)
        face.run("() => { globalThis.heard = 0; }")
        script = """async (messages) => {
          const parts = [];
          for await (const part of model.chat(messages, {maxTokens: 20, temperature: 0})) {
            parts.push(part.text);
            globalThis.heard = parts.length;
          }
          return parts;
        }"""
        face.run(f"(messages) => {{ globalThis.reply = ({script})(messages); }}", HELLO)
        face.page.wait_for_function("() => heard > 2")
        engine.evaluate("() => self.latest.destroy()")
        assert face.run("() => reply") == [part["text"] for part in whole["parts"]]


def test_a_killed_gpu_process_does_not_end_a_chat(face: Face, kill_gpu: Callable[[], None], micro: str) -> None:
    face.load(micro)
    before = face.chat(HELLO, maxTokens=6, temperature=0)
    kill_gpu()
    after = face.chat(HELLO, maxTokens=6, temperature=0)
    assert [part["text"] for part in after["parts"]] == [part["text"] for part in before["parts"]]


def test_a_gpu_that_does_not_come_back_says_so_and_may_be_loaded_again(face: Face, micro: str) -> None:
    with worker(face, WATCH) as engine:
        face.load(micro)
        engine.evaluate(HIDE)
        engine.evaluate("() => self.latest.destroy()")
        told = face.chat(HELLO, maxTokens=6)
        assert told["code"] == "device-lost" and "Load the model again." in told["message"]
        engine.evaluate(SHOW)
        face.load(micro)
        assert face.chat(HELLO, maxTokens=6, temperature=0)["parts"][-1]["finishReason"] == "length"


def test_offsets_past_four_gibibytes_are_exact(face: Face, server: Any, micro: str, data: Path, tmp_path: Path) -> None:
    server.models["far.gguf"] = far = Far(server.models["micro.gguf"].read_bytes())
    golden = np.load(data / "micro/logits_short.npy")
    face.load("/models/far.gguf", save=False)
    assert errors(face.logits(sequence(data / "micro", "short")), golden).max() <= 2e-3
    path = tmp_path / "far.gguf"
    far.write(path)
    face.run("() => document.body.replaceChildren(Object.assign(document.createElement('input'), {type: 'file'}))")
    face.page.set_input_files("input", path)
    face.run("() => loadModel(document.querySelector('input').files[0], {})")
    assert errors(face.logits(sequence(data / "micro", "short")), golden).max() <= 2e-3
    assert face.run("() => model.stats()")["heap"] < 200 << 20


class Far:
    """A model whose tensors begin five gibibytes later, with nothing before them."""

    HOLE = 5 << 30

    def __init__(self, model: bytes) -> None:
        from wgemma.files.gguf import Gguf

        gguf = Gguf.open(model)
        start = min(tensor.offset for tensor in gguf.tensors.values())
        header = bytearray(model[:start])
        for tensor in gguf.tensors.values():
            name = tensor.name.encode()
            at = header.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 8 * len(tensor.shape) + 4
            header[at : at + 8] = (tensor.offset - start + self.HOLE).to_bytes(8, "little")
        self.header, self.data = bytes(header), model[start:]

    def __len__(self) -> int:
        return len(self.header) + self.HOLE + len(self.data)

    def __getitem__(self, span: slice) -> bytes:
        far = len(self.header) + self.HOLE
        if span.start >= far:
            return self.data[span.start - far : span.stop - far]
        return self.header[span.start : span.stop].ljust(span.stop - span.start, b"\0")

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(self.header)
            file.seek(len(self.header) + self.HOLE)
            file.write(self.data)


def test_nothing_was_asked_of_anybody_else(face: Face, server: Any) -> None:
    assert len(face.requests) > 20
    assert [url for url in face.requests if not url.startswith(f"{server.url}/")] == []


def test_wrong_settings_and_closed_models_say_so(face: Face, micro: str) -> None:
    face.load(micro)
    assert face.chat(HELLO, temperature=-1)["code"] == "settings"
    assert face.chat(HELLO, warmth=1)["code"] == "settings"
    assert face.chat("Hello")["code"] == "settings"
    broken = [{"role": "user", "content": [{"type": "audio", "audio": []}]}]
    assert face.chat(broken)["code"] == "media"
    assert face.run("() => attempt(() => model.encodeImage(new Blob(['no picture'])))")["code"] == "media"
    face.run("() => model.close()")
    told = face.chat(HELLO)
    assert told["code"] == "worker" and "closed" in told["message"]
    assert json.dumps(told["parts"]) == "[]"
