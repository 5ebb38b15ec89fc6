"""The contents of the site: a table from address to bytes, the same for the server and for --export.

Addresses are relative to the site's root ("" is the page itself), so the site works under any path. The table is an
allow-list: anything else does not exist, and no address is ever turned into a path.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wgemma.errors import Error
from wgemma.web.package import ROOT, make_package, package_files

# The files the browser may request, by folder.
ALLOWED = {
    "web": ("*.js", "*.d.ts", "*.css", "*.webmanifest"),
    "web/ui": ("*.js",),
    "web/icons": ("*.svg", "*.png"),
    "web/pyodide": ("*.mjs", "*.wasm", "*.zip", "*.json", "NOTICE.txt"),
    "gpu": ("*.js",),
}
# Address → page; each page gets the policy inserted.
PAGES = {"": "index.html", "bench.html": "bench.html"}
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".zip": "application/zip",
}
# The strictest policy Pyodide starts under: everything from this origin, WebAssembly but no eval, nothing inline.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self' 'wasm-unsafe-eval'",
    "worker-src": "'self'",
    "connect-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "media-src": "blob: data:",
    "manifest-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
}
CSP = "; ".join(f"{name} {value}" for name, value in POLICY.items())
# For the page itself only: text never becomes HTML (trusted.js says which script URLs are allowed).
PAGE_CSP = f"{CSP}; require-trusted-types-for 'script'; trusted-types default"

# Not needed offline: types and notices are for people.
_FOR_PEOPLE = (".d.ts", ".txt")
_HOLE = b"const SHELL = null;"


@dataclass(frozen=True, slots=True)
class Asset:
    """One response: its media type, the files it is made from, and how to make it."""

    kind: str
    sources: Callable[[], Sequence[Path]]
    make: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class _Made:
    stamp: tuple[tuple[Path, int, int], ...]
    data: bytes
    digest: str


class Site:
    """The table, with a hash of every entry. `models` are those that are part of the site itself."""

    def __init__(self, models: Sequence[dict[str, Any]] = ()) -> None:
        self.models = list(models)
        self.assets = {path: _file(place) for path, place in _files().items()}
        if "pyodide/pyodide.mjs" not in self.assets:
            raise Error(
                "Pyodide is missing, so the page has no Python. In a clone, `make app` downloads it; otherwise "
                "reinstall wgemma."
            )
        self.assets |= {address: _page(ROOT / "web" / name) for address, name in PAGES.items()}
        self.assets["wgemma.zip"] = Asset(KINDS[".zip"], package_files, make_package)
        worker = ROOT / "web" / "sw.js"
        self.assets["sw.js"] = Asset(KINDS[".js"], self._everything, lambda: self._with_shell(worker.read_bytes()))
        self._known: dict[str, _Made] = {}

    def read(self, address: str) -> tuple[bytes, str]:
        """The current bytes of `address` and their SHA-256; a file that changes on disk changes here, too."""
        asset = self.assets[address]
        stamp = tuple((path, (stat := path.stat()).st_mtime_ns, stat.st_size) for path in asset.sources())
        known = self._known.get(address)
        if known is None or known.stamp != stamp:
            made = asset.make()
            known = self._known[address] = _Made(stamp, made, hashlib.sha256(made).hexdigest())
        return known.data, known.digest

    def shell(self) -> dict[str, str]:
        """Address → hash of everything the page needs to start, including the site's own models."""
        needed = (address for address in self.assets if address != "sw.js" and not address.endswith(_FOR_PEOPLE))
        shell = {address: _integrity(self.read(address)[1]) for address in sorted(needed)}
        return shell | {model["url"]: _integrity(model["digest"]) for model in self.models}

    def _everything(self) -> list[Path]:
        others = (asset for address, asset in self.assets.items() if address != "sw.js")
        return [ROOT / "web" / "sw.js", *(path for asset in others for path in asset.sources())]

    def _with_shell(self, script: bytes) -> bytes:
        """The service worker with its file list. If a file changes, so do its bytes, which is how browsers notice."""
        files = self.shell()
        version = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        shell = json.dumps({"version": version, "files": files, "models": self.models}, indent=1)
        if script.count(_HOLE) != 1:
            raise Error("web/sw.js has no place for the list of files. Reinstall wgemma.")
        return script.replace(_HOLE, f"const SHELL = {shell};".encode())


def _files() -> dict[str, Path]:
    """Every static file by address; those in web/ and gpu/ are at the root, the others in their folder."""
    found = {}
    for folder, patterns in ALLOWED.items():
        place = ROOT / folder
        prefix = "" if folder in ("web", "gpu") else f"{place.name}/"
        for path in (path for pattern in patterns for path in place.glob(pattern)):
            found[prefix + path.name] = path
    return found


def _file(path: Path) -> Asset:
    return Asset(KINDS[path.suffix], lambda: (path,), path.read_bytes)


def _page(path: Path) -> Asset:
    return Asset(KINDS[".html"], lambda: (path,), lambda: _with_policy(path))


def _with_policy(path: Path) -> bytes:
    """A page with the policy in a meta tag, so that it also applies on web servers without our headers."""
    page = path.read_bytes()
    lines = f'''<head>
  <meta http-equiv="Content-Security-Policy" content="{PAGE_CSP}">
  <script src="trusted.js"></script>'''
    if page.count(b"<head>") != 1:
        raise Error(f"web/{path.name} has no <head> to put the policy into. Reinstall wgemma.")
    return page.replace(b"<head>", lines.encode())


def _integrity(digest: str) -> str:
    return "sha256-" + base64.b64encode(bytes.fromhex(digest)).decode()
