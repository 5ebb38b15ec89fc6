"""Models are made of others, of files and of parts."""

import json
from pathlib import Path

import pytest

from gguf_parts import cut
from gguf_writer import write_gguf
from store_models import made, put, reason
from wgemma.errors import Error, StoreError
from wgemma.files.copying import copy
from wgemma.files.creating import create
from wgemma.files.gguf import Gguf
from wgemma.files.locate import locate
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.loaded import prompt_style

TOWERS = write_gguf({"general.architecture": "clip", "clip.has_audio_encoder": True})


def test_a_model_is_built_upon_another(stores: Stores) -> None:
    recipe = Recipe(
        base="someone/mygemma:v1",
        system="Be brief.",
        parameters={"top_k": 3, "stop": ["x"]},
        messages=[{"role": "user", "content": "Hi"}],
        licenses=["MIT"],
    )
    model, base = made("mine", recipe), stores.ollama.model("someone/mygemma:v1")
    assert (model.system, model.params) == ("Be brief.", {**base.params, "top_k": 3, "stop": ["x"]})
    assert model.messages == [{"role": "user", "content": "Hi"}]
    assert model.licenses == [*base.licenses, "MIT"] and len(model.adapters) == len(base.adapters)
    assert model.config == base.config
    found = locate("mine")
    assert found.system == "Be brief." and found.params["top_k"] == 3
    assert made("plain", Recipe(base="mine", system="")).system is None


def test_a_model_is_made_of_files(stores: Stores, blob: Path) -> None:
    files = {"a.gguf": put(stores, blob.read_bytes()), "mmproj.gguf": put(stores, TOWERS)}
    model = made("mine", Recipe(files=files, parameters={"temperature": 0.5}))
    assert model.projectors[0].read_bytes() == TOWERS and model.model.read_bytes() == blob.read_bytes()
    assert "audio" in model.capabilities


def test_the_shape_decides_on_the_prompts_form_whatever_a_model_is_called(stores: Stores, blob: Path) -> None:
    large = write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
    made("small-31b", Recipe(files={"a": put(stores, blob.read_bytes())}))
    made("e2b-judge", Recipe(files={"a": put(stores, large)}))
    list(copy("small-31b", "judge"))
    list(copy("someone/gemma4-12b:tiny", "mine"))
    for name, style in (("small-31b", "small"), ("judge", "small"), ("mine", "small"), ("e2b-judge", "large")):
        with Stores.find().model(name).open() as gguf:
            assert prompt_style(locate(name), gguf) == style, name


def test_a_model_is_made_of_parts(stores: Stores, blob: Path) -> None:
    with Gguf.open(blob) as gguf:
        parts = cut(gguf, 3)
    digests = [put(stores, part) for part in parts]
    model = made("mine", Recipe(files={str(i): digests[i] for i in (2, 0, 1)}))
    assert len(model.files) == 3 and model.open().parts == 3
    with pytest.raises(Error, match="part 2 is missing"):
        list(create("less", Recipe(files={"0": digests[0], "2": digests[2]})))
    assert "less" not in stores.own


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        (Recipe(), "bad_recipe"),
        (Recipe(base="gemma4:tiny", files={"x": "sha256:" + "a" * 64}), "bad_recipe"),
        (Recipe(base="gemma4:nothing"), "not_found"),
        (Recipe(base="llama-mini"), "unsupported_architecture"),
        (Recipe(base="../x"), "invalid_name"),
        (Recipe(files={"x": "sha256:" + "a" * 64}), "missing_blob"),
        (Recipe(files={"x": "../../x"}), "invalid_digest"),
        (Recipe(files={"x": "/etc/passwd"}), "invalid_digest"),
        (Recipe(base="gemma4:tiny", adapters={"x": "sha256:" + "a" * 64}), "missing_blob"),
        (Recipe(base="gemma4:tiny", parameters={"heat": 5}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", parameters={"temperature": "hot"}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", parameters={"temperature": float("nan")}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", messages=[{"role": "robot", "content": "x"}]), "bad_recipe"),
        (Recipe(base="gemma4:tiny", messages=[{"role": "user"}]), "bad_recipe"),
    ],
)
def test_a_bad_recipe_makes_nothing(stores: Stores, recipe: Recipe, code: str) -> None:
    assert reason(create("mine", recipe)) == code
    assert stores.own.names() == []


def test_what_is_built_upon_counts_towards_the_limits(stores: Stores) -> None:
    made("mine", Recipe(base="gemma4:tiny", licenses=[f"one {i}" for i in range(200)]))
    assert reason(create("mine", Recipe(base="mine", licenses=[f"two {i}" for i in range(200)]))) == "bad_recipe"
    stores.own.model("mine").verify()
    long = ["x" * (3 << 20), "y" * (2 << 20)]
    made("long", Recipe(base="gemma4:tiny", licenses=long[:1]))
    assert reason(create("long", Recipe(base="long", licenses=long[1:]))) == "bad_recipe"
    stores.own.model("long").verify()


def test_adapters_and_models_are_not_taken_for_each_other(stores: Stores) -> None:
    adapter = put(stores, write_gguf({"general.architecture": "gemma4", "general.type": "adapter"}))
    notes, model = put(stores, b"notes"), put(stores, write_gguf({"general.architecture": "gemma4"}))
    with pytest.raises(StoreError, match="name it as ADAPTER"):
        list(create("mine", Recipe(files={"x": adapter})))
    for other in (notes, model):
        with pytest.raises(Error, match=r"not an adapter|not a GGUF file"):
            list(create("mine", Recipe(base="gemma4:tiny", adapters={"x": other})))
    assert stores.own.names() == []


def test_files_that_are_no_model_are_refused(stores: Stores) -> None:
    assert reason(create("mine", Recipe(files={"x": put(stores, TOWERS)}))) == "bad_recipe"
    llama = put(stores, write_gguf({"general.architecture": "llama"}))
    assert reason(create("mine", Recipe(files={"x": llama}))) == "unsupported_architecture"
    with pytest.raises(Error, match="not a GGUF file"):
        list(create("mine", Recipe(files={"x": put(stores, b"notes")})))


def test_a_blob_that_vanished_meanwhile_is_noticed(stores: Stores) -> None:
    steps = create("mine", Recipe(base="gemma4:tiny", system="x"))
    for event in steps:
        if event["status"] == "writing manifest":
            stores.own.blob(stores.ollama.model("gemma4:tiny").layers[0].digest).unlink()
            break
    with pytest.raises(StoreError, match="which is not in the store"):
        list(steps)
    assert stores.own.names() == []


def test_a_manifest_is_json_that_ollama_can_read(stores: Stores) -> None:
    model = made("mine", Recipe(base="gemma4:tiny", system="x"))
    fields = json.loads(model.manifest.read_bytes())
    assert fields["schemaVersion"] == 2 and fields["config"]["mediaType"].startswith("application/vnd.docker")
    assert {layer["mediaType"] for layer in fields["layers"]} >= {
        "application/vnd.ollama.image.model",
        "application/vnd.ollama.image.system",
    }
