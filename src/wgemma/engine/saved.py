"""Saves a sequence to a file, with its tokens and their keys and values, so that a chat can continue where it stopped.

    8 bytes   magic "WGEMMAS2"
    u32       length of the header
    header    JSON: fingerprint of the model, kv, ids, hashes of the images and sounds behind soft ids, and hashes and
              scales of the adapters
    pieces    raw bytes, position by position: for every full layer with a cache of its own its keys of all positions,
              then its values; then the same for every sliding layer, of the last window alone
    32 bytes  SHA-256 of everything before

Positions come in whole pages; what lies behind the last token means nothing. A damaged or foreign file is refused as a
whole: its header and size must fit the model before the pieces are read, and the hash must be right before they are
used. The pieces are never in memory all at once.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from wgemma.engine.adapting import BARE, Setting, checked_scale
from wgemma.engine.engine import Engine
from wgemma.engine.paging import Paging
from wgemma.engine.runner import Runner
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import SessionError, SettingsError
from wgemma.files.json_text import parse_json
from wgemma.files.paths import user_path
from wgemma.files.reading import regular_file
from wgemma.files.writing import replacing
from wgemma.gpu.device import Buffer
from wgemma.gpu.tape import Tape
from wgemma.model.passes import SOFT
from wgemma.model.rows import PAGE, pages_of

MAGIC = b"WGEMMAS2"
STEP = 16 << 20  # bytes to read or write at a time
_MAX_HEADER = 16 << 20
_MAX_FILE = 1 << 40  # far above the cache of any model; the header says what a file must have
_START, _END = struct.Struct("<8sI"), 32

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Kept:
    """What there is to save of a chat: its tokens, and the adapters they were computed with."""

    ids: Sequence[int] = ()
    adapter: Setting = field(default=BARE)


def fingerprint(engine: Engine) -> str:
    """Identifies a model file by its tensor table and a sample of its weights."""
    digest = hashlib.sha256()
    for tensor in sorted(engine.gguf.tensors.values(), key=lambda tensor: tensor.offset):
        digest.update(f"{tensor.name} {tensor.type} {tensor.shape} {tensor.offset}\n".encode())
    digest.update(engine.sample)
    return digest.hexdigest()


async def save(runner: Runner, kept: Kept, path: Path) -> None:
    """Writes the tokens and their keys and values, computing what is missing; an existing file is replaced only once
    the new one is complete."""
    target = user_path(path, SessionError)
    header = json.dumps(_header(runner, kept)).encode()
    sequence = await _computed(runner, kept)
    digest = hashlib.sha256()
    try:
        with replacing(target) as file:

            def put(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            put(_START.pack(MAGIC, len(header)) + header)
            for stretch in _stretches(runner.paging, sequence):
                for size, pieces in _batches(stretch):
                    put(await _gathered(runner, size, pieces))
            file.write(digest.digest())
    except OSError as error:
        raise SessionError(f"{path} cannot be written: {error.strerror or error}.") from None
    finally:
        runner.paging.drop(sequence)


async def _computed(runner: Runner, kept: Kept) -> TokenSequence:
    """The sequence of all ids."""
    ids = [*kept.ids, 0]  # the last of a prompt is not computed
    sequence = await runner.paging.begin(ids, kept.adapter, runner.images(kept.ids))
    try:
        async for _ in runner.prefill(sequence, ids):
            pass
    except BaseException:
        runner.paging.drop(sequence)
        raise
    return sequence


async def restore(runner: Runner, path: Path) -> Kept:
    """Puts a file's tokens where the next prompt finds them; a refused file changes nothing."""
    with regular_file(path, _MAX_FILE, SessionError) as file:
        header, start = _read_header(file, path)
        kept = _described(runner, header, path)
        size = _nbytes(runner.paging, len(kept.ids))
        if os.fstat(file.fileno()).st_size != start + size + _END or not _is_whole(file, start + size):
            raise _damaged(path)
        kept = _recognise(runner, kept, header, path)
        sequence = runner.paging.alone(kept.adapter)
        try:
            await runner.paging.reach(sequence, len(kept.ids), _window(runner.paging, len(kept.ids)).start)
            file.seek(start)
            for stretch in _stretches(runner.paging, sequence, len(kept.ids)):
                for buffer, offset, count in stretch:
                    runner.device.write(buffer, offset, _read(file, count, path))
            runner.put_history(sequence, kept.ids, 0)
            sequence.ids = list(kept.ids)
        except BaseException:
            runner.paging.drop(sequence)
            raise
        runner.paging.settle(sequence)
        runner.paging.end(sequence)
    return kept


def _stretches(
    paging: Paging, sequence: TokenSequence, length: int | None = None
) -> Iterator[list[tuple[Buffer, int, int]]]:
    """(buffer, offset, bytes) of every page, for all layers' keys and values in the order of the file."""
    length = len(sequence.ids) if length is None else length
    yield from paging.arena.stretches(sequence.full[: pages_of(length)], sliding=False)
    yield from paging.arena.stretches([sequence.sliding[i] for i in _window(paging, length)], sliding=True)


def _window(paging: Paging, length: int) -> range:
    """The pages of the last window."""
    return range(max(length - paging.window, 0) // PAGE, pages_of(length)) if paging.window else range(0)


def _nbytes(paging: Paging, length: int) -> int:
    """The size of all pieces."""
    costs, history = paging.arena.costs, 4 * PAGE
    return pages_of(length) * (costs[False] - history) + len(_window(paging, length)) * costs[True]


def _batches(stretch: list[tuple[Buffer, int, int]]) -> Iterator[tuple[int, list[tuple[Buffer, int, int]]]]:
    """Pieces to read at once, and their size."""
    waiting: list[tuple[Buffer, int, int]] = []
    total = 0
    for piece in stretch:
        if waiting and total + piece[2] > STEP:
            yield total, waiting
            waiting, total = [], 0
        waiting.append(piece)
        total += piece[2]
    if waiting:
        yield total, waiting


async def _gathered(runner: Runner, size: int, pieces: list[tuple[Buffer, int, int]]) -> bytes:
    """The bytes of these pieces, read in one go."""
    with runner.ledger.part() as ledger:
        room, tape, at = ledger.buffer(size, "pages to save"), Tape(runner.device, "gather pages"), 0
        for buffer, offset, count in pieces:
            tape.copy(buffer, offset, room, at, count)
            at += count
        tape.program().replay()
        data = await runner.device.read(room, 0, size)
        tape.free()
        return data


def _header(runner: Runner, kept: Kept) -> dict[str, Any]:
    return {
        "fingerprint": fingerprint(runner.engine),
        "kv": runner.paging.arena.kv,
        "ids": list(kept.ids),
        "media": runner.senses.describe(kept.ids) if runner.senses else [],
        "adapter": kept.adapter.key,
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
    if magic != MAGIC and magic[:-1] == MAGIC[:-1]:
        raise SessionError(f"{path} was saved by another version of wgemma. Save the chat again.")
    if magic != MAGIC or length > _MAX_HEADER:
        raise _damaged(path)
    try:
        header = parse_json(_read(file, length, path))
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(header, dict):
        raise _damaged(path)
    return header, _START.size + length


def _is_whole(file: BinaryIO, end: int) -> bool:
    """Whether the bytes up to `end` have the hash that follows them."""
    digest = hashlib.sha256()
    file.seek(0)
    for at in range(0, end, STEP):
        digest.update(file.read(min(STEP, end - at)))
    return file.read(_END) == digest.digest()


def _described(runner: Runner, header: dict[str, Any], path: Path) -> Kept:
    """What a header describes, its media still under the numbers they had."""
    if header.get("fingerprint") != fingerprint(runner.engine):
        raise SessionError(f"{path} was saved with another model, or it is damaged.")
    ids, kv = header.get("ids"), header.get("kv")
    vocab, context = runner.engine.config.vocab_size, runner.engine.context
    if not isinstance(ids, list) or not all(type(i) is int and (0 <= i < vocab or i >= SOFT) for i in ids):
        raise SessionError(f"{path} contains ids that are not tokens of this model.")
    if len(ids) > context:
        raise SessionError(
            f"{path} has {len(ids)} tokens; the context holds {context}. Load the model with a larger one."
        )
    if kv != runner.paging.arena.kv:
        raise SessionError(f"{path} was saved with kv={kv!r:.20}. Load the model with the same.")
    return Kept(ids, _adapter(runner.engine, header.get("adapter", []), path))


def _recognise(runner: Runner, kept: Kept, header: dict[str, Any], path: Path) -> Kept:
    """Gives the media the numbers they have here."""
    try:
        if runner.senses:
            return Kept(runner.senses.recognise(list(kept.ids), header.get("media", ())), kept.adapter)
    except (ValueError, TypeError, KeyError):
        raise SessionError(f"{path} does not describe its images and sounds.") from None
    return kept


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
