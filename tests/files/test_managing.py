"""Models are copied, deleted and created in wgemma's store; Ollama's is only read."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from gguf_parts import cut
from gguf_writer import write_gguf
from registry_server import digest
from wgemma.errors import Error, StoreError
from wgemma.files import keeping
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import has_blob, put_blob
from wgemma.files.locate import locate
from wgemma.files.locks import locked
from wgemma.files.managing import Recipe, copy, create, delete, recipe_from
from wgemma.files.names import Name
from wgemma.files.stores import Stores
from wgemma.loaded import prompt_style

TOWERS = write_gguf({"general.architecture": "clip", "clip.has_audio_encoder": True})


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    shutil.copytree(data / "ollama-store", tmp_path / "ollama")
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return Stores.find()


def snapshot(folder: Path) -> dict[str, tuple[bytes, float]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime) for path in folder.rglob("*") if path.is_file()}


def put(stores: Stores, data: bytes) -> str:
    put_blob(stores.own, digest(data), [data])
    return digest(data)


def reason(work: Any) -> str:
    with pytest.raises(StoreError) as caught:
        list(work)
    return caught.value.reason


def made(name: str, recipe: Recipe) -> Any:
    assert list(create(name, recipe))[-1] == {"status": "success"}
    model = Stores.find().own.model(name)
    model.verify()
    return model


# -- names


def test_a_model_of_ollamas_is_copied_and_its_store_stays_as_it_was(stores: Stores, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "ollama")
    list(copy("someone/mygemma:v1", "mine"))
    model = stores.own.model("mine")
    model.verify()
    original = stores.ollama.model("someone/mygemma:v1")
    assert (model.system, model.params, len(model.adapters)) == (original.system, original.params, 1)
    list(copy("mine", "again:x"))
    list(delete("mine"))
    stores.own.model("again:x").verify()
    list(delete("again:x"))
    assert list((tmp_path / "own/blobs").iterdir()) == [] and stores.own.names() == []
    assert snapshot(tmp_path / "ollama") == before


def test_deleting_keeps_what_others_need(stores: Stores) -> None:
    for name in ("one", "two"):
        list(copy("gemma4:tiny", name))
    list(create("three", Recipe(base="one", system="Be brief.")))
    list(delete("one"))
    list(delete("three"))
    stores.own.model("two").verify()
    assert len(list((stores.own.root / "blobs").iterdir())) == len(stores.own.model("two").blobs)


def test_a_manifest_that_cannot_be_read_keeps_all_blobs(stores: Stores) -> None:
    for name in ("one", "two"):
        list(copy("gemma4:tiny", name))
    stores.own.manifest(stores.own.model("two").name).write_bytes(b"{")
    list(delete("one"))
    assert len(list((stores.own.root / "blobs").iterdir())) == 4
    list(delete("two"))
    assert stores.own.names() == []


def test_a_file_that_is_no_manifest_keeps_no_blobs(stores: Stores) -> None:
    list(copy("gemma4:tiny", "one"))
    (stores.own.manifest(Name.parse("one")).parent / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    list(delete("one"))
    assert list((stores.own.root / "blobs").iterdir()) == []


def test_what_was_left_behind_long_ago_goes_with_the_next_model(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(copy("gemma4:tiny", "one"))
    list(copy("gemma4:tiny", "two"))
    put(stores, b"an upload")
    unfinished = [keeping.partial_place(stores.own, digest(b"x")), keeping.lock_place(stores.own, digest(b"y"))]
    for path in unfinished:
        path.write_bytes(b"12 elsewhere")
    busy = keeping.partial_place(stores.own, digest(b"z"))
    busy.write_bytes(b"half")
    list(delete("one"))
    assert has_blob(stores.own, digest(b"an upload")) and all(path.exists() for path in unfinished)
    monkeypatch.setattr(keeping, "FORGOTTEN", -1.0)
    list(copy("two", "one"))
    with keeping.holding(stores.own, digest(b"z")):
        list(delete("one"))
    assert not has_blob(stores.own, digest(b"an upload")) and not any(path.exists() for path in unfinished)
    assert busy.exists()
    stores.own.model("two").verify()


def test_a_store_can_be_listed_while_models_come_and_go(stores: Stores) -> None:
    done, troubles = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            try:
                stores.own.models()
            except Exception as error:
                troubles.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        list(copy("gemma4:tiny", "one"))
        list(delete("one"))
    done.set()
    for reader in readers:
        reader.join()
    assert troubles == []


def test_a_copy_is_of_the_model_that_was_asked_for(stores: Stores) -> None:
    steps = copy("gemma4:tiny", "mine")
    wanted = stores.ollama.model("gemma4:tiny").manifest_bytes
    next(steps)
    shutil.copy(
        stores.ollama.manifest(Name.parse("someone/mygemma:v1")), stores.ollama.manifest(Name.parse("gemma4:tiny"))
    )
    list(steps)
    stores.own.model("mine").verify()
    assert stores.own.model("mine").manifest_bytes == wanted


def test_a_model_with_all_the_layers_it_may_have_keeps_only_its_own_blobs(stores: Stores) -> None:
    base = stores.ollama.model("gemma4:tiny")
    made("full", Recipe(base="gemma4:tiny", licenses=[str(i) for i in range(256 - len(base.layers))]))
    made("other", Recipe(base="gemma4:tiny", system="Be brief."))
    count = len(list((stores.own.root / "blobs").iterdir()))
    list(delete("other"))
    assert len(list((stores.own.root / "blobs").iterdir())) == count - 1  # the system turn


def test_only_what_is_ours_is_deleted(stores: Stores) -> None:
    assert reason(delete("gemma4:tiny")) == "not_allowed"
    assert reason(delete("gemma4:nothing")) == "not_found"
    assert reason(delete("../x")) == "invalid_name"
    assert reason(copy("gemma4:tiny", "../x")) == "invalid_name"
    assert reason(copy("gemma4:nothing", "x")) == "not_found"
    assert reason(copy("gemma4:missing", "x")) == "missing_blob"


# -- blobs


@pytest.mark.parametrize("name", ["sha256:" + "a" * 63, "sha256:../" + "a" * 61, "x", "sha256-" + "a" * 64, ""])
def test_a_blob_needs_a_digest(stores: Stores, name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        put_blob(stores.own, name, [b"x"])
    assert caught.value.reason == "invalid_digest" and not (tmp_path / "own").exists()


def test_a_file_is_kept_with_progress_that_ends(stores: Stores, tmp_path: Path) -> None:
    path, heard = tmp_path / "x", []
    path.write_bytes(b"x" * (3 << 20))
    for _ in range(2):  # the second time it is there
        heard.clear()
        keeping.keep_file(stores.own, path, heard.append)
        assert sum(heard) == 2 * path.stat().st_size


def test_a_blob_must_hash_to_its_name(stores: Stores) -> None:
    with pytest.raises(StoreError, match="is damaged"):
        put_blob(stores.own, digest(b"one"), [b"o", b"n"])
    assert not has_blob(stores.own, digest(b"one")) and list((stores.own.root / "blobs").iterdir()) == []
    put_blob(stores.own, digest(b"one"), [b"o", b"ne"])
    assert has_blob(stores.own, digest(b"one"), 3) and not has_blob(stores.own, digest(b"one"), 4)


@pytest.mark.parametrize("name", ["manifest.partial", "store.lock", "blobs/sha256-{}.partial", "blobs/sha256-{}.lock"])
def test_links_in_the_store_are_replaced_and_not_followed(stores: Stores, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    os.utime(victim, (0, 0))
    link = stores.own.root / name.format(digest(b"Be brief.").removeprefix("sha256:"))
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    made("mine", Recipe(base="gemma4:tiny", system="Be brief."))
    assert victim.read_bytes() == b"mine"


def test_a_folder_that_leads_out_of_the_store_is_refused_before_anything_is_written(
    stores: Stores, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    stores.own.root.mkdir()
    (stores.own.root / "blobs").symlink_to(tmp_path / "disk")
    with pytest.raises(StoreError, match="To keep models on another disk, set WGEMMA_MODELS"):
        list(copy("gemma4:tiny", "mine"))
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_lock_is_named_and_not_waited_for_for_ever(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PATIENCE", 0.1)
    lock = keeping.lock_place(stores.own, digest(b"Be brief."))
    lock.parent.mkdir(parents=True)
    with locked(lock, Error), pytest.raises(StoreError, match=rf"^process \d+ on .* holds {lock}\. Try again when"):
        made("mine", Recipe(base="gemma4:tiny", system="Be brief."))


# -- new models


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


def test_a_request_is_a_recipe(stores: Stores) -> None:
    body = {
        "model": "mine",
        "from": "gemma4:tiny",
        "system": "Be brief.",
        "license": "MIT",
        "parameters": {"top_k": 3},
        "messages": [{"role": "user", "content": "Hi"}],
        "adapters": {},
        "stream": False,
    }
    model = made("mine", recipe_from(body))
    assert (model.system, model.params["top_k"], model.licenses[-1]) == ("Be brief.", 3, "MIT")
    assert recipe_from({"files": {"a.gguf": "sha256:" + "a" * 64}, "license": ["a", "b"]}).licenses == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        *({key: value} for key in ("from", "system", "files", "adapters", "parameters") for value in (5, ["x"])),
        *({key: "x"} for key in ("template", "quantize", "modelfile", "files", "messages", "parameters")),
        *({"messages": [5]}, {"license": 5}, {"license": [5]}, {"files": {"x": 5}}, {"files": {"x": "../x"}}),
    ],
)
def test_a_request_that_is_no_recipe_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        recipe_from(body)


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
