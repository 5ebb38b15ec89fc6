"""The engine in a real page: golden logits, a chat that streams and stops, pictures and sounds."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from face import Face, Floats
from numpy.typing import NDArray

from random_weights import randomised
from wgemma.files.gguf import Gguf
from wgemma.model.planes import PLANES
from wgemma.reference.decoder import Reference

HELLO = [{"role": "user", "content": "Hello there, what is it like?"}]


def errors(got: Floats, golden: Floats) -> NDArray[np.float64]:
    """rms(Δ) / rms(golden) at every position."""
    difference = (got - golden).astype(np.float64)
    return np.sqrt((difference**2).mean(1) / (golden.astype(np.float64) ** 2).mean(1))


def sequence(folder: Path, name: str) -> list[int]:
    ids: list[int] = json.loads((folder / "golden.json").read_text())["sequences"][name]
    return ids


# -- numbers


def test_a_clone_alone_proves_the_forward_pass(face: Face, micro: str, data: Path) -> None:
    face.load(micro)
    for name in ("short", "mid"):
        golden = np.load(data / f"micro/logits_{name}.npy")
        assert errors(face.logits(sequence(data / "micro", name)), golden).max() <= 2e-3


def test_logits_of_a_small_model_equal_transformers(face: Face, server: Any, shared: Path) -> None:
    told = face.load(server.offer(shared / "models/tiny-e2b-Q4_K_M.gguf"))
    assert told["info"]["quantisation"] == "Q4_K_M" and told["info"]["vocabulary"] == 1024
    for name in ("short", "mid"):
        golden = np.load(shared / f"tiny-e2b/logits_{name}.Q4_K_M.npy")
        assert errors(face.logits(sequence(shared / "tiny-e2b", name)), golden).max() <= 2e-3


def test_logits_of_experts_equal_transformers(face: Face, server: Any, shared: Path) -> None:
    face.load(server.offer(shared / "models/tiny-26b-a4b-Q4_K_M.gguf"))
    for name in ("short", "mid"):
        golden = np.load(shared / f"tiny-26b-a4b/logits_{name}.Q4_K_M.npy")
        got = errors(face.logits(sequence(shared / "tiny-26b-a4b", name)), golden)
        far = np.flatnonzero(got > 5e-3)
        gaps = np.load(shared / f"tiny-26b-a4b/router_gap_{name}.npy")[:, :, 0]  # [layer, token]
        assert len(far) <= 0.03 * len(got)
        assert all(gaps[:, : position + 1].min() < 0.02 for position in far)


# The adapter here is a software one, which has kernels of its own; what GPUs use is held to the same numbers. Their
# start-up test has a test of its own, and takes a minute here.
LIKE_A_GPU = """
import base64
import json

import lab
from wgemma import loading
from wgemma.engine.options import Options
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.files.page_sources import PageSource
from wgemma.gpu.browser import BrowserDevice

async def trust(device, config, tensors, options, meanwhile):
    return options

loading.prepare = trust
device = await BrowserDevice.open(lab.openGpu, "")
device.compact = False
gguf = await Gguf.aopen(PageSource(await lab.fileAt("%s")))
model = await loading.assemble(ModelFiles("tiny", "tiny"), [gguf], loading.Loading(device=device))
few, many = [base64.b64encode(await model.logit_bytes(ids)).decode() for ids in %s]
used = sorted({name for name, _ in device._kernels})
model.close()
json.dumps([few, many, used])
"""


def test_the_kernels_of_real_gpus_give_the_same_logits(lab: Callable[[str], Any], micro: str, data: Path) -> None:
    ids = sequence(data / "micro", "mid")
    golden = np.load(data / "micro/logits_mid.npy")
    *told, used = lab(LIKE_A_GPU % (micro, [ids[:4], ids]))
    for text, count in zip(told, (4, len(ids)), strict=True):
        got = np.frombuffer(base64.b64decode(text), np.float32).reshape(count, -1)
        assert errors(got, golden[:count]).max() <= 2e-3
    assert {"matvec", "tile"} <= set(used) and "direct" not in used


TYPES = ("Q2_K", "Q3_K", "Q4_1", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4")


def test_weights_of_every_rare_type_give_the_oracles_logits(
    lab: Callable[[str], Any], server: Any, shared: Path, tmp_path: Path
) -> None:
    path = randomised(shared / "models/tiny-e2b-F16.gguf", tmp_path / "rare.gguf", *TYPES)
    ids = sequence(shared / "tiny-e2b", "short")
    with Gguf.open(path) as gguf:
        assert {tensor.type for tensor in gguf.tensors.values()} >= set(TYPES)
        expected = Reference(gguf).logits(ids)
    *told, _ = lab(LIKE_A_GPU % (server.offer(path), [ids[:4], ids]))
    for text, count in zip(told, (4, len(ids)), strict=True):
        got = np.frombuffer(base64.b64decode(text), np.float32).reshape(count, -1)
        assert errors(got, expected[:count]).max() <= 2e-3


# Every kernel that reads weights, for every type, as a GPU would compile it.
COMPILE = """
import json

import lab
from wgemma.gpu.browser import BrowserDevice
from wgemma.model.forms import direct_form, matvec_form, middle_form, tile_form
from wgemma.model.planes import PLANES
from wgemma.model.weights import Matrix

device = await BrowserDevice.open(lab.openGpu, "")
for kind, planes in PLANES.items():
    device.kernel("repack", planes.repack_constants)
    device.kernel("embed", {"TYPE": planes.reader})
    device.kernel("direct", direct_form(device) | {"TYPE": planes.reader})
    device.kernel("tile", tile_form(64, 1024) | {"TYPE": planes.reader})
    for quick in (False, True) if planes.quick else (False,):
        matrix = Matrix(kind, 1024, 768, ())
        for kernel in ("matvec", "experts_matvec"):
            device.kernel(kernel, matvec_form(device, matrix, kernel, quick=quick))
        form, _ = middle_form(device, 8, 1024, 24, quick=quick)
        device.kernel("middle", form | {"TYPE": planes.reader})
    if planes.quick:
        device.kernel("tile_bytes", tile_form(64, 1024) | {"TYPE": planes.reader} | {"QUICK": True})
    await device.confirm()
json.dumps([len(PLANES), len(device._kernels)])
"""


@pytest.mark.slow
def test_every_weight_type_compiles_in_every_kernel(lab: Callable[[str], Any]) -> None:
    types, kernels = lab(COMPILE)
    assert types == len(PLANES) and kernels > 7 * types


# -- pictures and sounds


def test_the_towers_see_and_hear_what_transformers_does(face: Face, server: Any, shared: Path) -> None:
    projector = server.offer(shared / "models/mmproj-tiny-e2b-F16.gguf")
    told = face.load(server.offer(shared / "models/tiny-e2b-Q4_K_M.gguf"), projector=projector)
    assert told["info"]["sees"] and told["info"]["hears"]
    for file, call, golden in (
        ("img_384x336.png", "encodeImage", "vision_img_384x336"),
        ("aud_1p37s.wav", "encodeAudio", "audio_aud_1p37s"),
    ):
        address = server.offer(shared / "media" / file)
        fetched = "fetch(given).then((answer) => answer.blob())"
        got = face.floats(f"{fetched}.then((blob) => model.{call}(blob, 70))", address)
        expected = np.load(shared / f"tiny-e2b/{golden}.embd.npy")
        assert np.linalg.norm(got.reshape(expected.shape) - expected) <= 1e-2 * np.linalg.norm(expected)
    told = face.run(SHOW_AND_TELL, ["/models/img_384x336.png", "/models/aud_1p37s.wav"])
    assert told["prompt"] > 56 + 34 + 4  # rows of the picture and of the sound, between the tokens that enclose them


SHOW_AND_TELL = """async (addresses) => {
  const [image, audio] = await Promise.all(addresses.map(async (address) => (await fetch(address)).blob()));
  const content = [{type: "image", image, budget: 70}, {type: "audio", audio}, {type: "text", text: "What is it?"}];
  for await (const {usage} of model.chat([{role: "user", content}], {maxTokens: 3})) if (usage) return usage;
}"""


# -- chats


@pytest.fixture(scope="module")
def chatting(face: Face, micro: str) -> Face:
    """A model for the tests below: for each new one, the kernels are compiled again."""
    face.load(micro)
    return face


def test_a_chat_streams_and_ends(chatting: Face) -> None:
    told = chatting.chat(HELLO, maxTokens=24, temperature=0)
    last = told["parts"][-1]
    assert len(told["parts"]) > 3 and last["at"] > told["parts"][0]["at"]
    assert last["finishReason"] in ("length", "stop", "tool") and last["usage"]["prompt"] > 5
    assert last["timing"]["firstToken"] > 0 and last["timing"]["tokensPerSecond"] > 0
    again = chatting.chat(HELLO, maxTokens=24, temperature=0)
    assert [part["text"] for part in again["parts"]] == [part["text"] for part in told["parts"]]
    assert again["parts"][-1]["usage"]["reused"] > 0


def test_formats_and_tools_reach_the_engine(chatting: Face) -> None:
    for options, words in (
        ({"format": {"enum": [None], "type": "strong"}}, "#/type is 'strong'"),
        ({"format": "yaml"}, "format is 'yaml'"),
        ({"toolChoice": "required"}, "there are no tools"),
        ({"parallelToolCalls": "no"}, "parallel_tool_calls is 'no'"),
    ):
        error = chatting.chat(HELLO, **options)
        assert error["code"] == "settings" and words in error["message"]
    told = chatting.chat(HELLO, format={"enum": [{"a": [None]}]}, toolChoice=None)
    assert "".join(part["text"] for part in told["parts"]) == '{"a": [null]}'
    assert told["parts"][-1]["finishReason"] == "stop"


def test_a_chat_stops_when_it_is_told_to(chatting: Face) -> None:
    told = chatting.chat(HELLO, stop_after=3, temperature=0)
    *_, asked = told["parts"][:3]
    last = told["parts"][-1]
    assert last["finishReason"] == "cancelled" and last["usage"]["generated"] > 0
    assert last["at"] - asked["at"] < 3000
    assert chatting.chat(HELLO, maxTokens=2, temperature=0)["parts"][-1]["finishReason"] == "length"


def test_a_chat_can_be_stopped_while_its_prompt_is_read(chatting: Face) -> None:
    long = [{"role": "user", "content": "Tell me more of this. " * 200}]
    told = chatting.chat(long, stop_after=-50)
    assert [part["finishReason"] for part in told["parts"]] == ["cancelled"]
    assert chatting.chat(HELLO, maxTokens=2, temperature=0)["parts"][-1]["finishReason"] == "length"
