"""Cases → token ids with the places to learn from: one array per shard, made ahead of training by many processes.

A row is one conversation: ids, and 1 where the model has to say the next token itself. Shards depend on their number
alone, so any of them can be made anywhere and comes out the same.
"""

from array import array
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from skills import Case, conversation
from vocabulary import Vocabulary

from wgemma.text.template import segments
from wgemma.text.tokenizer import Tokenizer

LONGEST = 512
SOFT = {"image": ("<|image>", "<|image|>", "<image|>"), "audio": ("<|audio>", "<|audio|>", "<audio|>")}


@dataclass(frozen=True)
class Rows:
    """Conversations one behind the other; row i is [starts[i], starts[i + 1])."""

    ids: NDArray[np.uint16]
    said: NDArray[np.bool_]  # the token is the model's own
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, i: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
        span = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.ids[span], self.said[span]


def encode(tokenizer: Tokenizer, case: Case, soft: dict[str, int] | None = None) -> tuple[list[int], list[bool]]:
    """A whole conversation; a picture or a sound takes `soft[kind]` places."""
    ids: list[int] = []
    for piece in segments(case.messages, tools=case.tools or None, think=case.think, open_reply=False):
        if piece.media is None:
            ids += tokenizer.encode(piece.text, special=piece.trusted)
            continue
        kind = str(piece.media["type"])
        first, slot, last = (tokenizer.special[text] for text in SOFT[kind])
        ids += [first, *[slot] * (soft or {})[kind], last]
    return ids, _said(tokenizer, ids)


def _said(tokenizer: Tokenizer, ids: list[int]) -> list[bool]:
    """Everything between `<|turn>model\\n` and `<turn|>`, but for what tools answered."""
    turn, end = tokenizer.special["<|turn>"], tokenizer.special["<turn|>"]
    open_result, close_result = tokenizer.special["<|tool_response>"], tokenizer.special["<tool_response|>"]
    head = tokenizer.encode("model\n")
    said, speaking, listening, skip = [], False, False, 0
    for i, token in enumerate(ids):
        if token == turn:
            speaking = ids[i + 1 : i + 1 + len(head)] == head
            skip = 1 + len(head)
        own = speaking and not listening and skip <= 0
        said.append(own)
        skip -= 1
        if token == open_result:
            listening = True  # the token itself ends the model's part
        elif token == close_result:
            listening = False
        elif token == end:
            speaking = False
    return said


def shard(vocabulary: Path, number: int, conversations: int) -> Rows:
    tokenizer = Vocabulary.load(vocabulary).tokenizer()
    random = Random(f"shard {number}")
    ids, said, starts = array("H"), array("b"), [0]
    while len(starts) <= conversations:
        row, own = encode(tokenizer, conversation(random))
        if len(row) <= LONGEST:
            ids.extend(row)
            said.extend(own)
            starts.append(len(ids))
    return Rows(np.array(ids, np.uint16), np.array(said, np.bool_), np.array(starts, np.int64))
