"""Images and sounds in a sequence: each becomes a run of soft rows, with ids that are not tokens.

The headers of a prompt's images and sounds are read first: what is too much is refused before anything is decoded.

The same content keeps its ids for as long as the model is loaded, so a prompt that repeats it has the same prefix and
is not recomputed. Rows are encoded when a pass needs them and cached within a budget; their source is cached within
another. A medium that lost both must be sent again, as every chat does anyway.
"""

import hashlib
import math
import os
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from wgemma.checks import counted
from wgemma.engine.soft import runs
from wgemma.engine.towers import Encoder
from wgemma.errors import MediaError, SessionError
from wgemma.files.images import Pixels, check_picture, contents, image_format, image_size, read_image
from wgemma.files.sounds import ARRAY_RATE, MAX_SECONDS, check_sound, cuts, read_sound, sound_format, sound_seconds
from wgemma.model.passes import SOFT
from wgemma.model.tower import Step, unwatched
from wgemma.model.vision_config import BUDGETS
from wgemma.text.parts import Content

Rows = TypeVar("Rows")

BUDGET = 280  # tokens per image, unless its part says otherwise
ROW_BYTES = 256 << 20  # of encoded media to cache
CONTENT_BYTES = 256 << 20  # of source images and sounds to cache, for encoding them again
MAX_TOTAL_PIXELS = 400_000_000  # of a prompt's images that are not cached
MAX_TOTAL_SECONDS = MAX_SECONDS  # of its sounds
SHORTEST_PIECE = 25 * ARRAY_RATE  # samples, of a sound that is cut
MOST_MEDIA = 1 << 16
MAX_ROWS = 1 << 11  # per medium in a saved chat


_KEY = re.compile("[0-9a-f]{64}")


@dataclass(slots=True, eq=False)
class Medium(Generic[Rows]):
    """An image, or a piece of a sound; its rows have the ids [first, first + count)."""

    key: str
    kind: Literal["image", "audio"]
    first: int
    count: int
    budget: int = 0
    content: "bytes | Pixels | array[float] | None" = None  # None: it must be sent again before it can be encoded
    rows: Rows | None = None

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def content_bytes(self) -> int:
        match self.content:
            case Pixels():
                return self.content.nbytes
            case array():
                return 4 * len(self.content)
            case None:
                return 0
            case _:
                return len(self.content)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """An image or sound of a prompt before it is decoded. `digest` is that of a file; `amount` is its pixels or seconds
    if it must be decoded."""

    kind: Literal["image", "audio"]
    source: Any
    budget: int
    name: str
    digest: str
    amount: float


class Senses(Generic[Rows]):
    """All media of one model."""

    def __init__(self, towers: Encoder[Rows], width: int) -> None:
        self.towers = towers
        self.width = width
        self._media: dict[str, Medium[Rows]] = {}  # by key, least recently used first
        self._firsts: list[int] = []  # ascending, parallel to `_in_order`
        self._in_order: list[Medium[Rows]] = []
        self._files: dict[str, list[str]] = {}  # the media of a file, by its hash
        self._placed: Counter[str] = Counter()  # media of prompts at work, whose sources must stay cached
        self._holding = threading.RLock()  # of `_placed`; the garbage collector may let go in between
        self._next = SOFT

    # -- ids

    def holds(self, number: int) -> bool:
        """Whether this is the id of a soft row."""
        return self._medium(number) is not None

    def is_image(self, number: int) -> bool:
        """Whether a row belongs to an image; assumed for media that were forgotten."""
        medium = self._medium(number)
        return medium is None or medium.kind == "image"

    def _medium(self, number: int) -> Medium[Rows] | None:
        at = bisect_right(self._firsts, number) - 1
        found = self._in_order[at] if at >= 0 else None
        return found if found is not None and number in found.numbers else None

    def _register(self, key: str, kind: Literal["image", "audio"], count: int, budget: int = 0) -> Medium[Rows]:
        """The medium with this key, marked as most recently used."""
        medium = self._media.get(key)
        if medium is not None and (medium.kind, medium.count, medium.budget) != (kind, count, budget):
            self._forget(medium)  # a saved chat lied about it
            medium = None
        if medium is None:
            medium = Medium(key, kind, self._next, count, budget)
            self._next += count + 1  # skip one id between media: see soft.runs
            self._firsts.append(medium.first)
            self._in_order.append(medium)
        self._touch(medium)
        spare = [old for old in self._media.values() if old is not medium and not self._placed[old.key]]
        for old in spare[: max(len(self._media) - MOST_MEDIA, 0)]:
            self._forget(old)
        return medium

    def _touch(self, medium: Medium[Rows]) -> None:
        """Marks a medium as most recently used."""
        self._media.pop(medium.key, None)
        self._media[medium.key] = medium

    def _forget(self, medium: Medium[Rows]) -> None:
        self._drop_rows(medium)
        del self._media[medium.key]
        at = bisect_left(self._firsts, medium.first)
        del self._firsts[at], self._in_order[at]

    # -- input

    async def place(self, contents: Sequence[Content]) -> list[list[Medium[Rows]]]:
        """The media of a prompt, until they are `let_go`: one per image, and one per 30 seconds of a sound."""
        found = [self._find(content) for content in contents]
        self._check_amounts(found)
        placed: list[list[Medium[Rows]]] = []
        try:
            for each in found:
                placed += [await self._take(each)]
        except BaseException:
            self.let_go(placed)
            raise
        return placed

    async def take(self, content: Content) -> list[Medium[Rows]]:
        """The media of an image or sound, until they are `let_go`."""
        return await self._take(self._find(content))

    def let_go(self, placed: Iterable[Iterable[Medium[Rows]]]) -> None:
        """A prompt with these media is done; any thread may say so."""
        with self._holding:
            self._placed -= Counter(medium.key for media in placed for medium in media)

    def _hold(self, media: Iterable[Medium[Rows]]) -> None:
        with self._holding:
            self._placed.update(medium.key for medium in media)

    def weigh(self, content: Content) -> int:
        """How many ids an image or sound takes in a prompt, with the two around each medium. Nothing is decoded, so a
        sound may take a few less."""
        found = self._find(content)
        known = self._known(found.digest)
        if known:
            return sum(medium.count + 2 for medium in known)
        if found.kind == "image":
            return self.towers.image_tokens(*image_size(found.source), found.budget) + 2
        samples = math.ceil(sound_seconds(found.source) * ARRAY_RATE)
        return self.towers.sound_tokens(samples) + 4 * -(-samples // SHORTEST_PIECE)

    def _find(self, content: Content) -> _Found:
        """What a content is, by its header. A file is recognised by its bytes, before it is decoded."""
        image = content.kind == "image"
        self.towers.require(content.kind)  # fail before reading anything
        budget = 0 if not image else BUDGET if content.budget is None else content.budget
        source, name, digest = content.source, "", ""
        if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
            word, recognise = ("picture", image_format) if image else ("sound", sound_format)
            name, source = contents(source, word, recognise)
            name = content.name or name
            (check_picture if image else check_sound)(name, source)  # before reading all of it
            digest = _hash(content.kind, budget, source)
        amount = 0.0
        if not self._known(digest):
            with _named(name):
                amount = float(math.prod(image_size(source))) if image else sound_seconds(source)
        return _Found(content.kind, source, budget, name, digest, amount)

    def _known(self, digest: str) -> list[Medium[Rows]]:
        """The media of a file that is cached; empty if it is not."""
        keys = self._files.get(digest, [])
        known = [self._media[key] for key in keys if key in self._media]
        if len(known) < len(keys) or any(medium.content is None for medium in known):
            return []
        return known

    def _check_amounts(self, found: Sequence[_Found]) -> None:
        """Refuses a prompt with too many pixels or seconds to decode; a file that comes twice counts once."""
        pixels, seconds = (
            sum({each.digest or id(each): each.amount for each in found if each.kind == kind}.values())
            for kind in ("image", "audio")
        )
        if pixels > MAX_TOTAL_PIXELS:
            raise MediaError(
                f"the pictures of this prompt have {pixels / 1e6:.0f} million pixels together; the limit is "
                f"{MAX_TOTAL_PIXELS // 10**6} million. Scale them down, or send them one after the other."
            )
        if seconds > MAX_TOTAL_SECONDS:
            raise MediaError(
                f"the sounds of this prompt are {seconds / 60:.0f} minutes long together; the limit is "
                f"{MAX_TOTAL_SECONDS // 60}. Send them one after the other."
            )

    async def _take(self, found: _Found) -> list[Medium[Rows]]:
        known = self._known(found.digest)
        if known:
            for medium in known:
                self._touch(medium)
            self._hold(known)
            return known
        with _named(found.name):
            image = found.kind == "image"
            media = [self._see(found.source, found.budget)] if image else await self._hear(found.source)
        if found.digest:
            self._files.pop(found.digest, None)
            self._files[found.digest] = [medium.key for medium in media]
            if len(self._files) > MOST_MEDIA:
                del self._files[next(iter(self._files))]
        self._hold(media)
        self._make_room_for_contents()
        return media

    def _see(self, source: Any, budget: int) -> Medium[Rows]:
        pixels = read_image(source)
        count = self.towers.image_tokens(pixels.width, pixels.height, budget)
        key = _hash("pixels", budget, f"{pixels.width}×{pixels.height}", pixels.key)
        medium = self._register(key, "image", count, budget)
        if medium.content is None:
            # A file is smaller than its pixels.
            medium.content = bytes(source) if isinstance(source, bytes | bytearray | memoryview) else pixels
        return medium

    async def _hear(self, source: Any) -> list[Medium[Rows]]:
        samples = await self.samples(source)
        media = []
        for start, end in cuts(samples):
            piece = samples[start:end]
            count = self.towers.sound_tokens(len(piece))
            if count:
                medium = self._register(_hash("samples", 0, memoryview(piece).cast("B")), "audio", count)
                medium.content = piece
                media.append(medium)
        if not media:
            raise MediaError(f"the sound is too short: {counted(len(samples), 'sample')} at 16 kHz.")
        return media

    async def samples(self, source: Any) -> "array[float]":
        """A sound in the tower's format: 16 kHz, mono."""
        self.towers.require("audio")
        return await self.towers.resample(read_sound(source))

    def _make_room_for_contents(self) -> None:
        """Evicts the sources of the least recently used media, but never those of prompts at work."""
        held = [medium for medium in self._media.values() if medium.content is not None]
        total = sum(medium.content_bytes for medium in held)
        for medium in held:
            if total <= CONTENT_BYTES:
                return
            if not self._placed[medium.key]:
                total -= medium.content_bytes
                medium.content = None

    # -- encoding

    async def rows(self, number: int, step: Step = unwatched) -> tuple[Rows, int]:
        """The encoded medium a soft row belongs to, and the row's index in it. `step` follows the encoding."""
        medium = self._medium(number)
        if medium is None:
            raise SessionError(f"{number} is not the id of a row of any image or sound in this session.")
        self._touch(medium)
        if medium.rows is None:
            medium.rows = await self._encode(medium, step)
            self._make_room_for_rows(medium)
        return medium.rows, number - medium.first

    async def _encode(self, medium: Medium[Rows], step: Step) -> Rows:
        content = medium.content
        if content is None:
            what = "an image" if medium.kind == "image" else "a sound"
            raise SessionError(f"{what} in this chat is no longer cached. Send it again with the messages.")
        if isinstance(content, array):
            return await self.towers.hear(content, step)
        return await self.towers.see(read_image(content), medium.budget, step)

    def _make_room_for_rows(self, latest: Medium[Rows]) -> None:
        held = [medium for medium in self._media.values() if medium.rows is not None]
        total = sum(4 * self.width * medium.count for medium in held)
        for medium in held:
            if total <= ROW_BYTES:
                return
            if medium is not latest:
                total -= 4 * self.width * medium.count
                self._drop_rows(medium)

    def _drop_rows(self, medium: Medium[Rows]) -> None:
        if medium.rows is not None:
            self.towers.drop(medium.rows)
            medium.rows = None

    # -- life

    def lose_rows(self) -> None:
        """Forgets all rows after the device was lost; they are encoded again when needed."""
        for medium in self._media.values():
            medium.rows = None

    def free(self) -> None:
        """Frees the encoded rows and the towers."""
        for medium in self._media.values():
            self._drop_rows(medium)
        self.towers.release()

    # -- saved chats

    def describe(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The media of a sequence, for a saved chat."""
        media = {self._medium(ids[start]) for start, _ in runs(ids)}
        known = sorted((medium for medium in media if medium is not None), key=lambda medium: medium.first)
        return [{name: getattr(m, name) for name in ("key", "kind", "first", "count", "budget")} for m in known]

    def recognise(self, ids: Sequence[int], described: Iterable[Any]) -> list[int]:
        """A saved chat's ids, renumbered for its media here; raises `ValueError` if they make no sense, and then
        nothing is registered."""
        soft = sorted({number for number in ids if number >= SOFT})
        believed: list[tuple[str, Any, int, int, list[int]]] = []
        end = 0
        for entry in described:
            key, kind, first, count, budget = (entry[name] for name in ("key", "kind", "first", "count", "budget"))
            whole = all(type(number) is int for number in (first, count, budget))
            named = isinstance(key, str) and _KEY.fullmatch(key) and kind in ("image", "audio")
            if not named or not whole or not 0 < count <= MAX_ROWS or budget not in (0, *BUDGETS):
                raise ValueError
            known = self._media.get(key)
            if known is not None and (known.kind, known.count, known.budget) != (kind, count, budget):
                raise ValueError
            start, end = end, bisect_left(soft, first + count)
            if not start < end or soft[start] < first:
                raise ValueError  # not used, out of order, or it overlaps another
            believed.append((key, kind, count, budget, [number - first for number in soft[start:end]]))
        if end < len(soft):
            raise ValueError
        numbers: list[int] = []
        for key, kind, count, budget, places in believed:
            medium = self._register(key, kind, count, budget)
            numbers += [medium.first + place for place in places]
        here = dict(zip(soft, numbers, strict=True))
        return [here.get(number, number) for number in ids]


def _hash(kind: str, budget: int, *pieces: "str | bytes | memoryview") -> str:
    digest = hashlib.sha256(f"{kind} {budget} ".encode())
    for piece in pieces:
        digest.update(piece.encode() if isinstance(piece, str) else piece)
    return digest.hexdigest()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Puts the file's name into errors about its data."""
    try:
        yield
    except MediaError as error:
        sentence = str(error)
        for anonymous in ("the picture", "the sound"):
            if name and sentence.startswith(f"{anonymous} "):
                sentence = name + sentence.removeprefix(anonymous)
        raise MediaError(sentence) from None
