"""The engine for the page: the installed package as a zip, without what is only useful outside a page.

The same files give the same bytes, so the zip has the same hash wherever it is made.
"""

import io
import zipfile
from pathlib import Path

import wgemma

ROOT = Path(wgemma.__file__).resolve().parent
SUFFIXES = (".py", ".wgsl", ".json")
LEFT_OUT = ("cli", "llm_plugin.py", "reference", "scale", "serve", "web")


def package_files() -> list[Path]:
    """The package's files for the page, in a fixed order."""
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.suffix in SUFFIXES and path.relative_to(ROOT).parts[0] not in LEFT_OUT and path.is_file()
    )


def make_package() -> bytes:
    """A zip that unpacks to a folder `wgemma`."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in package_files():
            entry = zipfile.ZipInfo(f"wgemma/{path.relative_to(ROOT).as_posix()}")  # dated 1980, like all of them
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return made.getvalue()
