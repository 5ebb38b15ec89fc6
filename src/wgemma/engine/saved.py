"""Saves a sequence to a file, with its tokens and KV cache, so that a chat can continue where it stopped.

    8 bytes   magic "WGEMMAS1"
    u32       length of the header
    header    JSON: version, fingerprint of the model, kv, ring, context positions, ids, sizes of the pieces,
              hashes of the images and sounds behind soft ids, and hashes and scales of the adapters
    pieces    raw bytes: for every layer with its own cache its keys, then its values
    32 bytes  SHA-256 of everything before

Sizes and hash are checked before anything is used: a damaged or foreign file is refused as a whole.
"""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

from wgemma.engine.adapting import Setting, checked_scale
from wgemma.engine.engine import Engine
from wgemma.engine.runner import Runner
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import SessionError, SettingsError
from wgemma.model.passes import SOFT

MAGIC = b"WGEMMAS1"
_MAX_HEADER = 16 << 20


def fingerprint(engine: Engine) -> str:
    """Identifies a model file by its tensor table and a sample of its weights."""
    digest = hashlib.sha256()
    for tensor in sorted(engine.gguf.tensors.values(), key=lambda tensor: tensor.offset):
        digest.update(f"{tensor.name} {tensor.type} {tensor.shape} {tensor.offset}\n".encode())
    digest.update(engine.sample)
    return digest.hexdigest()


async def save(runner: Runner, sequence: TokenSequence, path: str | os.PathLike[str]) -> None:
    """Writes the sequence; an existing file is replaced only once the new one is complete."""
    await runner.enter(sequence)
    pieces = runner.cache.pieces(len(sequence.ids))
    header = json.dumps(_header(runner, sequence, [size for _, size in pieces])).encode()
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
                put(await runner.device.read(buffer, 0, size))
            file.write(digest.digest())
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SessionError(f"{target} cannot be written: {error.strerror or error}.") from None


async def restore(runner: Runner, path: str | os.PathLike[str]) -> TokenSequence:
    """Loads a file's sequence into the cache; a refused file changes nothing."""
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from None
    header, body = _open(data, path)
    if header.get("fingerprint") != fingerprint(runner.engine):
        raise SessionError(f"{path} was saved with another model.")
    sequence = _described(runner, header, path)
    await runner.cache.make_room(max(len(sequence.ids), 1))
    pieces = runner.cache.pieces(len(sequence.ids))
    if [size for _, size in pieces] != header.get("sizes") or sum(size for _, size in pieces) != len(body):
        raise SessionError(f"{path} does not match its header; it is damaged.")
    await runner.enter(sequence)
    at = 0
    for buffer, size in pieces:
        runner.device.write(buffer, 0, body[at : at + size])
        at += size
    return sequence


def _header(runner: Runner, sequence: TokenSequence, sizes: list[int]) -> dict[str, Any]:
    return {
        "version": 1,
        "fingerprint": fingerprint(runner.engine),
        "kv": runner.cache.kv,
        "ring": runner.cache.ring,
        "written": sequence.written,
        "ids": sequence.ids,
        "media": runner.senses.describe(sequence.ids) if runner.senses else [],
        "adapter": sequence.adapter.key,
        "sizes": sizes,
    }


def _open(data: memoryview, path: str | os.PathLike[str]) -> tuple[dict[str, Any], memoryview]:
    """Checks a file and returns its header and pieces."""
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


def _described(runner: Runner, header: dict[str, Any], path: str | os.PathLike[str]) -> TokenSequence:
    """The sequence a header describes."""
    ids, written, cache, senses = header.get("ids"), header.get("written"), runner.cache, runner.senses
    vocab, context = runner.engine.config.vocab_size, runner.engine.context
    if not isinstance(ids, list) or not all(isinstance(i, int) and (0 <= i < vocab or i >= SOFT) for i in ids):
        raise SessionError(f"{path} contains ids that are not tokens of this model.")
    try:
        ids = senses.recognise(ids, header.get("media", ())) if senses else ids
    except (ValueError, TypeError, KeyError):
        raise SessionError(f"{path} does not describe its images and sounds.") from None
    if not isinstance(written, int) or not len(ids) <= written <= context:
        raise SessionError(f"{path} does not say how many positions were computed.")
    if (header.get("kv"), header.get("ring")) != (cache.kv, cache.ring):
        raise SessionError(
            f"{path} was saved with other settings (kv={header.get('kv')!r}, ring {header.get('ring')})."
        )
    return TokenSequence(ids, written, _adapter(runner.engine, header.get("adapter", []), path))


def _adapter(engine: Engine, key: Any, path: str | os.PathLike[str]) -> Setting:
    """The adapters the KV cache was computed with, which must be loaded here, too."""
    try:
        told = [(str(digest), checked_scale(scale)) for digest, scale in key]
    except (ValueError, TypeError, SettingsError):
        raise SessionError(f"{path} does not say which adapters it was computed with.") from None
    setting = engine.adapters.recognise(told)
    if setting is None:
        raise SessionError(f"{path} was saved with an adapter that is not loaded. Load it first.")
    return setting
