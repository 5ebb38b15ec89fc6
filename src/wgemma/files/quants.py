"""The block formats of tensors: how many elements a block holds and how many bytes it takes.

Knows sizes only. What the bytes mean is defined once in NumPy (`reference/dequantize.py`) and once per format in WGSL.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One ggml tensor type: blocks of `elements` values in `nbytes` bytes."""

    name: str
    id: int
    elements: int
    nbytes: int

    def row_nbytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values; rows never share a block, so `columns` must fill whole ones."""
        if columns % self.elements:
            raise ValueError(f"{self.name} rows come in multiples of {self.elements}, not {columns}")
        return columns // self.elements * self.nbytes


BLOCK_FORMATS: tuple[BlockFormat, ...] = (
    BlockFormat("F32", 0, 1, 4),
    BlockFormat("F16", 1, 1, 2),
    BlockFormat("BF16", 30, 1, 2),
    BlockFormat("Q4_0", 2, 32, 18),
    BlockFormat("Q4_1", 3, 32, 20),
    BlockFormat("Q5_0", 6, 32, 22),
    BlockFormat("Q5_1", 7, 32, 24),
    BlockFormat("Q8_0", 8, 32, 34),
    BlockFormat("Q2_K", 10, 256, 84),
    BlockFormat("Q3_K", 11, 256, 110),
    BlockFormat("Q4_K", 12, 256, 144),
    BlockFormat("Q5_K", 13, 256, 176),
    BlockFormat("Q6_K", 14, 256, 210),
    BlockFormat("IQ3_XXS", 18, 256, 98),
    BlockFormat("IQ3_S", 21, 256, 110),
    BlockFormat("IQ4_NL", 20, 32, 18),
    BlockFormat("IQ4_XS", 23, 256, 136),
    BlockFormat("MXFP4", 39, 32, 17),
    BlockFormat("NVFP4", 40, 64, 36),
    # Not weights, but number tables in the same files.
    BlockFormat("I8", 24, 1, 1),
    BlockFormat("I16", 25, 1, 2),
    BlockFormat("I32", 26, 1, 4),
    BlockFormat("I64", 27, 1, 8),
    BlockFormat("F64", 28, 1, 8),
)

BY_ID: dict[int, BlockFormat] = {block.id: block for block in BLOCK_FORMATS}
BY_NAME: dict[str, BlockFormat] = {block.name: block for block in BLOCK_FORMATS}

# Types ggml has and wgemma does not, by id: their names, and the nearest type that would do.
UNSUPPORTED: dict[int, tuple[str, str]] = {
    4: ("Q4_2", "Q4_0"), 5: ("Q4_3", "Q4_1"), 9: ("Q8_1", "Q8_0"), 15: ("Q8_K", "Q8_0"), 16: ("IQ2_XXS", "Q2_K"),
    17: ("IQ2_XS", "Q2_K"), 19: ("IQ1_S", "Q2_K"), 22: ("IQ2_S", "Q2_K"), 29: ("IQ1_M", "Q2_K"),
    31: ("Q4_0_4_4", "Q4_0"), 32: ("Q4_0_4_8", "Q4_0"), 33: ("Q4_0_8_8", "Q4_0"), 34: ("TQ1_0", "Q2_K"),
    35: ("TQ2_0", "Q2_K"), 36: ("IQ4_NL_4_4", "IQ4_NL"), 37: ("IQ4_NL_4_8", "IQ4_NL"), 38: ("IQ4_NL_8_8", "IQ4_NL"),
    41: ("Q1_0", "Q4_0"),
}  # fmt: skip
