"""Measures the tokenizer's speed and memory: `python bench/tokenizer.py VOCABULARY.gguf [--json FILE]`.

Every line starts with cold caches; compare microseconds per byte. `unseen words` is prose whose words never repeat, so
no cache helps: a fair comparison for the runs without spaces below it.
"""

import argparse
import base64
import json
import random
import time
import tracemalloc
from pathlib import Path

from wgemma import Gguf, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = ("ka", "lo", "mi", "ter", "vin", "sha", "bor", "el", "ung", "pre", "stra", "quo", "ble", "ing", "ness",
             "dra", "fo", "wi", "zen", "tu")  # fmt: skip


def texts(size: int) -> dict[str, str]:
    """Named texts of about `size` bytes, the same on every run."""
    dice = random.Random(4)

    def word() -> str:
        return "".join(dice.choices(SYLLABLES, k=dice.randint(1, 3)))

    lexicon = [word() for _ in range(4000)]
    prose = " ".join(dice.choices(lexicon, weights=[1 / (rank + 3) for rank in range(4000)], k=size // 5))[:size]
    unseen = " ".join("".join(dice.choices(LETTERS, k=dice.randint(2, 9))) for _ in range(size // 6))[:size]
    return {
        "prose": prose,
        "unseen words": unseen,
        "prose without spaces": prose.replace(" ", ""),
        "unseen words without spaces": unseen.replace(" ", ""),
        "one letter": "a" * size,
        "spaces": " " * size,
        "base64": base64.b64encode(dice.randbytes(size * 3 // 4)).decode(),
        "Han": "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(size // 3)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocabulary")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    started = time.perf_counter()
    gguf = Gguf.open(options.vocabulary)
    opened = time.perf_counter()
    Tokenizer.from_gguf(gguf)
    built = time.perf_counter()
    tracemalloc.start()
    gguf = Gguf.open(options.vocabulary)
    tokenizer = Tokenizer.from_gguf(gguf)
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    print(f"header {opened - started:.2f} s   tokenizer {built - opened:.2f} s   both keep {memory:.0f} MB")

    rows = []
    for size in (100_000, 1_000_000):
        for name, text in texts(size).items():
            tokenizer.forget()
            nbytes = len(text.encode())
            begin = time.perf_counter()
            tokens = len(tokenizer.encode(text))
            seconds = time.perf_counter() - begin
            rows.append({"text": name, "bytes": nbytes, "tokens": tokens, "us_per_byte": seconds / nbytes * 1e6})
            print(f"{name:30} {nbytes:>9} B {tokens:>8} tokens {seconds:7.3f} s {rows[-1]['us_per_byte']:6.2f} µs/B")
    if options.json:
        figures = {"header_s": opened - started, "tokenizer_s": built - opened, "kept_mb": memory, "texts": rows}
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
