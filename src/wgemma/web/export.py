"""Exports the page as static files that any web server can serve and that work offline once visited."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from wgemma.errors import SourceError
from wgemma.web.models import Offer, by_id, embedded_offer
from wgemma.web.site import Site

_OURS = ("icons", "models", "pyodide", "ui")  # folders where other files are left over from an earlier export


def export(folder: Path, extra: Iterable[Offer] = ()) -> list[Path]:
    """Fills `folder`, which must be empty or hold an earlier export; other files at its top level are left alone."""
    embedded = embedded_offer()
    offers = by_id([*([embedded] if embedded else []), *extra])
    site = Site([embedded.record()] if embedded else [])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / "wgemma.zip").is_file():
            raise SourceError(f"{folder} is not empty and not an earlier export. Choose a new folder.")
        written = [_copy(offer.path, folder / offer.url) for offer in offers.values()]
        listed = json.dumps([offer.record() for offer in offers.values()], indent=1)
        written.append(_write(folder / "models.json", listed.encode()))
        # The service worker comes last, because it makes visitors' browsers fetch the rest.
        addresses = sorted(site.assets, key=lambda address: (address == "sw.js", address))
        written += [_write(folder / (address or "index.html"), site.read(address)[0]) for address in addresses]
        for stale in {path for name in _OURS for path in (folder / name).glob("*")} - set(written):
            stale.unlink()
    except OSError as error:
        raise SourceError(f"{folder} cannot be written: {error.strerror or error}.") from None
    return written


def _write(path: Path, data: bytes) -> Path:
    return _put(path, lambda fresh: fresh.write_bytes(data))


def _copy(source: Path, path: Path) -> Path:
    return _put(path, lambda fresh: shutil.copyfile(source, fresh))


def _put(path: Path, fill: Callable[[Path], object]) -> Path:
    """Replaces a file atomically: visitors may be reading the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fill(fresh)
    fresh.replace(path)
    return path
