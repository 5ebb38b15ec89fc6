"""What to download for a model on Hugging Face: the right file of a repository's listing, in parts or whole, and the
projector beside it.

A repository holds one model in several quantisations, named by the ends of the file names: NAME-Q4_K_M.gguf. The tag
says which. Headers are read over the web first, so a file that wgemma cannot run is refused before it is downloaded.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from wgemma.errors import SourceError, StoreError
from wgemma.files.fetching import TIMEOUT, Blob
from wgemma.files.gguf import Gguf
from wgemma.files.json_text import parse_json
from wgemma.files.keeping import checked_digest
from wgemma.files.names import DEFAULT_TAG, Name
from wgemma.files.ollama import MAX_JSON
from wgemma.files.parts import part_names, whole_name
from wgemma.files.registry import MAX_BLOB, small
from wgemma.files.sources import HttpSource
from wgemma.files.web import BadStatus, Manners

ADDRESS = "https://huggingface.co"
HOSTS = frozenset(("hf.co", "huggingface.co", "www.huggingface.co"))
MAX_PAGES = 20  # of a listing, a thousand files each
# What to take if the tag does not say: first what is small enough for most machines and hardly worse than the original,
# then what is larger, then what is worse. IQ3_XXS is left out: files so called often hold IQ2_S, too.
CHOICES = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "MXFP4_MOE", "MXFP4", "Q4_1",
    "Q5_K_M", "UD-Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "UD-Q6_K_XL", "Q6_K_L", "Q8_0", "UD-Q8_K_XL",
    "Q3_K_M", "UD-Q3_K_XL", "Q3_K_XL", "Q3_K_L", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "Q2_K_L",
    "UD-Q2_K_XL", "Q2_K", "BF16", "F16", "F32",
)  # fmt: skip
PROJECTORS = ("F16", "BF16", "F32", "Q8_0")

_LABEL = re.compile(r"(?i)(?:UD-)?(?:I?Q[0-9]+(?:_[A-Z0-9]+)*|TQ[0-9]_[0-9]|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32)")
_NEXT = re.compile(r'<([^<>]{1,2000})>;\s*rel="next"')


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a listing."""

    path: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to download: a model's file or parts, and its projector."""

    label: str
    model: Sequence[HubFile]
    projector: HubFile | None

    @property
    def title(self) -> str:
        first = self.model[0].name
        parts = f" in {len(self.model)} parts" if len(self.model) > 1 else ""
        beside = f" and {self.projector.name}" if self.projector else ""
        return whole_name(first) + parts + beside


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
    if error.status in (401, 403):  # a repository that does not exist is answered like that, too
        reason = "is not on Hugging Face, or only for those who have agreed to its terms. If you have, set HF_TOKEN."
        return StoreError(f"{name.namespace}/{name.model} {reason}", "not_found")
    if error.status == 404:
        return StoreError(f"{name.namespace}/{name.model} is not on Hugging Face.", "not_found")
    return StoreError(str(error), "not_found")


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


# -- which file


def choose(files: Sequence[HubFile], name: Name) -> Choice:
    """The model that the tag names, with its parts and its projector."""
    models: dict[str, list[HubFile]] = {}
    for file in files:
        if "mmproj" not in file.name.lower() and "imatrix" not in file.name.lower():
            models.setdefault(whole_name(file.path), []).append(file)
    if not models:
        raise StoreError(f"{name}: there is no GGUF file in this repository.", "not_found")
    path = _model(list(models), name)
    parts = sorted(models[path], key=lambda file: file.path)
    expected = part_names(parts[0].path)
    if [part.path for part in parts] != expected:
        raise StoreError(f"{name}: {path} has {len(parts)} of {len(expected)} parts in this repository.", "not_found")
    return Choice(label_of(path), parts, _projector(files, parts[0].folder))


def label_of(path: str) -> str:
    """The quantisation in a file's name, or in its folder's: model-UD-Q4_K_XL.gguf → UD-Q4_K_XL."""
    for text in (path.rpartition("/")[2][: -len(".gguf")], path.rpartition("/")[0]):
        found = [match[0] for match in _LABEL.finditer(text) if match.end() == len(text)]
        if found:
            return found[-1].upper()
    return ""


def _model(paths: Sequence[str], name: Name) -> str:
    by_label: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (path.count("/"), path)):
        by_label.setdefault(label_of(path), path)
    wanted = name.tag.upper()
    if name.tag == DEFAULT_TAG:
        best = next((label for label in CHOICES if label in by_label), None)
        return by_label[best] if best else min(paths)
    named = [path for path in paths if wanted in _spellings(path)]
    if wanted in by_label or named:
        return by_label.get(wanted) or named[0]
    if f"UD-{wanted}" in by_label:
        return by_label[f"UD-{wanted}"]
    there = ", ".join(sorted(filter(None, by_label))) or ", ".join(sorted(paths)[:20])
    raise StoreError(f"{name.namespace}/{name.model} has no {name.tag}. It has {there:.1000}.", "not_found")


def _spellings(path: str) -> tuple[str, str]:
    """The names a file may be called by."""
    file = path.rpartition("/")[2].upper()
    return file, file.removesuffix(".GGUF")


def _projector(files: Sequence[HubFile], folder: str) -> HubFile | None:
    """The projector beside a model, or at the top of its repository; of several, the one that is exact and small."""
    there = [file for file in files if "mmproj" in file.name.lower() and file.folder in (folder, "")]
    ranks = {label: i for i, label in enumerate(PROJECTORS)}
    return min(there, key=lambda file: (ranks.get(label_of(file.path), len(ranks)), file.path), default=None)


# -- from the web


def blobs(name: Name, files: Sequence[HubFile]) -> list[Blob]:
    return [Blob(_url(name, file), file.digest, file.size, manners()) for file in files]


def _url(name: Name, file: HubFile) -> str:
    return f"{ADDRESS}/{name.namespace}/{name.model}/resolve/main/{quote(file.path)}"


def open_remote(name: Name, files: Sequence[HubFile]) -> Gguf:
    """The header of a file, or of all its parts."""
    return Gguf.open([HttpSource(_url(name, file), timeout=TIMEOUT, manners=manners()) for file in files])
