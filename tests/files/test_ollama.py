"""The store is read as Ollama reads it, is never trusted, and never written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wgemma.files.ollama as ollama
from wgemma import StoreError
from wgemma.cli import main
from wgemma.files.names import Name
from wgemma.files.ollama import Store, StoredModel

EXPECTED = json.loads((Path(__file__).parent.parent / "data" / "ollama-store" / "EXPECTED.json").read_text("utf-8"))
MODELS, NAMES = EXPECTED["models"], EXPECTED["names"]


@pytest.fixture(params=["data", "shared"])
def store(request: pytest.FixtureRequest) -> Store:
    folder: Path = request.getfixturevalue(request.param)
    return Store(folder / "ollama-store")


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Store:
    """A copy of the store to damage."""
    return Store(shutil.copytree(data / "ollama-store", tmp_path / "store"))


def model_blob(store: Store) -> Path:
    return store.root / MODELS["gemma4:tiny"]["model"]


def manifest(store: Store, tag: str = "tiny") -> Path:
    return store.root / "manifests/registry.ollama.ai/library/gemma4" / tag


def blob(store: Store, content: bytes) -> dict[str, Any]:
    """Adds a blob to the store; returns its manifest entry."""
    import hashlib

    digest = hashlib.sha256(content).hexdigest()
    (store.root / "blobs" / f"sha256-{digest}").write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def add_model(store: Store, tag: str, config: bytes = b"{}", **layers: bytes | list[bytes]) -> None:
    entries = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", **blob(store, content)}
        for kind, contents in layers.items()
        for content in (contents if isinstance(contents, list) else [contents])
    ]
    written = {"schemaVersion": 2, "config": {"mediaType": "x", **blob(store, config)}, "layers": entries}
    manifest(store, tag).write_text(json.dumps(written))


def everything(model: StoredModel) -> None:
    """Reads everything a model has."""
    model.open().close()
    for attribute in ("projectors", "adapters", "drafts", "system", "template", "licenses", "params", "messages"):
        getattr(model, attribute)
    assert model.capabilities


def reason(ask: Callable[[], Any]) -> str:
    with pytest.raises(StoreError) as caught:
        ask()
    assert str(caught.value).endswith((".", "?"))
    return caught.value.reason


# -- names


@pytest.mark.parametrize("text", [name for name, fields in NAMES.items() if fields["valid"]])
def test_a_good_name_has_four_parts_and_a_shortest_spelling(text: str, store: Store) -> None:
    expected, name = NAMES[text], Name.parse(text)
    assert [name.host, name.namespace, name.model, name.tag] == [
        expected[part] for part in ("host", "namespace", "model", "tag")
    ]
    assert str(name) == expected["display"]
    if expected["exists"]:
        assert store.model(text).manifest == store.root / expected["manifest"]
    else:
        assert reason(lambda: store.model(text)) == "not_found"


@pytest.mark.parametrize("text", [name for name, fields in NAMES.items() if not fields["valid"]])
def test_a_bad_name_is_refused_before_it_becomes_a_path(text: str, store: Store) -> None:
    assert reason(lambda: store.model(text)) == "invalid_name"


@pytest.mark.parametrize(
    "text", ["gemma4:tiny\n", "gemma4:ti\nny", "..", "a/..:b", "C:\\x", "~/x", "gemma4:‮tiny", "://"]
)
def test_more_bad_names_are_refused(text: str, data: Path) -> None:
    assert reason(lambda: Store(data / "ollama-store").model(text)) == "invalid_name"


def test_a_name_longer_than_a_file_name_may_be_is_just_not_there(data: Path) -> None:
    assert reason(lambda: Store(data / "ollama-store").model("h" * 300 + "/ns/model:tag")) == "not_found"


# -- what is expected of the miniature store


def test_the_listing_holds_exactly_what_is_expected(store: Store) -> None:
    expected = sorted(name for name, fields in MODELS.items() if fields["listed"])
    assert sorted(str(model.name) for model in store.models()) == expected
    assert sorted(map(str, store.names())) == sorted(MODELS)


@pytest.mark.parametrize("name", [name for name, fields in MODELS.items() if fields["listed"]])
def test_a_listed_model_has_its_digest_and_size(name: str, store: Store) -> None:
    model, expected = store.model(name), MODELS[name]
    assert (model.digest, model.size) == (expected["digest"], expected["size"])
    assert model.manifest == store.root / expected["manifest"]
    if "details" in expected:
        assert model.details == expected["details"]


@pytest.mark.parametrize("name", [name for name, fields in MODELS.items() if fields["runnable"]])
def test_a_runnable_model_gives_everything_that_is_expected(name: str, store: Store) -> None:
    model, expected = store.model(name), MODELS[name]
    with model.open() as opened:
        assert opened.metadata["general.architecture"] == "gemma4"
    assert model.model == store.root / expected["model"]
    assert model.projectors == [store.root / path for path in expected["projectors"]]
    assert model.adapters == [store.root / path for path in expected["adapters"]]
    for attribute in ("system", "template", "params", "messages", "licenses", "capabilities"):
        assert getattr(model, attribute) == expected[attribute], attribute
    assert model.parent == expected.get("parent")
    assert (model.config["renderer"], model.config["parser"]) == (expected["renderer"], expected["parser"])
    assert f"gemma4-{model.prompt_style}" == expected["renderer_resolved"]


@pytest.mark.parametrize("name", [name for name, fields in MODELS.items() if not fields["runnable"]])
def test_a_broken_model_says_what_is_wrong(name: str, store: Store) -> None:
    assert reason(lambda: store.model(name).open()) == MODELS[name]["error"]


@pytest.mark.parametrize("path", EXPECTED["ignored"])
def test_partial_downloads_and_stray_files_are_passed_over(path: str, store: Store) -> None:
    assert Path(path).name not in {name.tag for name in store.names()}
    if path.startswith("blobs/"):
        digest = Path(path).name.replace("sha256-", "sha256:")
        assert reason(lambda: store.blob(digest)) == "invalid_digest"


# -- where the store is


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    assert Store.find().root == data / "ollama-store"


def test_without_it_the_users_folder_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ollama, "SERVICE_FOLDER", tmp_path / "service")
    assert Store.find().root == tmp_path / ".ollama" / "models"
    (tmp_path / "service").mkdir()
    assert Store.find().root == tmp_path / "service"
    (tmp_path / ".ollama/models/manifests").mkdir(parents=True)
    assert Store.find().root == tmp_path / ".ollama" / "models"


def test_a_service_folder_that_may_not_be_looked_at_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ollama, "SERVICE_FOLDER", tmp_path / ("x" * 300))  # looking at it is an OSError
    assert Store.find().models() == []


def test_the_folder_of_nobody_is_an_empty_store() -> None:
    with pytest.raises(StoreError, match="gemma4:latest is not in ~nobody-of-that-name/models"):
        Store("~nobody-of-that-name/models").model("gemma4")


def test_a_store_that_is_a_loop_of_links_is_told_or_empty(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    try:
        assert Store(tmp_path / "loop").models() == []
    except StoreError as error:
        assert error.reason == "not_found"


# -- hostile stores


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../etc/passwd", "sha256:" + "g" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 65, "md5:" + "a" * 64,
     "sha256-" + "a" * 64 + "\n", "", "../x", "sha256:" + "a" * 64 + "/../x", "SHA256:" + "a" * 64],
)  # fmt: skip
def test_a_digest_must_be_one_before_it_becomes_a_path(digest: str, data: Path) -> None:
    assert reason(lambda: Store(data / "ollama-store").blob(digest)) == "invalid_digest"


def test_a_blob_that_leads_out_of_the_store_is_not_followed(copy: Store, tmp_path: Path) -> None:
    secret = model_blob(copy).rename(tmp_path / "secret")
    model_blob(copy).symlink_to(secret)
    with pytest.raises(StoreError, match="leads out of the store"):
        copy.model("gemma4:tiny").open()
    with pytest.raises(StoreError, match="leads out of the store"):
        copy.model("gemma4:tiny").verify()


def test_a_manifest_that_leads_out_of_the_store_is_not_followed(copy: Store, tmp_path: Path) -> None:
    manifest(copy).rename(tmp_path / "elsewhere")
    manifest(copy).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="leads out of the store"):
        copy.model("gemma4:tiny")
    assert "gemma4:tiny" not in map(str, copy.names())


def test_a_blob_that_leads_out_of_the_store_is_named_as_the_trouble(
    copy: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(copy.root))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    blob = model_blob(copy)
    blob.symlink_to(blob.rename(tmp_path / "secret"))
    for words in (["list"], ["verify", "gemma4:tiny"], ["show", "gemma4:tiny"], ["cp", "gemma4:tiny", "x"]):
        main(words)
        printed = capsys.readouterr()
        assert f"{blob} leads out of the store, so wgemma does not follow it" in printed.out + printed.err


def test_a_folder_of_manifests_that_leads_out_of_the_store_is_not_listed(copy: Store, tmp_path: Path) -> None:
    (tmp_path / "outside/ns/model").mkdir(parents=True)
    (tmp_path / "outside/ns/model/secret").write_text("{}")
    (copy.root / "manifests/evil").symlink_to(tmp_path / "outside")
    assert sorted(map(str, copy.names())) == sorted(MODELS)


def test_links_inside_the_store_are_fine(copy: Store, tmp_path: Path) -> None:
    model_blob(copy).rename(copy.root / "blobs" / "moved")
    model_blob(copy).symlink_to("moved")
    everything(copy.model("gemma4:tiny"))
    (tmp_path / "link").symlink_to(copy.root)
    everything(Store(tmp_path / "link").model("gemma4:tiny"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_folders_are_refused_at_once(copy: Store) -> None:
    model_blob(copy).unlink()
    os.mkfifo(model_blob(copy))
    with pytest.raises(StoreError, match="is not a regular file"):
        copy.model("gemma4:tiny").open()
    manifest(copy).unlink()
    os.mkfifo(manifest(copy))
    assert reason(lambda: copy.model("gemma4:tiny")) == "not_found"
    manifest(copy, "dash").unlink()
    manifest(copy, "dash").mkdir()
    assert reason(lambda: copy.model("gemma4:dash")) == "not_found"


def test_a_blob_that_is_a_loop_of_links_is_missing(copy: Store) -> None:
    model_blob(copy).unlink()
    model_blob(copy).symlink_to(model_blob(copy).name)
    assert reason(lambda: copy.model("gemma4:tiny").open()) == "missing_blob"


@pytest.mark.parametrize(
    "content",
    [
        b"[]", b"null", b"7", b"{}", b'{"layers": 3}', b'{"layers": [3], "config": {}}', b"\xff\xfe", b"{" * 100_000,
        b"[" * 900 + b"]" * 900, b'{"layers": [], "config": null}', b'{"layers": [], "config": {"mediaType": "x"}}',
        b'{"layers": [], "config": {"mediaType": "x", "digest": 5, "size": 1}}',
        b'{"layers": [], "config": {"mediaType": "x", "digest": "x", "size": -1}}',
        b'{"layers": [], "config": {"mediaType": "x", "digest": "x", "size": 1e400}}',
        b'{"layers": [], "config": {"mediaType": "x", "digest": "x", "size": 1' + b"0" * 400 + b"}}",
        b'{"layers": [], "config": {"mediaType": "x", "digest": "x", "size": 1' + b"0" * 9000 + b"}}",
    ],
    ids=range(16),
)  # fmt: skip
def test_a_manifest_that_is_none_is_bad(content: bytes, copy: Store) -> None:
    manifest(copy).write_bytes(content)
    assert reason(lambda: copy.model("gemma4:tiny")) == "bad_manifest"
    assert "gemma4:tiny" not in [str(model.name) for model in copy.models()]


def test_json_of_many_megabytes_is_not_read(copy: Store) -> None:
    with manifest(copy).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreError, match="the manifest of gemma4:tiny is too large"):
        copy.model("gemma4:tiny")


def test_small_layers_that_are_not_what_they_should_be_are_bad(copy: Store) -> None:
    model = model_blob(copy).read_bytes()
    bad = {
        "params": (b"[1]", b"{", b'{"a":' * 500 + b"1" + b"}" * 500, b'{"top_k": ' + b"9" * 5000 + b"}"),
        "messages": (
            b"{}", b"[1]", b"[" * 500 + b"]" * 500,
            b'[{"role": "user"}]', b'[{"role": "user", "content": [{"type": "image", "image": "/etc/passwd"}]}]',
            b'[{"role": "tool", "content": "x"}]', b'[{"role": ["user"], "content": "x"}]',
        ),
    }  # fmt: skip
    for kind, contents in bad.items():
        for content in contents:
            add_model(copy, "bad", model=model, **{kind: content})
            stored = copy.model("gemma4:bad")
            assert reason(lambda: getattr(stored, kind)) == "bad_manifest", content[:20]  # noqa: B023


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("stop", "5", "a list of strings"),
        ("stop", '["x", 5]', "a list of strings"),
        ("stop", '{"x": 1}', "a list of strings"),
        ("temperature", '"hot"', "a number"),
        ("temperature", "true", "a number"),
        ("min_p", "[]", "a number"),
        ("min_p", "9" * 400, "a number"),
        ("top_k", "1.5", "a whole number"),
        ("num_predict", '"all"', "a whole number"),
        ("num_ctx", "{}", "a whole number"),
        ("seed", "1e30", "a whole number"),
        ("use_mmap", "1", "true or false"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_its_key(key: str, value: str, wanted: str, copy: Store) -> None:
    add_model(copy, "odd", model=model_blob(copy).read_bytes(), params=f'{{"{key}": {value}}}'.encode())
    with pytest.raises(StoreError, match=f"the params of gemma4:odd: {key} is .*; it must be {wanted}") as caught:
        _ = copy.model("gemma4:odd").params
    assert len(str(caught.value)) < 200


def test_settings_ollama_ignores_are_ignored(copy: Store) -> None:
    params = {"top_k": 64.0, "stop": ["x"], "seed": None, "logit_bias": 5, "logprobs": "x", "made_up": {"a": []}}
    add_model(copy, "odd", model=model_blob(copy).read_bytes(), params=json.dumps(params).encode())
    assert copy.model("gemma4:odd").params == {"top_k": 64, "stop": ["x"]}


@pytest.mark.parametrize("value", [5, [5], {"a": 1}, None, True, [["x"]], 10**300])
def test_odd_labels_in_a_configuration_are_no_labels(value: Any, copy: Store) -> None:
    labels = ("model_family", "model_families", "model_type", "file_type")
    add_model(copy, "odd", config=json.dumps(dict.fromkeys(labels, value)).encode())
    details = copy.model("gemma4:odd").details
    assert details == {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    assert copy.model("gemma4:odd").prompt_style == "small"


@pytest.mark.parametrize(
    "digest", ["sha256:\0", "sha256:" + "0" * 63 + "\0", "\ud800", "sha256:" + "0" * 64 + "\n", ""]
)
def test_a_digest_that_is_none_is_refused(digest: str, copy: Store) -> None:
    entry = {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 1}
    manifest(copy, "odd").write_text(json.dumps({"config": entry, "layers": []}))
    assert reason(lambda: copy.model("gemma4:odd")) == "invalid_digest"


@pytest.mark.parametrize("size", [True, 1.0, "1", -1, 10**400, None])
def test_a_size_that_is_none_is_refused(size: Any, copy: Store) -> None:
    entry = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64, "size": size}
    manifest(copy, "odd").write_text(json.dumps({"config": entry, "layers": []}))
    assert reason(lambda: copy.model("gemma4:odd")) == "bad_manifest"


def test_a_manifest_of_thousands_of_layers_is_refused(copy: Store) -> None:
    add_model(copy, "odd", license=[b"x"] * 257)
    assert reason(lambda: copy.model("gemma4:odd")) == "bad_manifest"


@pytest.mark.parametrize("root", ["\0", "\ud800", 5, None])
def test_a_folder_that_cannot_be_is_no_store(root: Any) -> None:
    assert reason(lambda: Store(root)) == "not_found"


def test_one_large_text_named_many_times_is_not_read_many_times(copy: Store) -> None:
    add_model(copy, "bomb", license=[b"x" * (3 << 20)] * 9)
    with pytest.raises(StoreError, match="the license of gemma4:bomb is too large"):
        _ = copy.model("gemma4:bomb").licenses


def test_texts_that_are_not_utf8_are_shown_as_well_as_can_be(copy: Store) -> None:
    add_model(copy, "odd", system=b"caf\xe9")
    assert copy.model("gemma4:odd").system == "caf\N{REPLACEMENT CHARACTER}"


# -- verification and innocence


def test_a_whole_model_verifies_and_every_byte_is_counted(data: Path) -> None:
    store = Store(data / "ollama-store")
    for name, fields in MODELS.items():
        if fields["runnable"]:
            counted: list[int] = []
            store.model(name).verify(lambda layer, amount, counted=counted: counted.append(amount))  # type: ignore[misc]
            assert sum(counted) == fields["size"]


def test_a_flipped_bit_is_found_in_every_blob(copy: Store) -> None:
    model = copy.model("gemma4:tiny")
    assert len(model.blobs) == 4
    for layer in model.blobs:
        path = copy.blob(layer.digest)
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(StoreError, match=r"is damaged.*`ollama pull gemma4:tiny` again") as caught:
            model.verify()
        assert caught.value.reason == "bad_digest"
        path.write_bytes(good)
    model.verify()


def test_nothing_in_the_store_is_ever_written(
    copy: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def snapshot() -> list[tuple[str, int, int, int]]:
        paths = sorted(copy.root.rglob("*"))
        return [(str(p), (s := p.lstat()).st_mtime_ns, s.st_size, s.st_mode) for p in paths]

    before = snapshot()
    monkeypatch.setenv("OLLAMA_MODELS", str(copy.root))
    main(["list"])
    for name in (*MODELS, "gemma4:nosuchtag", "../x"):
        for verb in (["show"], ["show", "--tensors", "--template", "--json"], ["verify"]):
            main([*verb, name])
        main(["tokenize", name, "text"])
    capsys.readouterr()
    assert snapshot() == before
