"""Exports the page as static files that any web server can serve and that work offline once visited.

A list in the folder names what exports have written there. A later export replaces those files and deletes the ones it
no longer writes; anything else in the folder is not ours: it is never replaced, deleted, or reached through a link.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from wgemma.errors import SourceError
from wgemma.web.models import Offer, by_id, embedded_offer
from wgemma.web.site import Site

LIST = "wgemma-export.json"
_LONGEST_LIST = 1 << 20
_FRESH = ".wgemma-export.new"  # a file being written; an interrupted export leaves one behind
_NAME = re.compile(r"(?:(?!\.\.?/)[A-Za-z0-9._-]+/)?(?!\.\.?$)[A-Za-z0-9._-]+")  # at most one folder deep

Fill = Callable[[Path], object]


def export(folder: Path, extra: Iterable[Offer] = ()) -> list[Path]:
    """Fills `folder`, which must be empty or hold an earlier export, possibly an interrupted one."""
    embedded = embedded_offer()
    offers = by_id([*([embedded] if embedded else []), *extra])
    files = _files(Site([embedded.record()] if embedded else []), offers.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _listed(folder)
        for name in files:
            _check_place(folder, name, before)
        _keep_list(folder, before | set(files))  # first, so that the next export knows an interrupted one's files
        for name, fill in files.items():
            _put(folder / name, fill)
        for name in before - set(files):
            _remove(folder, name)
        _keep_list(folder, set(files))
    except OSError as error:
        raise SourceError(f"{folder} cannot be written: {error.strerror or error}.") from None
    return [folder / name for name in files]


def _files(site: Site, offers: Collection[Offer]) -> dict[str, Fill]:
    """Name → what writes that file, in the order of writing."""
    files = {url: _copy_of(file.path) for offer in offers for url, file in offer.urls.items()}
    files["models.json"] = _json([offer.record() for offer in offers])
    # The service worker comes last, because it makes visitors' browsers fetch the rest.
    for address in sorted(site.assets, key=lambda address: (address == "sw.js", address)):
        files[address or "index.html"] = _asset(site, address)
    return files


def _copy_of(source: Path) -> Fill:
    return lambda fresh: shutil.copyfile(source, fresh)


def _json(value: object) -> Fill:
    return lambda fresh: fresh.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _asset(site: Site, address: str) -> Fill:
    return lambda fresh: fresh.write_bytes(site.read(address)[0])


# -- what is ours


def _listed(folder: Path) -> set[str]:
    """The names of the files earlier exports wrote; names that cannot be ours are dropped."""
    path = folder / LIST
    try:
        if path.is_symlink() or path.stat().st_size > _LONGEST_LIST:
            raise ValueError
        names = json.loads(path.read_bytes())["files"]
        return {name for name in names if isinstance(name, str) and _NAME.fullmatch(name)}
    except FileNotFoundError:
        if all(path.name == _FRESH for path in folder.iterdir()):
            return set()
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # not a list of ours
    raise SourceError(f"{folder} is not empty and not an earlier export. Choose a new folder.")


def _check_place(folder: Path, name: str, before: set[str]) -> None:
    """Refuses to write through a link, or over what no export has written."""
    place = folder / name
    if place.parent != folder and place.parent.is_symlink():
        raise SourceError(f"{place.parent} is a link, and an export does not write through links. Remove it.")
    if name not in before and (place.exists() or place.is_symlink()):
        raise SourceError(f"{place} is not from an earlier export. Move it away, or choose a new folder.")


def _keep_list(folder: Path, names: set[str]) -> None:
    _put(folder / LIST, _json({"files": sorted(names)}))


def _put(path: Path, fill: Fill) -> None:
    """Replaces a file or a link atomically: visitors may be reading the old one."""
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(_FRESH)
    fresh.unlink(missing_ok=True)  # it might be a link
    try:
        fill(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _remove(folder: Path, name: str) -> None:
    """Deletes a file or a link, but nothing behind a link."""
    place = folder / name
    if place.parent != folder and place.parent.is_symlink():
        return
    if place.is_symlink() or place.is_file():
        place.unlink()
