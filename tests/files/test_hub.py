"""Models are pulled from a hub that lists files as Hugging Face does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_parts import cut, part_name
from gguf_writer import write_gguf
from registry_server import Registry, digest, serving
from store_models import projector
from wgemma.cli import main
from wgemma.errors import Error, GgufError, SourceError, StoreError
from wgemma.files import fetching, hub, registry, sources
from wgemma.files.gguf import Gguf
from wgemma.files.hub import parse_listing
from wgemma.files.names import Name
from wgemma.files.stores import Stores
from wgemma.pulling import pull

TENSORS = {f"blk.{i}.attn_norm.weight": ("F32", (32,), bytes([i] * 128)) for i in range(6)}
MODEL = write_gguf({"general.architecture": "gemma4"}, TENSORS)
OTHER = write_gguf({"general.architecture": "gemma4", "general.name": "other"}, TENSORS)
TOWERS = write_gguf({"general.architecture": "clip", "clip.has_vision_encoder": True})


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for module in (fetching, registry, sources):
        monkeypatch.setattr(module, "PAUSE", 0.001)
    return Stores.find()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with serving() as server:
        monkeypatch.setattr(hub, "ADDRESS", f"http://{server.host}")
        yield server


def name(tag: str = "latest") -> Name:
    return Name.parse(f"hf.co/acme/gemma-4-E2B-it-GGUF:{tag}")


HOSTILE: list[Any] = [
    *(5, None, "x", {}, {"path": "a.gguf"}, {"path": 5, "lfs": {}}, {"path": "a.gguf", "lfs": None}),
    *({"path": "a.gguf", "lfs": {"oid": oid, "size": 5}} for oid in (5, "", "../" * 20, "a" * 63, "a" * 65, "g" * 64)),
    *({"path": "a.gguf", "lfs": {"oid": "a" * 64, "size": size}} for size in (-1, 0, 1 << 62, "5", True, 1.5)),
    {"path": "a\n.gguf", "lfs": {"oid": "a" * 64, "size": 5}},
]


def test_entries_that_make_no_sense_are_left_out() -> None:
    assert parse_listing(json.dumps(HOSTILE).encode(), name()) == []


@pytest.mark.parametrize("data", [b"", b"{}", b'"x"', b"[" * 99_999])
def test_what_is_no_listing_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        parse_listing(data, name())


# -- pulling


def test_a_model_and_its_projector_are_pulled(server: Registry, stores: Stores) -> None:
    server.add_repository(
        "acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL, "mmproj-F16.gguf": TOWERS, "g-Q8_0.gguf": OTHER}
    )
    events = list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))
    assert {"status": "picked g-Q4_K_M.gguf and mmproj-F16.gguf"} in events
    model = stores.own.model("hf.co/acme/gemma-4-E2B-it-GGUF")
    model.verify()
    assert model.model.read_bytes() == MODEL and model.projectors[0].read_bytes() == TOWERS
    assert (model.details["quantization_level"], model.details["family"]) == ("Q4_K_M", "gemma4")
    assert model.capabilities == ["completion", "vision", "tools", "thinking"]
    assert not any(digest(OTHER) in path for path, _ in server.asked)


def test_a_file_whose_name_says_nothing_is_labelled_by_its_header(server: Registry, stores: Stores) -> None:
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g.gguf": MODEL})
    list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))
    assert stores.own.model("hf.co/acme/gemma-4-E2B-it-GGUF").details["quantization_level"] == "F32"


def test_a_model_in_parts_is_pulled_and_loads_as_one(server: Registry, stores: Stores) -> None:
    parts = dict(zip((part_name("q/g-Q8_0", i, 3) for i in (1, 2, 3)), cut(Gguf.open(MODEL), 3), strict=True))
    server.add_repository("acme/gemma-4-E2B-it-GGUF", parts)
    list(pull("hf.co/acme/gemma-4-E2B-it-GGUF:Q8_0"))
    model = stores.own.model("hf.co/acme/gemma-4-E2B-it-GGUF:Q8_0")
    model.verify()
    with model.open() as gguf:
        assert gguf.parts == 3 and gguf.read("blk.5.attn_norm.weight") == bytes([5] * 128)
    model.model.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="is damaged"):
        model.verify()


@pytest.mark.parametrize("given", [1, 3])
def test_the_address_of_a_file_pulls_it_with_its_parts_and_its_projector(
    server: Registry, stores: Stores, given: int
) -> None:
    names = [part_name("q/g-Q8_0", i, 3) for i in (1, 2, 3)]
    files = dict(zip(names, cut(Gguf.open(MODEL), 3), strict=True))
    server.add_repository(
        "acme/gemma", files | {"g-Q4_K_M.gguf": OTHER, "other-Q8_0.gguf": OTHER, "mmproj.gguf": TOWERS}
    )
    address = f"https://huggingface.co/acme/gemma/blob/main/{names[given - 1]}"
    assert list(pull(address))[-1] == {"status": "success"}
    model = stores.model(address)
    assert str(model.name) == "hf.co/acme/gemma:g-Q8_0" and len(model.projectors) == 1
    with model.open() as gguf:
        assert gguf.parts == 3


WIDE = write_gguf({"general.architecture": "gemma4", "gemma4.embedding_length": 32}, TENSORS)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (projector(64), "mmproj-F16.gguf was made for a model 64 wide; hf.co/acme/gemma:latest is 32 wide"),
        (TOWERS, "mmproj-F16.gguf is not a projector: it has neither a vision nor an audio tower"),
        (b"not a GGUF" * 50, "mmproj-F16.gguf: at byte 0: this is not a GGUF file (it does not start with 'GGUF')"),
    ],
    ids=["another width", "no tower", "no GGUF"],
)
def test_a_projector_that_does_not_fit_is_left_out(server: Registry, stores: Stores, other: bytes, why: str) -> None:
    server.add_repository("acme/gemma", {"g-Q4_K_M.gguf": WIDE, "mmproj-F16.gguf": other})
    assert {"status": f"left out the projector: {why}"} in list(pull("hf.co/acme/gemma"))
    model = stores.own.model("hf.co/acme/gemma")
    model.verify()
    assert model.projectors == [] and model.capabilities == ["completion", "tools", "thinking"]


def test_a_projector_that_fits_comes_along(server: Registry, stores: Stores) -> None:
    server.add_repository("acme/gemma", {"g-Q4_K_M.gguf": WIDE, "mmproj-F16.gguf": projector(32)})
    assert not [event for event in pull("hf.co/acme/gemma") if event["status"].startswith("left out")]
    assert stores.own.model("hf.co/acme/gemma").capabilities == ["completion", "audio", "tools", "thinking"]


@pytest.mark.parametrize(
    "url", ["https://me:secret@host/a.gguf", "https://host/x/a.gguf", "https://host/x/y?file=a.gguf"]
)
def test_a_file_elsewhere_is_no_name(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", url]) == 1
    told = capsys.readouterr().err
    assert "is not a model name" in told and "`wgemma run` takes the address of a .gguf file as it is" in told
    assert "secret" not in told


def test_parts_that_do_not_fit_are_refused_before_the_download(
    server: Registry, stores: Stores, tmp_path: Path
) -> None:
    first, second = cut(Gguf.open(MODEL), 2)
    wrong = cut(Gguf.open(MODEL), 3)[1]
    for parts in ([first, wrong], [first, first], [second, first[:-4]]):
        paths = [part_name("g-Q8_0", i, 2) for i in (1, 2)]
        server.add_repository("acme/gemma-4-E2B-it-GGUF", dict(zip(paths, parts, strict=True)))
        with pytest.raises(GgufError):
            list(pull("hf.co/acme/gemma-4-E2B-it-GGUF:Q8_0"))
    assert not (tmp_path / "own").exists()


def test_another_architecture_is_refused_before_the_download(server: Registry, tmp_path: Path) -> None:
    server.add_repository("acme/llama", {"l-Q8_0.gguf": write_gguf({"general.architecture": "llama"})})
    with pytest.raises(StoreError, match="'llama'; wgemma runs gemma4 only"):
        list(pull("hf.co/acme/llama"))
    assert not (tmp_path / "own").exists()


def test_a_listing_goes_over_several_pages_but_not_to_another_host(server: Registry) -> None:
    path = "/api/models/acme/gemma-4-E2B-it-GGUF/tree/main"
    entries = server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL, "g-Q8_0.gguf": OTHER})
    server.documents[path] = json.dumps(entries[:2]).encode()
    server.documents[f"{path}?cursor=2"] = json.dumps(entries[2:]).encode()
    server.links[f"{path}?recursive=true"] = f"{path}?cursor=2"
    assert [file.path for file in hub.listing(name())] == ["g-Q4_K_M.gguf", "g-Q8_0.gguf"]
    server.links[f"{path}?recursive=true"] = "https://elsewhere.example/more"
    with pytest.raises(SourceError, match="goes on at another host"):
        hub.listing(name())
    server.links[f"{path}?recursive=true"] = f"{path}?cursor=2"
    server.links[f"{path}?cursor=2"] = f"{path}?recursive=true"  # and so on
    with pytest.raises(SourceError, match="has too many files"):
        hub.listing(name())


def test_a_repository_that_is_not_there_is_told(server: Registry) -> None:
    with pytest.raises(StoreError, match="acme/gemma-4-E2B-it-GGUF is not on Hugging Face"):
        list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))


def test_a_file_that_is_only_listed_is_told(server: Registry) -> None:
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL})
    server.blobs.clear()
    with pytest.raises(StoreError, match=r"acme/gemma-4-E2B-it-GGUF lists g-Q4_K_M\.gguf, but does not have it"):
        list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))


def test_a_busy_hub_is_asked_again(server: Registry, stores: Stores) -> None:
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL})
    server.statuses = [429, 503, 429]
    list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))
    stores.own.model("hf.co/acme/gemma-4-E2B-it-GGUF").verify()


def test_a_repository_whose_files_are_for_some_only_is_told(server: Registry, stores: Stores) -> None:
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL})
    server.statuses = [403] * 20
    with pytest.raises(StoreError, match=r"only for those who have agreed to its terms\. If you have, set HF_TOKEN"):
        list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))


def test_the_token_goes_to_the_hub_only(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL})
    with serving() as storage:
        storage.blobs["/x"] = MODEL
        server.redirects["/acme/gemma-4-E2B-it-GGUF/resolve/main/g-Q4_K_M.gguf"] = f"http://{storage.host}/x"
        list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))
        assert set(server.tokens.values()) == {"Bearer hf_secret"}
        assert set(storage.tokens.values()) == {None}


def test_a_file_that_differs_from_the_listing_is_not_kept(server: Registry, stores: Stores) -> None:
    server.add_repository("acme/gemma-4-E2B-it-GGUF", {"g-Q4_K_M.gguf": MODEL})
    server.blobs[f"/cdn/{digest(MODEL)}"] = MODEL[:-1] + b"!"
    with pytest.raises(Error, match="is damaged or another file"):
        list(pull("hf.co/acme/gemma-4-E2B-it-GGUF"))
    assert stores.own.names() == []
