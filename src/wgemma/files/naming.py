"""Gives models their names in wgemma's store, and takes them away.

A manifest is written once all its blobs are there; those that only the one before it named are deleted. What no
manifest names, and nobody has touched for a week, goes with the next model that is deleted.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR

from wgemma.errors import Error, StoreError
from wgemma.files.json_text import parse_json
from wgemma.files.keeping import (
    blob_place,
    changing,
    checked_digest,
    digest_of,
    fresh_file,
    has_blob,
    holding,
    keep_bytes,
    link_place,
    lock_place,
    partial_place,
    writing,
)
from wgemma.files.locks import is_held, locked
from wgemma.files.manifests import ManifestLayer, parse_layers
from wgemma.files.names import Name
from wgemma.files.ollama import MAX_JSON, Store
from wgemma.files.paths import mode
from wgemma.files.writing import settle, settle_folder

TRIES = 3  # to write a manifest while others delete its blobs
FORGOTTEN = 7 * 86400.0  # seconds after which what no model needs is not waited for

_FILE = re.compile(r"sha256-([0-9a-f]{64})(?:\.partial|\.link|\.lock)?")


def keep_manifest(
    store: Store, name: Name, manifest: bytes, blobs: Sequence[ManifestLayer], texts: Iterable[bytes] = ()
) -> None:
    """Writes a manifest and those of the blobs `texts` that it names; raises `StoreError` unless all others are there.
    Blobs that only the manifest it replaces has named are deleted."""
    named = {blob.digest for blob in blobs}
    given = {digest: text for text in texts if (digest := digest_of(text)) in named}
    for digest in given:
        if not has_blob(store, digest):  # whoever is writing it may be slow, and others shall not wait for that, too
            with writing(str(store.root)), holding(store, digest):
                pass
    with changing(store):
        for blob in blobs:
            if blob.digest not in given and not has_blob(store, blob.digest, blob.size):
                raise StoreError(f"{name} needs the blob {blob.digest}, which is not in the store.", "missing_blob")
        before = _digests(store.manifest(name))
        new = {digest for digest in given if not has_blob(store, digest)}
        try:
            for text in given.values():
                keep_bytes(store, text)
            _put_manifest(store, name, manifest)
        except BaseException:
            _drop_blobs(store, new)
            raise
        _drop_blobs(store, before)


def _put_manifest(store: Store, name: Name, manifest: bytes) -> None:
    draft, path = store.root / "manifest.partial", store.manifest(name)
    with fresh_file(draft) as file:
        file.write(manifest)
        settle(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(path)
    settle_folder(path.parent)


def drop_manifest(store: Store, name: Name) -> None:
    """Deletes a model, and the blobs no other one has: its own, and what pulls and uploads left behind long ago."""
    with changing(store):
        path = store.manifest(name)
        if not mode(path):
            raise StoreError(f"{name} is not in {store.root}.", "not_found")
        digests = _digests(path) or set()
        path.unlink()
        for folder in list(path.parents)[:3]:
            with suppress(OSError):
                folder.rmdir()  # only if it is empty
        _drop_blobs(store, digests | set(_left_behind(store)))


def _drop_blobs(store: Store, digests: set[str] | None) -> None:
    """Deletes those blobs that no model needs, and what has arrived of them."""
    if not digests:
        return
    try:
        kept = _needed(store)
    except (OSError, ValueError):  # nobody knows what is needed
        return
    for digest in digests - kept:
        try:
            with locked(lock_place(store, digest), _Held):  # so that nobody begins to write it meanwhile
                _drop_blob(store, digest)
        except _Held:
            continue
        except OSError:  # a full disk has no room for a lock
            if not is_held(lock_place(store, digest)):
                _drop_blob(store, digest)


class _Held(Error):
    """Somebody is writing this blob."""


def _drop_blob(store: Store, digest: str) -> None:
    for place in (blob_place, partial_place, link_place):
        place(store, digest).unlink(missing_ok=True)


def _left_behind(store: Store) -> Iterator[str]:
    """The digests of blobs, whole or not, that nobody has touched for long."""
    blobs = store.root / "blobs"
    for path in blobs.iterdir() if S_ISDIR(mode(blobs)) else ():
        found = _FILE.fullmatch(path.name)
        with suppress(FileNotFoundError):  # a pull has named it
            status = path.lstat()
            if found and time.time() - max(status.st_mtime, status.st_ctime) > FORGOTTEN:
                yield f"sha256:{found[1]}"


def _needed(store: Store) -> set[str]:
    """The digests that manifests name; raises `OSError` or `ValueError` if one cannot be read."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # no manifests, no needs
            raise error

    needed: set[str] = set()
    for _, path in store.manifests(unreadable):
        named = _digests(path)
        if named is None:
            raise ValueError
        needed |= named
    return needed


def _digests(path: Path) -> set[str] | None:
    """The digests in a manifest: none without one, None if it cannot be read."""
    if not mode(path):
        return set()
    try:
        if path.stat().st_size > MAX_JSON:
            return None
        fields = parse_json(path.read_bytes())
        if not isinstance(fields, Mapping):
            return None
        name = Name.parse("a-manifest")
        layers = [*parse_layers([fields["config"]], name), *parse_layers(fields["layers"], name)]
        return {checked_digest(layer.digest.replace("-", ":").lower()) for layer in layers}
    except (OSError, ValueError, KeyError, TypeError, StoreError):
        return None


@contextmanager
def undone_on_failure(store: Store) -> Iterator[set[str]]:
    """For work that brings blobs before a manifest names them, and puts their digests into this set. If it fails, they
    are deleted, except those that a model needs or another process holds."""
    added: set[str] = set()
    try:
        yield added
    except BaseException:
        forget_blobs(store, added)
        raise


def forget_blobs(store: Store, digests: set[str]) -> None:
    """Deletes those of these blobs that no model needs and no other process holds, as far as that is possible."""
    with suppress(Error):
        if digests:
            with changing(store):
                _drop_blobs(store, digests)
