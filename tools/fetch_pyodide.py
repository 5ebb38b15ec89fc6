"""Downloads Pyodide, Python for web pages, to src/wgemma/web/pyodide: one pinned npm package, verified by its hash.

Only the files the page needs are kept, with a notice of their licences. The Makefile and the wheel's build hook run
this; it needs only the standard library. It uses the public npm registry unless npm's own settings
(npm_config_registry, or a registry line in ~/.npmrc) name another; wherever the bytes come from, the hash decides.
"""

import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

VERSION = "314.0.7"
SIZE = 6_488_647
SHA512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
# The SHA-256 of each file, to check an existing folder.
FILES = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
NOTICE = f"""\
The files in this folder are from Pyodide {VERSION}, unchanged, as published in the npm package `pyodide`.

Pyodide: Copyright (C) 2019-2026, Pyodide contributors and Mozilla.
    This Source Code Form is subject to the terms of the Mozilla Public License, v. 2.0. If a copy of the MPL was not
    distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/.
    The source code is at https://github.com/pyodide/pyodide, under the tag {VERSION}.

pyodide.asm.wasm and python_stdlib.zip hold CPython 3.14: Copyright (c) 2001 Python Software Foundation; All Rights
    Reserved. It is under the PSF License Agreement, https://docs.python.org/3.14/license.html, which also names the
    licences of the libraries inside CPython.

pyodide.asm.mjs and pyodide.asm.wasm hold parts of Emscripten: Copyright (c) 2010-2026 Emscripten authors, under the
    MIT licence, https://github.com/emscripten-core/emscripten/blob/main/LICENSE.
"""
FOLDER = Path(__file__).resolve().parent.parent / "src" / "wgemma" / "web" / "pyodide"


def registry() -> str:
    """The npm registry, chosen as npm would: from the environment, the user's file, or the public one."""
    settings = {name.lower(): value for name, value in os.environ.items()}
    if chosen := settings.get("npm_config_registry"):
        return chosen.rstrip("/")
    file = Path(settings.get("npm_config_userconfig") or "~/.npmrc").expanduser()
    lines = file.read_text(errors="replace") if file.is_file() else ""
    line = re.search(r"^\s*registry\s*=\s*(\S+)", lines, re.MULTILINE)
    return line[1].rstrip("/") if line else "https://registry.npmjs.org"


def download() -> bytes:
    """The package's bytes; exits with a message if it cannot be downloaded."""
    url = f"{registry()}/pyodide/-/pyodide-{VERSION}.tgz"
    try:
        with urlopen(url, timeout=60) as answer:
            data: bytes = answer.read(SIZE + 1)
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        sys.exit(
            f"Pyodide could not be downloaded from {url}: {reason}. The page needs it once; go online, or set "
            "npm_config_registry to a mirror of the npm registry, and try again."
        )
    if hashlib.sha512(data).hexdigest() != SHA512:
        sys.exit(
            f"{url} is not Pyodide {VERSION}: its hash is different. Nothing was kept; try again, or set "
            "npm_config_registry to a registry you trust."
        )
    return data


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds exactly the files of this version."""
    try:
        if {path.name for path in folder.iterdir()} != {*FILES, "NOTICE.txt"}:
            return False
        return all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in FILES.items())
    except OSError:
        return False


def fetch(folder: Path = FOLDER) -> bool:
    """Downloads into `folder` unless it is complete; returns whether it did. It appears complete or not at all."""
    if is_whole(folder):
        return False
    data = download()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as package,
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pyodide-") as place,
    ):
        made = Path(place) / "made"
        made.mkdir()
        for name in FILES:
            member = package.extractfile(f"package/{name}")
            assert member is not None  # guaranteed by the hash
            (made / name).write_bytes(member.read())
        (made / "NOTICE.txt").write_text(NOTICE, "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return True


if __name__ == "__main__" and fetch():
    print(f"Pyodide {VERSION} is in {os.path.relpath(FOLDER)}.")
