"""The site serves only its own files, and its service worker changes when any of them does."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from wgemma.errors import Error
from wgemma.web import site as site_module
from wgemma.web.site import CSP, Site

MODEL = {"name": "m", "url": "models/m.gguf", "digest": "00" * 32}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page's files to modify; Python is an empty file in it."""
    shutil.copytree(site_module.ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("pyodide", "*.py"))
    (tmp_path / "web/pyodide").mkdir()
    (tmp_path / "web/pyodide/pyodide.mjs").touch()
    shutil.copytree(site_module.ROOT / "gpu", tmp_path / "gpu")
    monkeypatch.setattr(site_module, "ROOT", tmp_path)
    return tmp_path


def shell(site: Site) -> dict[str, Any]:
    script = site.read("sw.js")[0].decode()
    value: dict[str, Any] = json.JSONDecoder().raw_decode(script, script.index("const SHELL = ") + 14)[0]
    return value


def test_only_what_is_meant_for_browsers_is_in_the_table(root: Path) -> None:
    for name in ("secret.txt", "notes.md", "server.py", "app.js.map", ".env", "other.html"):
        (root / "web" / name).write_text("no")
    (root / "web/ui/deeper").mkdir()
    (root / "web/ui/deeper/x.js").touch()
    names = set(Site().assets)
    assert not [name for name in names if re.search(r"secret|notes|server|map|env|other|deeper|device|native", name)]
    assert {"", "replay.js", "app.js", "trusted.js", "ui/theme.js", "pyodide/pyodide.mjs", "wgemma.zip"} < names


def test_a_file_that_changes_changes_its_hash_and_the_service_worker(root: Path) -> None:
    site = Site([MODEL])
    before, worker = shell(site), site.read("sw.js")
    assert site.read("sw.js") == worker
    path = root / "web/style.css"
    path.write_text(path.read_text() + "/* more */")
    os.utime(path, ns=(1, 1))
    after = shell(site)
    assert site.read("sw.js") != worker
    assert after["version"] != before["version"]
    assert {name for name in before["files"] if before["files"][name] != after["files"][name]} == {"style.css"}


def test_the_models_of_the_site_are_kept_offline(root: Path) -> None:
    known = shell(Site([MODEL]))
    assert known["models"] == [MODEL]
    assert known["files"]["models/m.gguf"] == "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def test_the_page_carries_its_policy_in_front_of_any_script(root: Path) -> None:
    page = Site().read("")[0].decode()
    assert CSP in page
    assert page.index("Content-Security-Policy") < page.index("trusted.js") < page.index("app.js")
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", page)  # nothing inline to begin with


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [("index.html", "<html></html>", "has no <head>"), ("sw.js", "// nothing", "has no place for the list of files")],
)
def test_files_that_are_not_ours_are_a_sentence(root: Path, name: str, text: str, words: str) -> None:
    (root / "web" / name).write_text(text)
    with pytest.raises(Error, match=words):
        Site().read("" if name == "index.html" else name)


def test_without_pyodide_there_is_a_sentence(root: Path) -> None:
    shutil.rmtree(root / "web/pyodide")
    with pytest.raises(Error, match=r"Pyodide is missing.*make app"):
        Site()


def test_everything_the_manifest_and_the_page_name_is_there() -> None:
    site = Site()
    manifest = json.loads(site.read("manifest.webmanifest")[0])
    page = site.read("")[0].decode()
    named = {icon["src"] for icon in manifest["icons"]} | set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    assert len(named) > 6
    assert named <= set(site.assets)
    for name, asset in site.assets.items():
        if asset.kind.startswith("text/javascript") and not name.startswith("pyodide/"):
            script = site.read(name)[0].decode()
            folder = Path("/", name).parent
            for other in re.findall(r'^(?:import|export)\b[^"\n]*"(\.[^"]+)"', script, re.MULTILINE):
                assert os.path.normpath(folder / other).removeprefix("/") in site.assets, (name, other)
