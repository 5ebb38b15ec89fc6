"""Rewrites a model's file with random weights of other types: `python bench/mix.py SOURCE GOAL [--type IQ4_XS]`.

Without a type, matrices get a mix like those of popular dynamic quantisations: Q3_K to Q6_K and IQ4_XS, with more bits
for the first and last layers. Metadata, vectors and float matrices are copied. Answers are noise, but speed and memory
use are those of a real file. Blocks repeat after a few megabytes, so a large file is quick to make.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.quants import BY_NAME
from wgemma.files.writing import NewTensor, write_gguf
from wgemma.model.planes import PLANES
from wgemma.reference.dequantize import dequantize
from wgemma.reference.lab import SCALES, random_blocks

POOL = 65537  # blocks, a prime: rows of an embedding differ
SAMPLE = 2048  # blocks that tell how large weights are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a GGUF of a text model")
    parser.add_argument("goal", type=Path, metavar="GOAL")
    parser.add_argument("--type", choices=list(SCALES), help="all matrices in this type, instead of a mix")
    options = parser.parse_args()
    with Gguf.open(options.source) as gguf:
        metadata = {k: v if isinstance(v, int | float | str) else list(v) for k, v in gguf.metadata.items()}
        metadata.pop("general.file_type", None)
        layers = metadata["gemma4.block_count"]
        tensors = {t.name: _made(gguf, t, options.type or mixed(t.name, layers)) for t in gguf.tensors.values()}
    write_gguf(options.goal, metadata, tensors)
    bits = sum(8 * len(tensor.data) for tensor in tensors.values())
    print(f"{options.goal}: {bits / 8e9:.2f} GB, {bits / sum(map(_elements, tensors.values())):.2f} bits per weight")


def mixed(name: str, layers: int) -> str:
    """The type of a matrix in the mix."""
    if name == "token_embd.weight":
        return "Q6_K"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block is None:
        return "Q5_K"
    layer, part = int(block[1]), block[2]
    outer = layer < layers // 8 or layer >= layers - layers // 8
    if "gate" in part or "up" in part:
        return "Q4_K" if outer else ("IQ4_XS", "Q3_K")[layer % 2]
    if "down" in part:
        return "Q6_K" if outer else ("Q4_K", "IQ4_XS")[layer % 2]
    return {"attn_q": "IQ4_XS", "attn_k": "IQ4_XS", "attn_v": "Q5_K", "attn_output": "Q4_K"}.get(part, "Q5_K")


def _made(gguf: Gguf, tensor: Tensor, kind: str) -> NewTensor:
    if tensor.type not in SCALES or tensor.type not in PLANES or tensor.shape[0] % BY_NAME[kind].elements:
        return NewTensor(tensor.type, tensor.shape, gguf.read(tensor.name))
    rng = np.random.default_rng(sum(tensor.name.encode()))
    blocks = random_blocks(rng, kind, min(POOL, tensor.elements // BY_NAME[kind].elements))
    size = tensor.shape[0] ** -0.5 / float(dequantize(blocks[:SAMPLE], kind).std())
    for at in SCALES[kind][0]:
        blocks[:, at : at + 2] = (size * blocks[:, at : at + 2].view("<f2").astype("<f4")).astype("<f2").view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] += np.uint8(round(np.log2(size)) & 255)
    nbytes = tensor.elements // BY_NAME[kind].elements * BY_NAME[kind].nbytes
    return NewTensor(kind, tensor.shape, memoryview(np.resize(blocks.ravel(), nbytes)))


def _elements(tensor: NewTensor) -> int:
    return int(np.prod(tensor.shape))


if __name__ == "__main__":
    main()
