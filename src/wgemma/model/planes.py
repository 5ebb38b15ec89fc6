"""How each weight type is stored on the GPU: which WGSL reads it, and how many words its planes take.

The layouts themselves are drawn in the block_*.wgsl files; repacking, matmuls and the memory estimate share this table.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Planes:
    """The planes of one weight type. Counts are in 32-bit words per 32 weights (`codes`) and per `span` weights."""

    reader: str  # block_READER.wgsl
    repacker: str  # repack_REPACKER.wgsl
    codes: int
    scales: int
    span: int = 32
    halves: bool = False  # scales are f16, two blocks to a word
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
        return self.reader.startswith("q")

    @property
    def repack_constants(self) -> dict[str, Any]:
        word = "atomic<u32>" if self.halves else "u32"
        scales = self.halves or self.scales > 0
        return {"TYPE": self.repacker, "SCALES": scales, "SCALE_WORD": word, **dict(self.constants)}


PLANES: dict[str, Planes] = {
    "F32": Planes("f32", "words", 32, 0, constants=(("WORDS", 32),)),
    "F16": Planes("f16", "words", 16, 0, constants=(("WORDS", 16),)),
    "BF16": Planes("bf16", "words", 16, 0, constants=(("WORDS", 16),)),
    "Q4_0": Planes("q4_0", "q4_0", 4, 0, halves=True),
    "Q5_0": Planes("q5_0", "q5_0", 4, 2),
    "Q5_1": Planes("q5_0", "q5_0", 4, 2, constants=(("Q5_1", True),)),
    "Q8_0": Planes("q8_0", "q8_0", 8, 0, halves=True),
    "Q4_K": Planes("q4_k", "q4_k", 4, 5, span=256),
    "Q5_K": Planes("q5_k", "q5_k", 4, 13, span=256),
    "Q6_K": Planes("q6_k", "q6_k", 4, 21, span=256),
}
