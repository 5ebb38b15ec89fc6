"""Turns messages into token ids so that a continued chat keeps its prefix.

Replies keep their original ids: tokenising their text again may give different ones, and every token after the first
difference would have to be recomputed.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from wgemma.text.template import Segment
from wgemma.text.tokenizer import Tokenizer

REMEMBERED = 256


class Replies:
    """The ids of replies, by their text."""

    def __init__(self, ids: Mapping[str, list[int]] | None = None) -> None:
        self._ids: dict[str, list[int]] = dict(ids or {})

    def copy(self) -> "Replies":
        return Replies(self._ids)

    def remember(self, text: str, ids: Sequence[int]) -> None:
        if text and ids:
            self._ids.pop(text, None)
            self._ids[text] = list(ids)
            if len(self._ids) > REMEMBERED:
                del self._ids[next(iter(self._ids))]

    def encode(
        self, tokenizer: Tokenizer, segments: Sequence[Segment], media: Iterable[Sequence[int]] = ()
    ) -> list[int]:
        """The prompt's ids. The model's own text keeps its ids if it is a remembered reply; anyone else's text that
        reads the same does not. `media` are the ids of the images and sounds, in order."""
        ids: list[int] = []
        waiting: list[tuple[str, bool]] = []
        placed = iter(media)
        for segment in segments:
            known = self._ids.get(segment.text) if segment.own and not segment.trusted else None
            if segment.media is not None:
                known = list(next(placed))
            if known is None:
                waiting.append((segment.text, segment.trusted))
            else:
                ids += tokenizer.encode_segments(waiting)
                ids += known
                waiting.clear()
        return ids + tokenizer.encode_segments(waiting)

    def count(self, tokenizer: Tokenizer, segments: Sequence[Segment]) -> int:
        """How many ids the prompt has without its images and sounds."""
        return len(self.encode(tokenizer, segments, repeat(())))


def marks(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where the next prompt is likely to diverge from this one: after the system turn, and where the reply starts."""
    found = []
    opening = tokenizer.encode("<|turn>model\n", special=True)
    system = tokenizer.encode("<|turn>system\n", special=True)
    end = tokenizer.special.get("<turn|>")
    if end in ids[1:] and list(ids[1 : 1 + len(system)]) == system:
        found.append(ids.index(end) + 2)
    for start in range(len(ids) - len(opening), 0, -1):
        if ids[start] == opening[0] and list(ids[start : start + len(opening)]) == opening:
            found.append(start + len(opening))
            break
    return found
