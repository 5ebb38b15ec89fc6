"""Saves a sequence to a file, with its tokens and KV cache, so that a chat can continue where it stopped.

    8 bytes   magic "WGEMMAS1"
    u32       length of the header
    header    JSON: version, fingerprint of the model, kv, ring, context positions, ids, sizes of the pieces,
              hashes of the images and sounds behind soft ids, and hashes and scales of the adapters
    pieces    raw bytes: for every layer with its own cache its keys, then its values
    32 bytes  SHA-256 of everything before

A damaged or foreign file is refused as a whole: its header and sizes must fit the model before the pieces are read, and
the hash must be right before they are used. The pieces are never in memory all at once.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from wgemma.engine.adapting import Setting, checked_scale
from wgemma.engine.engine import Engine
from wgemma.engine.runner import Runner
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import SessionError, SettingsError
from wgemma.files.json_text import parse_json
from wgemma.files.paths import user_path
from wgemma.files.reading import regular_file
from wgemma.files.writing import replacing
from wgemma.model.passes import SOFT

MAGIC = b"WGEMMAS1"
STEP = 16 << 20  # bytes to read or write at a time
_MAX_HEADER = 16 << 20
_MAX_FILE = 1 << 40  # far above the cache of any model; the header says what a file must have
_START, _END = struct.Struct("<8sI"), 32

Path = str | os.PathLike[str]


def fingerprint(engine: Engine) -> str:
    """Identifies a model file by its tensor table and a sample of its weights."""
    digest = hashlib.sha256()
    for tensor in sorted(engine.gguf.tensors.values(), key=lambda tensor: tensor.offset):
        digest.update(f"{tensor.name} {tensor.type} {tensor.shape} {tensor.offset}\n".encode())
    digest.update(engine.sample)
    return digest.hexdigest()


async def save(runner: Runner, sequence: TokenSequence, path: Path) -> None:
    """Writes the sequence; an existing file is replaced only once the new one is complete."""
    target = user_path(path, SessionError)
    await runner.enter(sequence)
    pieces = runner.cache.pieces(len(sequence.ids))
    header = json.dumps(_header(runner, sequence, [size for _, size in pieces])).encode()
    digest = hashlib.sha256()
    try:
        with replacing(target) as file:

            def put(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            put(_START.pack(MAGIC, len(header)) + header)
            for buffer, size in pieces:
                for at, count in _steps(size):
                    put(await runner.device.read(buffer, at, count))
            file.write(digest.digest())
    except OSError as error:
        raise SessionError(f"{path} cannot be written: {error.strerror or error}.") from None


async def restore(runner: Runner, path: Path) -> TokenSequence:
    """Loads a file's sequence into the cache; a refused file changes nothing."""
    with regular_file(path, _MAX_FILE, SessionError) as file:
        header, start = _read_header(file, path)
        sequence = _described(runner, header, path)
        size = runner.cache.nbytes(len(sequence.ids))
        if os.fstat(file.fileno()).st_size != start + size + _END or not _is_whole(file, start + size):
            raise _damaged(path)
        _recognise(runner, sequence, header, path)
        await runner.cache.make_room(max(len(sequence.ids), 1))
        pieces = runner.cache.pieces(len(sequence.ids))
        if [size for _, size in pieces] != header.get("sizes"):
            raise _damaged(path)
        await runner.enter(sequence)
        try:
            file.seek(start)
            for buffer, size in pieces:
                for at, count in _steps(size):
                    runner.device.write(buffer, at, _read(file, count, path))
        except BaseException:
            sequence.reset()
            raise
    return sequence


def _steps(size: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of the steps in which to read or write `size` bytes."""
    return ((at, min(STEP, size - at)) for at in range(0, size, STEP))


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


def _damaged(path: Path) -> SessionError:
    return SessionError(f"{path} is not a saved session, or it is damaged.")


def _read(file: BinaryIO, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise _damaged(path)
    return data


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """A file's header, and where its pieces start."""
    magic, length = _START.unpack(_read(file, _START.size, path))
    if magic != MAGIC or length > _MAX_HEADER:
        raise _damaged(path)
    try:
        header = parse_json(_read(file, length, path))
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(header, dict) or header.get("version") != 1:
        raise SessionError(f"{path} was saved by another version of wgemma.")
    return header, _START.size + length


def _is_whole(file: BinaryIO, end: int) -> bool:
    """Whether the bytes up to `end` have the hash that follows them."""
    digest = hashlib.sha256()
    file.seek(0)
    for _, count in _steps(end):
        digest.update(file.read(count))
    return file.read(_END) == digest.digest()


def _described(runner: Runner, header: dict[str, Any], path: Path) -> TokenSequence:
    """The sequence a header describes, its media still under the numbers they had."""
    if header.get("fingerprint") != fingerprint(runner.engine):
        raise SessionError(f"{path} was saved with another model, or it is damaged.")
    ids, written, cache = header.get("ids"), header.get("written"), runner.cache
    vocab, context = runner.engine.config.vocab_size, runner.engine.context
    if not isinstance(ids, list) or not all(type(i) is int and (0 <= i < vocab or i >= SOFT) for i in ids):
        raise SessionError(f"{path} contains ids that are not tokens of this model.")
    if len(ids) > context:
        raise SessionError(
            f"{path} has {len(ids)} tokens; the context holds {context}. Load the model with a larger one."
        )
    if type(written) is not int or not len(ids) <= written <= context:
        raise SessionError(f"{path} does not say how many positions were computed.")
    if (header.get("kv"), header.get("ring")) != (cache.kv, cache.ring):
        kv, ring = header.get("kv"), header.get("ring")
        raise SessionError(f"{path} was saved with other settings (kv={kv!r:.20}, ring {ring!r:.20}).")
    return TokenSequence(ids, written, _adapter(runner.engine, header.get("adapter", []), path))


def _recognise(runner: Runner, sequence: TokenSequence, header: dict[str, Any], path: Path) -> None:
    """Gives the sequence's media the numbers they have here."""
    try:
        if runner.senses:
            sequence.ids = runner.senses.recognise(sequence.ids, header.get("media", ()))
    except (ValueError, TypeError, KeyError):
        raise SessionError(f"{path} does not describe its images and sounds.") from None


def _adapter(engine: Engine, key: Any, path: Path) -> Setting:
    """The adapters the KV cache was computed with, which must be loaded here, too."""
    try:
        told = [(str(digest), checked_scale(scale)) for digest, scale in key]
    except (ValueError, TypeError, SettingsError):
        raise SessionError(f"{path} does not say which adapters it was computed with.") from None
    setting = engine.adapters.recognise(told)
    if setting is None:
        raise SessionError(f"{path} was saved with an adapter that is not loaded. Load it first.")
    return setting
