"""The page is offered the models it can run, by ids that are not paths."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_parts import write_parts
from gguf_writer import write_gguf
from store_models import projector
from wgemma.creating import create
from wgemma.embedded import embedded_model
from wgemma.errors import Error
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import put_blob
from wgemma.files.ollama import Store
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.web.models import Offer, by_id, embedded_offer, offer_of, stored_offers


@pytest.fixture
def store(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = shutil.copytree(data / "ollama-store", tmp_path / "store")
    monkeypatch.setenv("OLLAMA_MODELS", str(copy))
    return copy


def test_the_embedded_model_is_told_as_it_is() -> None:
    offer, path = embedded_offer(), embedded_model()
    assert offer is not None
    assert path is not None
    record = offer.record()
    assert (record["embedded"], record["size"]) == (True, path.stat().st_size)
    assert record["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["url"] == f"models/{record['name']}.gguf"
    assert record["parameters"] > 1_000_000
    assert record["settings"]["temperature"] == 0


def test_what_cannot_be_run_is_passed_over(store: Path) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text())["models"]
    offers = stored_offers(Store(store))
    assert {offer.name for offer in offers} == {name for name, fields in expected.items() if fields.get("runnable")}
    assert all(re.fullmatch(r"[\w.-]+\.gguf", offer.id, re.ASCII) for offer in offers)


def with_params(store: Path, params: str) -> list[Offer]:
    """What is offered of gemma4:tiny when these are its settings."""
    manifest = json.loads((store / "manifests/registry.ollama.ai/library/gemma4/tiny").read_text())
    (layer,) = (layer for layer in manifest["layers"] if layer["mediaType"].endswith(".params"))
    (store / "blobs" / layer["digest"].replace(":", "-")).write_text(params)
    return [offer for offer in stored_offers(Store(store)) if offer.name == "gemma4:tiny"]


def test_hostile_settings_are_passed_over(store: Path) -> None:
    (offer,) = with_params(store, '{"temperature": 1e12, "min_p": 0.1, "evil": 1, "seed": null, "top_k": -1e15}')
    assert offer.settings == {"minP": 0.1, "topK": 0, "topP": 0.95}  # a negative top_k is all tokens
    json.dumps(offer.record(), allow_nan=False)


@pytest.mark.parametrize("value", ["1e999", '"<b>"', "{}", "[1]", "1" + "0" * 400])
def test_a_model_whose_settings_cannot_be_read_is_not_offered(store: Path, value: str) -> None:
    assert with_params(store, f'{{"temperature": {value}}}') == []


@pytest.mark.parametrize("label", ["\ud800", "<img src=x>", "x" * 1000, 7, None, ["Q8_0"], "a\nb\x1b[31m"])
def test_hostile_labels_are_passed_over(store: Path, label: object) -> None:
    manifest = json.loads((store / "manifests/registry.ollama.ai/library/gemma4/tiny").read_text())
    blob = store / "blobs" / manifest["config"]["digest"].replace(":", "-")
    blob.write_text(json.dumps({**json.loads(blob.read_text()), "file_type": label, "model_families": label}))
    (offer,) = (offer for offer in stored_offers(Store(store)) if offer.name == "gemma4:tiny")
    assert re.fullmatch(r"\w{0,20}", offer.quantisation, re.ASCII)
    assert "tools" in offer.capabilities


def test_names_that_come_out_the_same_stay_apart() -> None:
    one = embedded_offer()
    assert one is not None
    two = replace(one, name="other", parts=(replace(one.parts[0], digest="ab" * 32),))
    table = by_id([one, two, two])
    assert list(table) == [one.id, f"{'ab' * 32}.gguf"]
    assert table[one.id].digest == one.digest


def test_a_model_is_not_taken_for_anothers_adapter() -> None:
    one = embedded_offer()
    assert one is not None
    adapted = replace(one, id="a.gguf", adapters=one.parts)
    other = replace(one, id="a-adapter-1.gguf", parts=(replace(one.parts[0], digest="ab" * 32),))
    assert list(by_id([adapted, other])) == ["a.gguf", f"{'ab' * 32}.gguf"]
    assert list(by_id([other, adapted])) == ["a-adapter-1.gguf", f"{one.digest}.gguf"]


def test_a_file_goes_by_its_name_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "my model (1).gguf"
    path.write_bytes(write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)}))
    offer = offer_of(str(path))
    assert (offer.id, offer.name, offer.parameters) == ("my-model--1-.gguf", "my model (1)", 32)
    assert offer.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_model_in_parts_is_one_offer_of_several_files(tmp_path: Path) -> None:
    whole = write_gguf({"general.architecture": "gemma4"}, dict.fromkeys("abc", ("F32", (32,), None)))
    paths = write_parts(tmp_path, Gguf.open(whole), 3, "my model")
    offer = offer_of(str(paths[1]))
    assert (offer.name, offer.url, offer.parameters) == ("my model", "models/my-model-00001-of-00003.gguf", 96)
    assert [file.path for file in offer.files.values()] == paths
    assert offer.size == sum(path.stat().st_size for path in paths) and offer.digest == ""


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"}))
    with pytest.raises(Error, match="not a gemma4 model"):
        offer_of(str(path))


def test_a_projector_is_offered_beside_its_model(blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, towers = blob.read_bytes(), projector(64)
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    stores = Stores.find()
    digests = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in (model, towers)]
    for digest, data in zip(digests, (model, towers), strict=True):
        put_blob(stores.own, digest, [data])
    list(create("mine", Recipe(files=dict(zip("ab", digests, strict=True)))))
    (offer,) = stored_offers(stores.own)
    record = offer.record()
    assert record["projector"] == "models/mine-latest-mmproj.gguf" and record["url"] == "models/mine-latest.gguf"
    assert record["capabilities"] == ["completion", "vision", "audio", "tools", "thinking"]
    assert offer.files["mine-latest-mmproj.gguf"].path.read_bytes() == towers


def test_what_a_stored_model_says_and_its_adapters_are_offered(store: Path) -> None:
    (offer,) = (offer for offer in stored_offers(Store(store)) if offer.name == "someone/mygemma:v1")
    record = offer.record()
    assert record["system"].startswith("You are a pirate.")
    assert [said["role"] for said in record["messages"]] == ["user", "assistant"]
    assert record["adapters"] == ["models/someone-mygemma-v1-adapter-1.gguf"]
    with Gguf.open(offer.urls[record["adapters"][0]].path) as adapter:
        assert adapter.metadata["general.type"] == "adapter"
