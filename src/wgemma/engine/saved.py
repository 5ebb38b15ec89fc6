"""A session as a file: its tokens and the keys and values they left, so that a chat goes on where it stopped.

    8 bytes   magic "WGEMMAS1"
    u32       length of the header
    header    JSON: version, fingerprint of the model, kv, ring, context positions, ids, sizes of the pieces, the
              hashes of images and sounds behind ids that are no tokens, and the adapters' with their scales
    pieces    raw bytes: for every layer that owns a cache its keys, then its values
    32 bytes  SHA-256 of everything before

Sizes are compared exactly and the hash before anything is used: a damaged or foreign file is refused whole.
"""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

from wgemma.engine.adapting import Setting, checked_scale
from wgemma.engine.engine import Engine
from wgemma.engine.session import Session
from wgemma.errors import SessionError, SettingsError
from wgemma.gpu.device import Buffer
from wgemma.model.decoder import SOFT

MAGIC = b"WGEMMAS1"
_MAX_HEADER = 16 << 20


def fingerprint(engine: Engine) -> str:
    """Tells one model's file from another's: its table of tensors and a sample of its weights."""
    digest = hashlib.sha256()
    for tensor in sorted(engine.gguf.tensors.values(), key=lambda tensor: tensor.offset):
        digest.update(f"{tensor.name} {tensor.type} {tensor.shape} {tensor.offset}\n".encode())
    digest.update(engine.sample)
    return digest.hexdigest()


async def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Writes the session; an existing file is replaced only when the new one is whole."""
    pieces = _pieces(session, len(session.ids))
    header = json.dumps(_header(session, [size for _, size in pieces])).encode()
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as file:

            def put(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            put(MAGIC + struct.pack("<I", len(header)) + header)
            for buffer, size in pieces:
                put(await session.engine.device.read(buffer, 0, size))
            file.write(digest.digest())
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SessionError(f"{target} cannot be written: {error.strerror or error}.") from None


async def restore(engine: Engine, path: str | os.PathLike[str]) -> Session:
    """The session a file holds, on this engine."""
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from None
    header, body = _open(data, path)
    if header.get("fingerprint") != fingerprint(engine):
        raise SessionError(f"{path} was saved from another model.")
    session = Session(engine)
    try:
        _fill(session, header, body, path)
    except BaseException:
        session.free()
        raise
    return session


def _header(session: Session, sizes: list[int]) -> dict[str, Any]:
    return {
        "version": 1,
        "fingerprint": fingerprint(session.engine),
        "kv": session.cache.kv,
        "ring": session.cache.ring,
        "written": session.written,
        "ids": session.ids,
        "media": session.engine.senses.describe(session.ids) if session.engine.senses else [],
        "adapter": session.adapter.key,
        "sizes": sizes,
    }


def _pieces(session: Session, positions: int) -> list[tuple[Buffer, int]]:
    """(buffer, bytes in use) of every segment, rings whole and full layers as far as they are filled."""
    pieces = []
    for layer in session.cache.owners:
        for segment in session.cache.segments[layer.index]:
            used = segment.count if layer.sliding else max(0, min(segment.count, positions - segment.first))
            size = used * session.cache.token_bytes(layer)
            if size:  # the cache may have grown further than these tokens need
                pieces += [(segment.keys, size), (segment.values, size)]
    return pieces


def _open(data: memoryview, path: str | os.PathLike[str]) -> tuple[dict[str, Any], memoryview]:
    """Header and pieces of a file that is whole."""
    damaged = SessionError(f"{path} is not a saved session, or it is damaged.")
    if len(data) < len(MAGIC) + 36 or bytes(data[:8]) != MAGIC:
        raise damaged
    if hashlib.sha256(data[:-32]).digest() != bytes(data[-32:]):
        raise damaged
    (length,) = struct.unpack_from("<I", data, 8)
    if length > min(_MAX_HEADER, len(data) - 44):
        raise damaged
    try:
        header = json.loads(bytes(data[12 : 12 + length]))
    except ValueError:
        raise damaged from None
    if not isinstance(header, dict) or header.get("version") != 1:
        raise SessionError(f"{path} was saved by another version of wgemma.")
    return header, data[12 + length : -32]


def _fill(session: Session, header: dict[str, Any], body: memoryview, path: str | os.PathLike[str]) -> None:
    ids, written, cache = header.get("ids"), header.get("written"), session.cache
    vocab, senses = session.engine.config.vocab_size, session.engine.senses
    if not isinstance(ids, list) or not all(isinstance(i, int) and (0 <= i < vocab or i >= SOFT) for i in ids):
        raise SessionError(f"{path} holds no token ids of this model.")
    try:
        ids = senses.recognise(ids, header.get("media", ())) if senses else ids
    except (ValueError, TypeError, KeyError):
        raise SessionError(f"{path} does not say which images and sounds it is about.") from None
    if not isinstance(written, int) or not len(ids) <= written <= session.engine.context:
        raise SessionError(f"{path} does not say how far it had come.")
    if (header.get("kv"), header.get("ring")) != (cache.kv, cache.ring):
        raise SessionError(
            f"{path} was saved with other settings (kv={header.get('kv')!r}, ring {header.get('ring')})."
        )
    session.adapter = _adapter(session.engine, header.get("adapter", []), path)
    cache.grow(max(len(ids), 1))
    pieces = _pieces(session, len(ids))
    if [size for _, size in pieces] != header.get("sizes") or sum(size for _, size in pieces) != len(body):
        raise SessionError(f"{path} does not hold what its header says.")
    at = 0
    for buffer, size in pieces:
        session.engine.device.write(buffer, 0, body[at : at + size])
        at += size
    session.resume(ids, written)


def _adapter(engine: Engine, key: Any, path: str | os.PathLike[str]) -> Setting:
    """What the keys and values were computed with; the adapters must be loaded here, too."""
    try:
        told = [(str(digest), checked_scale(scale)) for digest, scale in key]
    except (ValueError, TypeError, SettingsError):
        raise SessionError(f"{path} does not say which adapters it was computed with.") from None
    setting = engine.adapters.recognise(told)
    if setting is None:
        raise SessionError(f"{path} was saved with an adapter that is not loaded here: load it first.")
    return setting
