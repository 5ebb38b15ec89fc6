"""Cases → token ids with the places to learn from: one array per shard, made ahead of training by many processes.

A row is one conversation: ids, and 1 where the model has to say the next token itself. Shards depend on their number
alone, so any of them can be made anywhere and comes out the same.
"""

from array import array
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from skills import Case, conversation
from vocabulary import Vocabulary

from wgemma.text.template import lesson
from wgemma.text.tokenizer import Tokenizer

LONGEST = 512
# The chat protocol: a large model's answer without thinking starts with an empty thought.
Size = Literal["small", "large"]
SOFT = {"image": ("<|image>", "<|image|>", "<image|>"), "audio": ("<|audio>", "<|audio|>", "<audio|>")}


@dataclass(frozen=True)
class Rows:
    """Conversations, concatenated; row i is [starts[i], starts[i + 1])."""

    ids: NDArray[np.uint16]
    said: NDArray[np.bool_]  # the token is the model's own
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, i: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
        span = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.ids[span], self.said[span]


def encode(
    tokenizer: Tokenizer, case: Case, soft: dict[str, int] | None = None, size: Size = "small"
) -> tuple[list[int], list[bool]]:
    """A whole conversation, and which tokens the model says; a picture or a sound takes `soft[kind]` places."""
    ids: list[int] = []
    said: list[bool] = []
    for piece in lesson(case.messages, tools=case.tools or None, size=size):
        if piece.media is None:
            ids += tokenizer.encode(piece.text, special=piece.trusted)
        else:
            kind = str(piece.media["type"])
            first, slot, last = (tokenizer.special[text] for text in SOFT[kind])
            ids += [first, *[slot] * (soft or {})[kind], last]
        said += [piece.own] * (len(ids) - len(said))
    return ids, said


def shard(vocabulary: Path, number: int, conversations: int, size: Size) -> Rows:
    tokenizer = Vocabulary.load(vocabulary).tokenizer()
    random = Random(f"shard {number}")
    ids, said, starts = array("H"), array("b"), [0]
    while len(starts) <= conversations:
        row, own = encode(tokenizer, conversation(random), size=size)
        if len(row) <= LONGEST:
            ids.extend(row)
            said.extend(own)
            starts.append(len(ids))
    return Rows(np.array(ids, np.uint16), np.array(said, np.bool_), np.array(starts, np.int64))
