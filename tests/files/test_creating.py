"""Models are made of others, of files and of parts."""

import json
from pathlib import Path

import pytest

import wgemma
from adapter_maker import adapter, pair
from gguf_parts import cut
from gguf_writer import write_gguf
from registry_server import digest
from store_models import made, projector, put, reason
from wgemma.cli import main
from wgemma.creating import create
from wgemma.embedded import NAME
from wgemma.errors import Error, StoreError
from wgemma.files import keeping
from wgemma.files.adapters import write_gguf_adapter
from wgemma.files.copying import copy, delete
from wgemma.files.gguf import Gguf
from wgemma.files.layers import as_json, manifest_of, text_layer
from wgemma.files.locate import locate
from wgemma.files.names import Name
from wgemma.files.naming import keep_manifest
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.loaded import prompt_style

TOWERS = projector(64)


def test_layers_that_are_new_are_told_apart(stores: Stores) -> None:
    first = [event["status"].rpartition(" ")[0] for event in create("one", Recipe(NAME))]
    again = [event["status"].rpartition(" ")[0] for event in create("two", Recipe(NAME, system="Be brief."))]
    assert first[:2] == ["creating new layer"] * 2
    assert again[:3] == ["using existing layer"] * 2 + ["creating new layer"]


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


def test_a_setting_from_elsewhere_that_cannot_run_is_the_models_own(stores: Stores) -> None:
    model = made("mine", Recipe(base="gemma4:tiny"))
    layers = [layer for layer in model.layers if layer.kind != "params"]
    params = b'{"min_p":2}'
    config = as_json(model.config)
    manifest, named = manifest_of(config, [*layers, text_layer("params", params)])
    keep_manifest(stores.own, Name.parse("mine"), manifest, named, [config, params])
    with wgemma.load("mine", device="reference") as broken:
        with pytest.raises(
            wgemma.SettingsError, match=r"^the model's own min_p is 2; it must be a number from 0 to 1\."
        ):
            broken.generate("Hi", max_tokens=1)
        assert broken.generate("Hi", max_tokens=1, min_p=0).text is not None
        with pytest.raises(wgemma.SettingsError, match=r"^min_p is 3"):
            broken.generate("Hi", max_tokens=1, min_p=3)


def test_parts_links_and_licenses_of_ollamas_all_come_along(
    stores: Stores, blob: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Gguf.open(blob) as gguf:
        parts = cut(gguf, 3)
    texts, config = [b"License One\n\nof two", b"License Two"], as_json({"model_format": "gguf"})
    contents = [(kind, data) for kind, some in (("model", parts), ("license", texts)) for data in some]
    order = [contents[i] for i in (3, 2, 0, 4, 1)]
    folder = stores.ollama.root / "blobs"
    for i, data in enumerate([config, *(data for _, data in order)]):
        place = folder / digest(data).replace(":", "-")
        (folder / f"real-{i}").write_bytes(data)
        place.symlink_to(f"real-{i}")
    manifest, _ = manifest_of(config, [text_layer(kind, data) for kind, data in order])
    path = stores.ollama.manifest(Name.parse("inparts"))
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest)
    model = made("mine", Recipe(base="inparts", licenses=["License Three"]))
    assert model.licenses == ["License One\n\nof two", "License Two", "License Three"]
    assert model.open().parts == 3 and not any(file.is_symlink() for file in model.files)
    with wgemma.load("mine", device="reference") as mine, wgemma.load(blob, device="reference") as whole:
        assert (mine.logits([5, 6]) == whole.logits([5, 6])).all()
    assert main(["show", "mine"]) == 0
    assert "License One, License Two, License Three" in capsys.readouterr().out
    assert main(["show", "mine", "--license"]) == 0
    assert capsys.readouterr().out == "License One\n\nof two\n\nLicense Two\n\nLicense Three\n"
    assert main(["show", "wgemma-tiny", "--license"]) == 1
    assert "wgemma-tiny has no license in it" in capsys.readouterr().err


def test_every_setting_that_a_model_is_made_with_runs(stores: Stores) -> None:
    for key, values in {
        "top_k": (-1, 0, 7, 64.0),
        "temperature": (0, 100),
        "num_ctx": (64, 1 << 40),
        "num_predict": (-2, -1, 0, 3),
        "repeat_last_n": (-1, 0),
        "seed": (-1, 7),
        "stop": ("x", ["x"], []),
    }.items():
        for value in values:
            made("mine", Recipe(base="gemma4:tiny", parameters={key: value}))
            with wgemma.load("mine", device="reference") as model:
                assert model.generate("Hi", max_tokens=1).text is not None


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
        (Recipe(base="gemma4:tiny", parameters={"temperature": -1}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", parameters={"repeat_penalty": 0}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", parameters={"num_ctx": -1}), "bad_recipe"),
        (Recipe(base="gemma4:tiny", parameters={"stop": ["a", ""]}), "bad_recipe"),
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


def test_a_blob_that_vanished_meanwhile_is_brought_again(stores: Stores, blob: Path) -> None:
    file = put(stores, blob.read_bytes())
    for recipe, brought in ((Recipe(base="gemma4:tiny", system="x"), True), (Recipe(files={"x": file}), False)):
        steps = create("mine", recipe)
        while next(steps)["status"] != "writing manifest":
            pass
        stores.own.blob(file).unlink()
        if brought:
            assert list(steps)[-1] == {"status": "success"}
            stores.own.model("mine").verify()
            list(delete("mine"))
            put(stores, blob.read_bytes())
        else:
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


# -- what fails leaves nothing behind


def blobs(stores: Stores) -> set[str]:
    folder = stores.own.root / "blobs"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_who_leaves_while_a_model_is_made_leaves_no_blobs(stores: Stores) -> None:
    for steps in (create("mine", Recipe(base="gemma4:tiny")), copy("gemma4:tiny", "mine")):
        while next(steps)["status"] != "writing manifest":
            pass
        assert len(blobs(stores)) >= 2
        steps.close()
        assert blobs(stores) == set() and stores.own.names() == []


def test_a_damaged_blob_leaves_none_of_the_others(stores: Stores) -> None:
    model = stores.ollama.model("someone/mygemma:v1")
    last = stores.ollama.blob(model.layers[-1].digest)
    last.write_bytes(bytes(last.stat().st_size))
    for work in (create("mine", Recipe(base=str(model.name))), copy(str(model.name), "mine")):
        assert reason(work) == "missing_blob"
        assert blobs(stores) == set() and stores.own.names() == []


def test_what_was_there_before_stays(stores: Stores) -> None:
    model = stores.ollama.model("gemma4:tiny")
    put(stores, model.model.read_bytes())
    before = blobs(stores)
    (stores.own.root / "manifest.partial").mkdir()  # in the manifest's way
    for work in (create("mine", Recipe(base="gemma4:tiny", system="x")), copy("gemma4:tiny", "mine")):
        assert reason(work) == "not_written"
        assert blobs(stores) == before


def test_what_others_need_meanwhile_stays(stores: Stores) -> None:
    steps = create("mine", Recipe(base="gemma4:tiny"))
    while next(steps)["status"] != "writing manifest":
        pass
    config, layer = stores.ollama.model("gemma4:tiny").blobs[:2]
    made("other", Recipe(files={"x": layer.digest}))
    with keeping.holding(stores.own, config.digest):
        steps.close()
        assert keeping.has_blob(stores.own, config.digest)
    stores.own.model("other").verify()


@pytest.mark.parametrize("width", [64, 256])
def test_a_projector_must_fit_the_model(stores: Stores, blob: Path, width: int) -> None:
    recipe = Recipe(files={"a.gguf": put(stores, blob.read_bytes()), "mm.gguf": put(stores, projector(width))})
    if width == 64:
        made("mine", recipe)
        return
    with pytest.raises(StoreError, match=r"^mm.gguf was made for a model 256 wide; a.gguf is 64 wide\.") as caught:
        list(create("mine", recipe))
    assert caught.value.reason == "bad_recipe" and stores.own.names() == []


def test_an_adapter_must_fit_the_model(stores: Stores, blob: Path, tmp_path: Path) -> None:
    with Gguf.open(blob) as gguf:
        columns, rows = gguf.tensor("blk.0.attn_q.weight").shape
    digests = []
    for width in (columns, columns + 1):
        path = tmp_path / f"{width}.gguf"
        write_gguf_adapter(adapter(blk__0__attn_q=pair(width, rows)), path)
        digests.append(put(stores, path.read_bytes()))
    assert made("mine", Recipe(base="gemma4:tiny", adapters={"lora": digests[0]})).adapters
    with pytest.raises(StoreError, match=r"^lora does not fit gemma4:tiny: it changes a blk.0.attn_q.weight of"):
        list(create("other", Recipe(base="gemma4:tiny", adapters={"lora": digests[1]})))
    assert "other" not in stores.own
    with Gguf.open(blob) as gguf:
        parts = [put(stores, part) for part in cut(gguf, 3)]
    made("parts", Recipe(files={str(i): parts[i] for i in (2, 0, 1)}))
    with pytest.raises(StoreError, match=r"^lora does not fit parts: it changes a blk.0.attn_q.weight of"):
        list(create("other", Recipe(base="parts", adapters={"lora": digests[1]})))
    with pytest.raises(StoreError, match=r"^notes: at byte 0: this is not a GGUF file"):
        list(create("other", Recipe(base="parts", adapters={"notes": put(stores, b"notes and more notes")})))
