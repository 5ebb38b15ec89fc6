"""However a model on Hugging Face is written, it has one name, by which it is pulled, kept and found."""

from pathlib import Path

import pytest

from wgemma.cli.words import named_model
from wgemma.errors import StoreError
from wgemma.files.copying import copy
from wgemma.files.locate import locate
from wgemma.files.names import Name
from wgemma.files.stores import Stores

SAME = {
    "hf.co/user/repo": "hf.co/user/repo:latest",
    "HF.co/user/repo": "hf.co/user/repo:latest",
    "huggingface.co/user/repo:Q4_K_M": "hf.co/user/repo:Q4_K_M",
    "www.huggingface.co/user/repo:Q4_K_M": "hf.co/user/repo:Q4_K_M",
    "https://huggingface.co/user/repo": "hf.co/user/repo:latest",
    "https://huggingface.co/user/repo/": "hf.co/user/repo:latest",
    "https://hf.co/user/repo:Q8_0": "hf.co/user/repo:Q8_0",
    "HTTPS://HuggingFace.co/User/Repo": "hf.co/User/Repo:latest",
    "https://huggingface.co/user/repo?library=gguf#files": "hf.co/user/repo:latest",
    "https://huggingface.co/user/repo/tree/main": "hf.co/user/repo:latest",
    "https://huggingface.co/user/repo/tree/main/": "hf.co/user/repo:latest",
    "https://huggingface.co/user/repo/tree/main/UD-Q4_K_XL": "hf.co/user/repo:UD-Q4_K_XL",
    "https://huggingface.co/user/repo/blob/main/my-model-Q4_K_M.gguf": "hf.co/user/repo:my-model-Q4_K_M",
    "huggingface.co/user/repo/resolve/main/m-Q4_K_M.gguf?download=true": "hf.co/user/repo:m-Q4_K_M",
    "https://huggingface.co/user/repo?show_file_info=m-Q8_0.gguf": "hf.co/user/repo:m-Q8_0",
    "https://huggingface.co/user/repo/blob/main/Q8_0/m-Q8_0-00002-of-00003.gguf": "hf.co/user/repo:m-Q8_0",
    "https://huggingface.co/user/repo/blob/main/Q8_0/model.gguf": "hf.co/user/repo:Q8_0",
    "https://huggingface.co/user/repo/blob/main/gguf/model.gguf": "hf.co/user/repo:model",
    "https://huggingface.co/user/repo/blob/main/my%20model%20Q4_0.gguf": "hf.co/user/repo:Q4_0",
    "hf.co/user.name_1/repo.v2-GGUF": "hf.co/user.name_1/repo.v2-GGUF:latest",
    f"hf.co/user/{'r' * 96}": f"hf.co/user/{'r' * 96}:latest",
}
BAD = [
    *("hf.co", "hf.co/", "hf.co/user", "hf.co/user/", "hf.co/user/repo:", "hf.co/user/repo/file.gguf"),
    *("hf.co//repo", "hf.co/../repo", "hf.co/user/..", "hf.co/.user/repo", "hf.co/user/repo:..", "hf.co/us er/repo"),
    *("https://huggingface.co/datasets/user/repo", "hf.co/user/repo/blob/main/README.md", "hf.co/user/repo/tree"),
    *("https://huggingface.co/user/repo/blob/main/my%20model.gguf", "hf.co/user/repo/tree/main/folder"),
    *("https://huggingface.co/user/repo/blob/main/..%2F..%2Fx.gguf/y", f"hf.co/user/{'r' * 97}"),
    *("https://huggingface.co/user/repo/discussions/3", "hf.co/user/repo:x/tree/main", "hf.co/user%2e/repo"),
]


@pytest.mark.parametrize("text", SAME)
def test_what_people_paste_is_one_name(text: str) -> None:
    assert str(Name.parse(text)) == SAME[text]
    assert str(Name.parse(SAME[text])) == SAME[text]


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_told_what_to_write(text: str) -> None:
    with pytest.raises(
        StoreError, match=r"Write hf\.co/user/repo, hf\.co/user/repo:Q4_K_M, or the address of"
    ) as caught:
        Name.parse(text)
    assert caught.value.reason == "invalid_name"
    with pytest.raises(StoreError, match="is not a model on Hugging Face"):
        locate(text)


def test_another_branch_is_refused() -> None:
    with pytest.raises(StoreError, match="from the branch main only"):
        Name.parse("https://huggingface.co/user/repo/tree/v2")


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(StoreError) as caught:
        Name.parse("https://me:secret@huggingface.co/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://ollama.com/library/gemma4", "gemma4:latest"),
        ("Registry.Ollama.AI/library/gemma4:e2b", "gemma4:e2b"),
        ("LOCALHOST:5000/me/model", "localhost:5000/me/model:latest"),
    ],
)
def test_hosts_have_one_spelling(text: str, name: str) -> None:
    assert str(Name.parse(text)) == name


SPELLINGS = [text for text, name in SAME.items() if name == "hf.co/user/repo:latest"]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_model_that_is_here_is_found_by_any_of_its_spellings(stores: Stores, text: str) -> None:
    list(copy("gemma4:tiny", "huggingface.co/user/repo"))
    found = locate(text)
    assert found.name == "hf.co/user/repo:latest" and found.stored is not None
    assert found.stored.manifest == stores.own.root / "manifests/hf.co/user/repo/latest"


@pytest.mark.parametrize("kind", ["blob", "resolve"])
def test_a_file_that_is_here_is_not_downloaded_again(stores: Stores, kind: str) -> None:
    url = f"https://huggingface.co/user/repo/{kind}/main/m-Q4_0.gguf?download=true"
    list(copy("gemma4:tiny", url))
    assert [str(name) for name in stores.own.names()] == ["hf.co/user/repo:m-Q4_0"]
    assert locate(url).stored is not None


def test_a_file_that_is_not_here_can_be_read_where_it_is() -> None:
    url = "https://huggingface.co/user/repo/resolve/main/m-Q4_0.gguf?download=true"
    assert locate(url).model == url
    with pytest.raises(StoreError, match=r"`wgemma pull hf.co/user/repo:m-Q4_0` gets it"):
        locate(url.replace("resolve", "blob"))


@pytest.mark.parametrize("host", ["huggingface.co", "HF.co", "hf.co"])
def test_a_folder_of_another_spelling_is_found(stores: Stores, host: str) -> None:
    """Ollama keeps the host as it was typed."""
    top = stores.ollama.root / "manifests"
    place = top / host / "user/repo/latest"
    place.parent.mkdir(parents=True)
    place.write_bytes((top / "registry.ollama.ai/library/gemma4/tiny").read_bytes())
    assert "hf.co/user/repo:latest" in map(str, stores.names())
    assert stores.model("https://huggingface.co/user/repo").manifest == place
    assert [str(model.name) for model in stores.models()].count("hf.co/user/repo:latest") == 1


@pytest.mark.parametrize("part", ["re po", "repo?x", "repo#x", "tree", "%72epo"])
def test_a_folder_that_no_name_leads_to_is_passed_over(stores: Stores, part: str) -> None:
    place = stores.own.root / "manifests/hf.co/user" / part / "latest"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert [str(name) for name in stores.own.names()] == (["hf.co/user/tree:latest"] if part == "tree" else [])


def test_an_address_on_the_hub_is_offered_to_be_pulled(tmp_path: Path) -> None:
    from argparse import Namespace

    def offered(word: str) -> str | None:
        return named_model(Namespace(model=word, words=[]))

    page = "https://huggingface.co/user/repo"
    for word in (page, f"{page}/blob/main/m-Q4_0.gguf", "hf.co/user/repo"):
        assert offered(word) == word
    for word in (f"{page}/resolve/main/m-Q4_0.gguf", "https://example.org/m.gguf", "https://example.org/x", "m.gguf"):
        assert offered(word) is None
