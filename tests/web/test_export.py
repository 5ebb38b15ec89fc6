"""An export writes and deletes only its own files, and can be repeated whenever it was interrupted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wgemma.errors import SourceError
from wgemma.web import export as export_module
from wgemma.web.export import LIST, export


class SmallSite:
    """A site of four files; `content` may change."""

    content = "first"
    names = ("", "app.js", "sw.js", "ui/view.js")

    def __init__(self, models: object) -> None:
        self.assets = dict.fromkeys(self.names)

    def read(self, address: str) -> tuple[bytes, str]:
        return f"{self.content} {address}".encode(), ""


WRITTEN = {"app.js", "index.html", "models.json", "sw.js", "ui/view.js"}


@pytest.fixture(autouse=True)
def small_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "Site", SmallSite)
    monkeypatch.setattr(export_module, "embedded_offer", lambda: None)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    export(tmp_path / "site")
    return tmp_path / "site"


def found(folder: Path) -> dict[str, str]:
    """Name → content of all files; where a link leads is told instead."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    told = {path: f"→ {path.readlink()}" if path.is_symlink() else path.read_text(errors="replace") for path in paths}
    return {path.relative_to(folder).as_posix(): text for path, text in told.items()}


def list_more(site: Path, *names: str) -> None:
    listed = json.loads((site / LIST).read_text())
    listed["files"] += names
    (site / LIST).write_text(json.dumps(listed))


def test_the_list_names_what_was_written(site: Path) -> None:
    assert set(json.loads((site / LIST).read_text())["files"]) == WRITTEN
    assert set(found(site)) == WRITTEN | {LIST}


def test_only_what_an_earlier_export_wrote_is_deleted(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "models").mkdir()
    for name in ("models/mine.gguf", "ui/mine.js", "CNAME"):
        (site / name).write_text("mine")
    monkeypatch.setattr(SmallSite, "names", ("", "sw.js"))
    export(site)
    assert set(found(site)) == {LIST, "index.html", "models.json", "sw.js", "models/mine.gguf", "ui/mine.js", "CNAME"}


@pytest.mark.parametrize(
    "name",
    ["../outside", "/outside", "ui/../../outside", "ui/../mine", "./mine", "", ".", "..", "mine\0", "mine\n", "a\\mine",
     "C:mine", "ui//mine", "deep/er/mine", "kept/mine", "folder", 7, None, ["mine"]],
)  # fmt: skip
def test_a_hostile_list_deletes_nothing(site: Path, name: Any, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/mine").write_text("mine")
    (site / "kept").symlink_to(tmp_path / "kept")
    (site / "folder").mkdir()
    (site / "mine").write_text("mine")
    (site / "deep/er").mkdir(parents=True)
    (site / "deep/er/mine").write_text("mine")
    before = found(tmp_path)
    list_more(site, str(tmp_path / "outside") if name == "/outside" else name)
    export(site)
    assert found(tmp_path) == before
    assert (site / "folder").is_dir()


def test_a_listed_link_is_deleted_and_what_it_leads_to_is_not(site: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (site / "old.js").symlink_to(tmp_path / "precious")
    list_more(site, "old.js")
    export(site)
    assert "old.js" not in found(site)
    assert (tmp_path / "precious").read_text() == "mine"


def test_nothing_is_written_through_a_linked_folder(site: Path, tmp_path: Path) -> None:
    (site / "ui").rename(tmp_path / "elsewhere")
    (site / "ui").symlink_to(tmp_path / "elsewhere")
    before = found(tmp_path)
    with pytest.raises(SourceError, match="ui is a link"):
        export(site)
    assert found(tmp_path) == before


def test_a_linked_file_is_replaced_and_what_it_leads_to_is_not(site: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for name in ("app.js", ".wgemma-export.new"):
        (site / name).unlink(missing_ok=True)
        (site / name).symlink_to(tmp_path / "precious")
    export(site)
    assert found(site)["app.js"] == "first app.js"
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_file_that_no_export_wrote_is_not_replaced(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "extra.js").write_text("mine")
    before = found(site)
    monkeypatch.setattr(SmallSite, "names", (*SmallSite.names, "extra.js"))
    with pytest.raises(SourceError, match=r"extra\.js is not from an earlier export"):
        export(site)
    assert found(site) == before


@pytest.mark.parametrize(
    "listed",
    [None, "", "{}", "[]", '{"files": 7}', "\xff", "[" * 100_000, '{"files": []}' + " " * (2 << 20), "→"],
    ids=["no list", "empty", "no files", "other", "number", "bytes", "deep", "long", "link"],
)
def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path, listed: str | None) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    if listed == "→":
        (tmp_path / LIST).symlink_to("thesis.tex")
    elif listed is not None:
        (tmp_path / LIST).write_text(listed, "latin-1")
    before = found(tmp_path)
    with pytest.raises(SourceError, match="not empty and not an earlier export"):
        export(tmp_path)
    assert found(tmp_path) == before


@pytest.mark.parametrize("after", range(len(WRITTEN) + 2))
def test_an_interrupted_export_can_be_repeated(tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of any of its files, it leaves whole ones and one half-written one."""
    put = export_module._put
    count = 0

    def killed(path: Path, fill: Callable[[Path], object]) -> None:
        nonlocal count
        count += 1
        if count > after:
            path.parent.mkdir(exist_ok=True)
            path.with_name(".wgemma-export.new").write_text("ha")
            raise KeyboardInterrupt
        put(path, fill)

    monkeypatch.setattr(export_module, "_put", killed)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "site")
    assert all(text.startswith(("first", "[]", "{", "ha")) for text in found(tmp_path / "site").values())
    monkeypatch.setattr(export_module, "_put", put)
    monkeypatch.setattr(SmallSite, "names", ("", "sw.js", "ui/view.js"))  # and another version comes along
    export(tmp_path / "site")
    assert set(found(tmp_path / "site")) == WRITTEN - {"app.js"} | {LIST}


def test_a_visitor_never_reads_half_a_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def read(self: SmallSite, address: str) -> tuple[bytes, str]:
        seen.append(found(site))
        return f"second {address}".encode(), ""

    before = found(site)
    monkeypatch.setattr(SmallSite, "read", read)
    export(site)
    after = found(site)
    assert len(seen) == 4
    for name in WRITTEN:
        assert {files[name] for files in seen} <= {before[name], after[name]}
