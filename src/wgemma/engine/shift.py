"""Fits a chat into the context by dropping its oldest turns, enough of them at once to last for several questions.

A turn is a user's message and everything up to the next one, so no tool call is separated from its results. What comes
before the first turn stays: the system text above all. So do the turns that a model has of its own.

What is dropped follows from the messages alone. A long chat is cut only at milestones: the turns with which another
quarter of the context begins, counted from the start of the chat. So a chat that goes on is cut where it was cut
before, and its prefix is re-used, until it is too long again. Knows neither tokenizer nor media: functions count what
they take.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from wgemma.text.segments import Segment

MEDIUM = 256  # what an image or a sound counts for when milestones are set: what is dropped is not opened for that

_TURN = re.compile(r"(?=<\|turn>user\n)")


def fit(
    pieces: Sequence[Segment],
    context: int,
    room: int,
    count: Callable[[Sequence[Segment]], int],
    weigh: Callable[[Mapping[str, Any]], int],
    fixed: int = 0,
) -> tuple[list[Segment], int]:
    """The segments to keep of a chat so that `room` tokens of the context stay free, and how many turns were dropped.

    `count` counts the tokens of text, `weigh` those of an image or sound. The first `fixed` turns stay, and so does the
    last one, even if it does not fit.
    """
    parts = split(pieces)
    head, turns = [piece for part in parts[: 1 + fixed] for piece in part], parts[1 + fixed :]
    if len(turns) < 2 or (not _media(pieces) and _bytes(pieces) <= context - room):
        return list(pieces), 0
    texts = [count(turn) for turn in turns]
    size, first = count(head) + sum(map(weigh, _media(head))), len(turns) - 1
    for i in reversed(range(len(turns))):
        size += texts[i] + sum(map(weigh, _media(turns[i])))
        if size > context - room:
            break
        first = i
    if first == 0:
        return list(pieces), 0
    rough = [text + MEDIUM * len(_media(turn)) for text, turn in zip(texts, turns, strict=True)]
    quarters = [before // max(context // 4, 1) for before in accumulate(rough, initial=0)]  # full before each turn
    cut = next((i for i in range(first, len(turns)) if quarters[i] > quarters[i - 1]), first)
    return [piece for part in (head, *turns[cut:]) for piece in part], cut


def split(pieces: Sequence[Segment]) -> list[list[Segment]]:
    """What comes before the first turn, then the turns."""
    parts: list[list[Segment]] = [[]]
    for piece in pieces:
        if not piece.trusted or "<|turn>user\n" not in piece.text:
            parts[-1].append(piece)
            continue
        before, *begun = _TURN.split(piece.text)
        if before:
            parts[-1].append(replace(piece, text=before))
        parts += [[replace(piece, text=text)] for text in begun]
    return parts


def _bytes(pieces: Sequence[Segment]) -> int:
    """The text's length, which no tokenizer exceeds: every token takes a byte or more."""
    return sum(len(piece.text.encode(errors="replace")) for piece in pieces)


def _media(pieces: Sequence[Segment]) -> list[Mapping[str, Any]]:
    return [piece.media for piece in pieces if piece.media is not None]


def messages_in(messages: Sequence[Any], turns: int) -> int:
    """How many messages the first turns of a chat have."""
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    return users[turns] - users[0] if turns else 0
