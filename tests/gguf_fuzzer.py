"""Throws mutated GGUF files at the reader: `python tests/gguf_fuzzer.py --seed 1 --count 200000`.

A mutated file must either open (and then its arrays and its vocabulary must be readable or refused) or raise
`GgufError`, quickly and in little memory. Anything else is an escape and is printed with the seed that makes it again.
"""

import argparse
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence

from gguf_writer import write_gguf
from wgemma import Gguf, GgufError, Tokenizer

EDGES = (0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 255, 256, 4095, 4097, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
WIDE_EDGES = (*EDGES, 2**32, 2**32 + 1, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1)
SLOWEST = 1.0  # seconds one case may take


def seeds() -> list[bytes]:
    """A few small good files that between them hold every kind of field."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "a", "b", "ab", "▁", "▁a", "<0x41>"]
    vocabulary = {
        "general.architecture": "gemma4",
        "general.alignment": 32,
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 3, 1, 1, 1, 1, 1, 6],
        "tokenizer.ggml.merges": ["a b", "▁ a"],
        "tokenizer.ggml.eos_token_id": 1,
        "gemma4.attention.sliding_window_pattern": [True, False],
        "gemma4.final_logit_softcapping": 30.0,
        "split.count": 1,
    }
    tensors = {
        "token_embd.weight": ("Q4_K", (256, 3), None),
        "blk.0.attn_norm.weight": ("F32", (5,), None),
        "blk.0.ffn_gate_exps.weight": ("Q8_0", (32, 2, 2), None),
        "v.patch_embd.weight": ("F16", (2, 2, 3, 2), None),
    }
    return [
        write_gguf(vocabulary, tensors),
        write_gguf(vocabulary),
        write_gguf(tensors=tensors, version=2),
        write_gguf(),
    ]


def mutate(good: bytes, dice: random.Random) -> bytes:
    """One to four small mischiefs."""
    data = bytearray(good)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 4))):
        at = dice.randrange(len(data)) if data else 0
        match dice.randrange(8):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1 if data:
                data[at] ^= 1 << dice.randrange(8)
            case 2 | 3:
                data[at : at + 8] = struct.pack("<Q", dice.choice(WIDE_EDGES))
            case 4:
                data[at : at + 4] = struct.pack("<I", dice.choice(EDGES))
            case 5:
                del data[at:]
            case 6:
                del data[at : at + dice.randrange(1, 40)]
            case _:
                other = dice.randrange(len(data)) if data else 0
                data[at:at] = data[other : other + dice.randrange(1, 60)]
    return bytes(data)


def examine(data: bytes) -> str:
    """What became of one file; any exception but `GgufError` is let through."""
    try:
        gguf = Gguf.open(data)
    except GgufError:
        return "refused"
    for tensor in gguf.tensors.values():
        if tensor.offset + tensor.nbytes > len(data):
            raise AssertionError(f"{tensor} reaches past the end")
    try:
        for item in gguf.metadata.values():
            if isinstance(item, Sequence) and not isinstance(item, str):
                list(item)
        Tokenizer.from_gguf(gguf).encode("ab a<turn|> ABC", special=True)
    except GgufError:
        return "opened, vocabulary refused"
    return "opened"


def fuzz(seed: int, count: int) -> tuple[Counter[str], list[str], float]:
    """Outcomes, escapes, and the slowest case's seconds."""
    files = seeds()
    outcomes, escapes, slowest = Counter[str](), list[str](), 0.0
    for number in range(count):
        data = mutate(files[number % len(files)], random.Random(f"{seed}/{number}"))
        begin = time.perf_counter()
        try:
            outcomes[examine(data)] += 1
        except Exception as escape:
            escapes.append(f"case {seed}/{number}: {escape!r}")
        slowest = max(slowest, time.perf_counter() - begin)
    return outcomes, escapes, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    outcomes, escapes, slowest = fuzz(options.seed, options.count)
    for outcome, count in outcomes.most_common():
        print(f"{count:>9}  {outcome}")
    print(f"{len(escapes):>9}  escapes; the slowest case took {slowest * 1e3:.1f} ms")
    print("\n".join(escapes[:20]))
    return 1 if escapes or slowest > SLOWEST else 0


if __name__ == "__main__":
    sys.exit(main())
