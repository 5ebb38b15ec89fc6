"""What to download for a model on Hugging Face: the listing of its repository, and the address of each file. `choosing`
says which files to take.

Headers are read over the web first, so a file that wgemma cannot run is refused before it is downloaded.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from wgemma.errors import SourceError, StoreError
from wgemma.files.choosing import Choice, HubFile, choose
from wgemma.files.fetching import TIMEOUT, Blob
from wgemma.files.gguf import Gguf
from wgemma.files.json_text import parse_json
from wgemma.files.keeping import checked_digest
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_JSON
from wgemma.files.registry import MAX_BLOB, small
from wgemma.files.sources import HttpSource
from wgemma.files.web import BadStatus, Manners

ADDRESS = "https://huggingface.co"
MAX_PAGES = 20  # of a listing, a thousand files each

_NEXT = re.compile(r'<([^<>]{1,2000})>;\s*rel="next"')


def hub_choice(name: Name) -> Choice:
    """The files for `name`, whose tag is a quantisation, a file's name, or `latest` for what suits most machines."""
    return choose(listing(name), name)


def listing(name: Name) -> list[HubFile]:
    """All GGUF files of a repository."""
    url = f"{ADDRESS}/api/models/{name.namespace}/{name.model}/tree/main?recursive=true"
    files: list[HubFile] = []
    for _ in range(MAX_PAGES):
        try:
            data, headers = small(url, MAX_JSON, manners())
        except BadStatus as error:
            raise _refusal(name, error) from None
        files += parse_listing(data, name)
        following = _NEXT.search(headers.get("Link", ""))
        if following is None:
            return files
        url = urljoin(url, following[1])
        if urlsplit(url)[:2] != urlsplit(ADDRESS)[:2]:
            raise SourceError(f"{name}: the listing goes on at another host, which wgemma does not ask.")
    raise SourceError(f"{name}: the repository has too many files.")


def _refusal(name: Name, error: BadStatus) -> StoreError:
    if error.status in (401, 403):  # also where there is no repository of that name
        reason = "is not on Hugging Face, or only for those who have agreed to its terms. If you have, set HF_TOKEN."
        return StoreError(f"{name.namespace}/{name.model} {reason}", "not_in_registry")
    if error.status == 404:
        return StoreError(f"{name.namespace}/{name.model} is not on Hugging Face.", "not_in_registry")
    return StoreError(str(error), "not_in_registry")


def manners() -> Manners:
    """With the user's token, if there is one; it goes to Hugging Face only."""
    token = os.environ.get("HF_TOKEN", "").strip()
    usable = token.isascii() and token.isprintable() and " " not in token
    return Manners(strict=True, headers={"Authorization": f"Bearer {token}"} if token and usable else {})


def parse_listing(data: bytes, name: Name) -> list[HubFile]:
    """The GGUF files in one page of a listing."""
    try:
        entries = parse_json(data)
    except ValueError as error:
        raise StoreError(f"the listing of {name} is {error}.", "bad_manifest") from None
    if not isinstance(entries, list):
        raise StoreError(f"the listing of {name} is not a list of files.", "bad_manifest")
    return [file for entry in entries if isinstance(entry, dict) and (file := _file(entry)) is not None]


def _file(entry: Mapping[str, Any]) -> HubFile | None:
    """A GGUF file with a digest; others are of no use."""
    path, large = entry.get("path"), entry.get("lfs")
    if not isinstance(path, str) or not path.lower().endswith(".gguf") or not isinstance(large, dict):
        return None
    oid, size = large.get("oid"), large.get("size")
    if not isinstance(oid, str) or type(size) is not int or not 0 < size <= MAX_BLOB or not path.isprintable():
        return None
    try:
        return HubFile(path, checked_digest(f"sha256:{oid.removeprefix('sha256:').lower()}"), size)
    except StoreError:
        return None


# -- from the web


def blobs(name: Name, files: Sequence[HubFile]) -> list[Blob]:
    return [Blob(address(name, file), file.digest, file.size, manners()) for file in files]


def address(name: Name, file: HubFile) -> str:
    """Where a file is."""
    return f"{ADDRESS}/{name.namespace}/{name.model}/resolve/main/{quote(file.path)}"


def open_remote(name: Name, files: Sequence[HubFile]) -> Gguf:
    """The header of a file, or of all its parts. A repository may show its listing to all and its files to some."""
    try:
        return Gguf.open([HttpSource(address(name, file), timeout=TIMEOUT, manners=manners()) for file in files])
    except BadStatus as error:
        if error.status == 404:
            reason = f"{name.namespace}/{name.model} lists {files[0].path}, but does not have it. Try again later."
            raise StoreError(reason, "not_in_registry") from None
        raise _refusal(name, error) from None
