"""A model is an Ollama name, a path or a URL; anything else is a clear error."""

import shutil
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from wgemma import Gguf, ModelError, SourceError, StoreError, load
from wgemma.cli import main
from wgemma.errors import Error
from wgemma.files.locate import DEFAULT_PARAMS, locate


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


@pytest.fixture
def blob(store: Path) -> Path:
    model = locate("gemma4:tiny").model
    assert isinstance(model, Path)
    return model


def test_a_name_brings_its_files_and_settings() -> None:
    found = locate("someone/mygemma:v1")
    assert found.name == "someone/mygemma:v1"
    assert found.params["temperature"] == 0.3
    assert (found.system or "").startswith("You are a pirate.")
    assert [message["role"] for message in found.messages] == ["user", "assistant"]
    assert (len(found.adapters), len(found.projectors), found.prompt_style) == (1, 0, "small")
    with Gguf.open(found.model) as gguf:
        assert gguf.metadata["general.architecture"] == "gemma4"


def test_settings_the_store_does_not_name_are_gemmas_own() -> None:
    assert locate("gemma4:dash").params == DEFAULT_PARAMS
    assert locate("hf.co/acme/gemma4-micro-GGUF:Q8_0").params == {**DEFAULT_PARAMS, "stop": ["<turn|>"]}


def test_a_registry_address_is_a_name() -> None:
    assert locate("https://registry.ollama.ai/library/gemma4:tiny").name == "gemma4:tiny"


def test_a_gguf_path_is_a_file(blob: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(blob, tmp_path / "some.GGUF"))
    for target in (path, str(path)):
        found = locate(target)
        assert (found.model, found.stored, found.prompt_style) == (path, None, None)


@pytest.mark.parametrize("name", ["my-lora", "my-lora/", "my-lora/adapter_config.json"])
def test_a_peft_folder_is_named_as_an_adapter(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-lora").mkdir()
    (tmp_path / "my-lora/adapter_config.json").write_text("{}")
    for target in (name, Path(name)):
        with pytest.raises(ModelError) as caught:
            locate(target)
        path = str(target)
        assert str(caught.value) == (
            f"{path}: this is a LoRA adapter, not a model. Add it to one: `wgemma run MODEL --adapter {path}`."
        )


def test_a_gguf_adapter_is_named_as_an_adapter(tmp_path: Path) -> None:
    path = tmp_path / "my lora.gguf"
    path.write_bytes(write_gguf({"general.architecture": "gemma4", "general.type": "adapter"}))
    with pytest.raises(ModelError) as caught:
        load(path, device="reference")
    assert str(caught.value).endswith(f"not a model. Add it to one: `wgemma run MODEL --adapter '{path}'`.")


def test_a_home_folder_is_expanded(blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(blob, tmp_path / "some.gguf")
    assert locate("~/some.gguf").model == tmp_path / "some.gguf"


def test_a_file_of_any_name_is_taken_where_the_store_has_none(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(blob, tmp_path / "weights")
    assert locate("weights").model == Path("weights")
    assert locate(str(blob)).model == blob


def test_the_store_comes_before_a_file_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma4:tiny").write_bytes(b"not it")
    assert locate("gemma4:tiny").stored is not None


@pytest.mark.parametrize(
    "url",
    ["http://host/a.gguf", "HTTPS://host/a.GGUF", "https://host/a.gguf?download=true", "https://host/d?x=1&file=a.GGUF",
     "https://host/d?file=a.gguf#sha256=00", "https://host/d?file=a-00001-of-00003.gguf"],
)  # fmt: skip
def test_a_url_of_a_gguf_is_left_to_the_web(url: str) -> None:
    assert locate(url).model == url


@pytest.mark.parametrize("verb", ["tokenize", "show", "verify"])
@pytest.mark.parametrize("url", ["https://me:secret@host/download", "https://host/a.gguf.zip", "https://host/x?y=z"])
def test_another_url_is_told_what_one_ends_in(verb: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, url]) == 1
    told = capsys.readouterr().err
    assert "a model's URL must end in .gguf, in its path or its query" in told and "secret" not in told


def test_a_file_on_the_web_has_no_checksums_to_verify(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("https://host/a.gguf", "https://host/d?file=a.gguf", "https://huggingface.co/u/r/resolve/main/a.gguf"):
        assert main(["verify", url]) == 1
        assert "Verify checks stored models" in capsys.readouterr().err.replace("verify", "Verify")


def test_a_missing_file_is_told_with_a_way_out() -> None:
    with pytest.raises(SourceError, match=r"nowhere\.gguf: no such file\. `wgemma list` shows"):
        locate("nowhere.gguf")


@pytest.mark.parametrize(
    "target",
    ["", ".", "/", "~", "~nobody-of-that-name", "~nobody-of-that-name/x.gguf", "a" * 5000, "a" * 5000 + ".gguf", "a\0b",
     "a\0.gguf", "//[x", "http://[x", "gemma4:no such tag", "\udcff", "\x1b[31m"],
)  # fmt: skip
def test_nonsense_ends_in_a_sentence(target: str) -> None:
    with pytest.raises(Error):
        locate(target)


def test_a_broken_model_of_the_store_is_not_mistaken_for_a_file() -> None:
    with pytest.raises(StoreError) as caught:
        locate("gemma4:hostile")
    assert caught.value.reason == "invalid_digest"


@pytest.mark.parametrize("url", ["http://me:secret@host/m.bin", "ftp://me:secret@host/m.gguf", "https://me:secret@[x"])
def test_a_password_is_in_no_complaint(url: str) -> None:
    with pytest.raises(Error) as caught:
        locate(url)
    assert "secret" not in str(caught.value)


def test_a_model_is_called_by_its_url_without_the_password() -> None:
    found = locate("http://me:secret@host/m.gguf")
    assert (found.name, found.model) == ("http://host/m.gguf", "http://me:secret@host/m.gguf")
