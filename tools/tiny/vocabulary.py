"""The small vocabulary: Gemma's special tokens under their own names, bytes, characters, and pairs merged by count.

`python tools/tiny/vocabulary.py OUT.json` learns the merges from the training text. Digits stay single and no merge
crosses a space, as in the real vocabulary.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from skills import conversation
from world import SYLLABLES

from wgemma.text.template import render
from wgemma.text.tokenizer import Tokenizer

SIZE = 2048
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image>", "<|audio>",
    "<|image|>", "<|audio|>", "<image|>", "<audio|>", "<|video|>",
)  # fmt: skip
CONTROL, NORMAL, BYTE = 3, 1, 6
EXTRA = "äöüßéèàçñ×÷–—…’“”°€"
# A name counts as its two syllables: if whole names became tokens, new ones could not be copied piece by piece.
_WORD = re.compile(f"▁?(?:{'|'.join(SYLLABLES[0])})(?={'|'.join(SYLLABLES[1])})|▁?[A-Za-z][a-z]*")


@dataclass(frozen=True)
class Vocabulary:
    tokens: list[str]
    types: list[int]
    merges: list[str]

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokens, self.types, self.merges)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"tokens": self.tokens, "types": self.types, "merges": self.merges}))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        return cls(**json.loads(path.read_text()))


def learn(size: int, conversations: int, seed: int = 0) -> Vocabulary:
    words = _count_words(conversations, seed)
    runs = [char * n for char in "\n▁" for n in range(2, 5)]
    characters = [chr(c) for c in range(33, 127)] + ["\n", "\t", "▁", *EXTRA]
    tokens = [*SPECIAL, *runs, *(f"<0x{b:02X}>" for b in range(256)), *characters]
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * len(runs) + [BYTE] * 256 + [NORMAL] * len(characters)
    merges = [f"{run[0] * (len(run) - 1)} {run[0]}" for run in runs]
    merges += _merge(words, size - len(tokens))
    learnt = ["".join(pair.split(" ")) for pair in merges[len(runs) :]]
    return Vocabulary(tokens + learnt, types + [NORMAL] * len(learnt), merges)


def _count_words(conversations: int, seed: int) -> Counter[str]:
    random, counts = Random(seed), Counter[str]()
    for _ in range(conversations):
        case = conversation(random)
        text = render(case.messages, tools=case.tools or None, think=case.think, open_reply=False)
        counts.update(_WORD.findall(text.replace(" ", "▁")))
    return counts


def _merge(words: Counter[str], count: int) -> list[str]:
    """Repeatedly merges the most frequent pair."""
    parts = {word: list(word) for word in words}
    merges: list[str] = []
    seen: set[str] = set()
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in parts.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        pair, _ = max(((p, n) for p, n in pairs.items() if "".join(p) not in seen), key=lambda item: (item[1], item[0]))
        seen.add("".join(pair))
        merges.append(" ".join(pair))
        for word, pieces in parts.items():
            if pair[0] in pieces:
                parts[word] = _joined(pieces, pair)
    return merges


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    i = 0
    while i < len(pieces):
        if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == pair:
            out.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            out.append(pieces[i])
            i += 1
    return out


def metadata(vocabulary: Vocabulary) -> dict[str, Any]:
    """The keys of a GGUF as Ollama writes them."""
    index = {token: i for i, token in enumerate(vocabulary.tokens)}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        "tokenizer.ggml.scores": [float(i) for i in range(len(vocabulary.tokens))],
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": index["<bos>"],
        "tokenizer.ggml.eos_token_id": index["<eos>"],
        "tokenizer.ggml.eos_token_ids": [index[t] for t in ("<eos>", "<turn|>", "<|tool_response>")],
        "tokenizer.ggml.padding_token_id": index["<pad>"],
        "tokenizer.ggml.unknown_token_id": index["<unk>"],
        "tokenizer.ggml.mask_token_id": index["<mask>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
    }


if __name__ == "__main__":
    learn(SIZE, 30_000).save(Path(sys.argv[1]))
