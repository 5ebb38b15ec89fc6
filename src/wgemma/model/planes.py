"""How each weight type is stored on the GPU: which WGSL reads it, and how many words its planes take.

The layouts themselves are drawn in the block_*.wgsl files; repacking, matmuls and the memory estimate share this table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wgemma.files.grids import GRIDS


@dataclass(frozen=True, slots=True)
class Planes:
    """The planes of one weight type. Counts are in 32-bit words per 32 weights (`codes`) and per `span` weights."""

    reader: str  # block_READER.wgsl
    repacker: str  # repack_REPACKER.wgsl
    codes: int
    scales: int
    span: int = 32
    halves: bool = False  # scales take sixteen bits, two blocks to a word
    constants: tuple[tuple[str, Any], ...] = ()

    def code_bytes(self, rows: int, columns: int) -> int:
        return rows * (columns // 32) * self.codes * 4

    def scale_bytes(self, rows: int, columns: int) -> int:
        if self.halves:
            return -(-rows * (columns // 32) // 2) * 4
        return rows * (columns // self.span) * self.scales * 4

    def nbytes(self, rows: int, columns: int) -> int:
        return self.code_bytes(rows, columns) + self.scale_bytes(rows, columns)

    @property
    def quick(self) -> bool:
        """Whether weights are codes with a scale per 32, which can be multiplied as integers."""
        return self.reader not in ("f32", "f16", "bf16")

    @property
    def repack_constants(self) -> dict[str, Any]:
        word = "atomic<u32>" if self.halves else "u32"
        scales = self.halves or self.scales > 0
        return {"TYPE": self.repacker, "SCALES": scales, "SCALE_WORD": word, **dict(self.constants)}


def _grid(entries: Sequence[int]) -> tuple[tuple[str, Any], ...]:
    """The constants of grid.wgsl: two entries to a word."""
    words = [low | high << 16 for low, high in zip(entries[::2], entries[1::2], strict=True)]
    return ("WORDS", len(words)), ("GRID", " ".join(f"grid[{at}] = {word}u;" for at, word in enumerate(words)))


# What training reads: the backward pass has no reader for the other types.
TRAINABLE = ("F32", "F16", "BF16", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

PLANES: dict[str, Planes] = {
    "F32": Planes("f32", "words", 32, 0, constants=(("WORDS", 32),)),
    "F16": Planes("f16", "words", 16, 0, constants=(("WORDS", 16),)),
    "BF16": Planes("bf16", "words", 16, 0, constants=(("WORDS", 16),)),
    "Q4_0": Planes("q4_0", "q4_0", 4, 0, halves=True),
    "Q4_1": Planes("q4_1", "q4_1", 4, 1),
    "Q5_0": Planes("q5_0", "q5_0", 4, 2),
    "Q5_1": Planes("q5_0", "q5_0", 4, 2, constants=(("Q5_1", True),)),
    "Q8_0": Planes("q8_0", "q8_0", 8, 0, halves=True),
    "Q2_K": Planes("q2_k", "q2_k", 2, 5, span=256),
    "Q3_K": Planes("q3_k", "q3_k", 2, 13, span=256),
    "Q4_K": Planes("q4_k", "q4_k", 4, 5, span=256),
    "Q5_K": Planes("q5_k", "q5_k", 4, 13, span=256),
    "Q6_K": Planes("q6_k", "q6_k", 4, 21, span=256),
    "IQ3_XXS": Planes("iq3_xxs", "iq3_xxs", 4, 3, span=256, constants=_grid(GRIDS["IQ3_XXS"])),
    "IQ3_S": Planes("iq3_s", "iq3_s", 4, 3, span=256, constants=_grid(GRIDS["IQ3_S"])),
    "IQ4_NL": Planes("iq4_nl", "iq4_nl", 4, 0, halves=True),
    "IQ4_XS": Planes("iq4_xs", "iq4_xs", 4, 3, span=256),
    "MXFP4": Planes("mxfp4", "mxfp4", 4, 0, halves=True),
}
