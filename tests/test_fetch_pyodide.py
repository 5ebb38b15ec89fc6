"""tools/fetch_pyodide.py keeps exactly the pinned files, or nothing."""

import importlib.util
import shutil
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def fetcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_pyodide", ROOT / "tools" / "fetch_pyodide.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_whole_folder_is_left_alone(fetcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    assert fetcher.fetch() is False


@pytest.mark.parametrize("damage", ["changed", "missing", "more"])
def test_a_damaged_folder_is_noticed(fetcher: ModuleType, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(fetcher.FOLDER, tmp_path / "pyodide")
    assert fetcher.is_whole(copy)
    match damage:
        case "changed":
            with (copy / "pyodide.mjs").open("a") as file:
                file.write(" ")
        case "missing":
            (copy / "python_stdlib.zip").unlink()
        case "more":
            (copy / "evil.mjs").touch()
    assert not fetcher.is_whole(copy)


def test_another_package_than_the_pinned_one_is_refused(
    fetcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "registry" / "pyodide" / "-"
    place.mkdir(parents=True)
    with tarfile.open(place / f"pyodide-{fetcher.VERSION}.tgz", "w:gz") as package:
        for name in fetcher.FILES:
            package.add(ROOT / "LICENSE", f"package/{name}")
    monkeypatch.setenv("npm_config_registry", (tmp_path / "registry").as_uri())
    with pytest.raises(SystemExit, match=r"is not Pyodide .* Nothing was kept"):
        fetcher.fetch(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("registry", ["http://127.0.0.1:9", "http://[x", "nonsense", "file:///nowhere"])
def test_a_registry_out_of_reach_is_a_sentence(
    fetcher: ModuleType, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", registry)
    with pytest.raises(SystemExit, match=r"could not be downloaded from .* try again\.$"):
        fetcher.fetch(tmp_path / "out")


def test_the_mirror_is_chosen_as_npm_does(fetcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "npmrc"
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(settings))
    monkeypatch.delenv("npm_config_registry", raising=False)
    assert fetcher.registry() == "https://registry.npmjs.org"
    settings.write_text("fund=false\n; registry=http://comment\nregistry = http://from.file/npm/\n")
    assert fetcher.registry() == "http://from.file/npm"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://from.environment/")
    assert fetcher.registry() == "http://from.environment"
