"""The (cos, sin) tables of rotary embeddings, small and exact at any depth (see kernels/rotary.wgsl).

θ_j(t) = t · base^(−2j/D) / f_j. With t = 256a + b two tables, for b and for 256a, give every angle by one addition;
they are computed in double precision, because a GPU's sine is not accurate enough for large angles.
"""

import math
from array import array
from collections.abc import Sequence

from wgemma.errors import ModelError

NEAR = 256
LEAST_FACTOR = 1e-3  # real ones are 1 or more


def check_factors(factors: Sequence[float]) -> None:
    """Raises `ModelError` for factors of rope_freqs.weight that give no angles."""
    for factor in factors:
        if not LEAST_FACTOR <= factor < math.inf:
            raise ModelError(
                f"rope_freqs.weight contains the factor {factor:g}; it must be at least {LEAST_FACTOR:g}. "
                "The file is damaged."
            )


def table_bytes(pairs: int, context: int) -> int:
    return 8 * pairs * (NEAR + -(-context // NEAR))


def rotary_tables(base: float, head_dim: int, pairs: int, factors: Sequence[float] | None, context: int) -> bytes:
    """[256 + ⌈context / 256⌉, pairs] of (cos, sin) as f32."""
    frequencies = []
    for pair in range(pairs):
        exact = base ** (-2 * pair / head_dim) / (factors[pair] if factors else 1.0)
        frequencies.append(array("f", [exact])[0])  # the reference also rounds here
    steps = [*range(NEAR), *range(0, context, NEAR)]
    angles = [step * frequency for step in steps for frequency in frequencies]
    table = array("f", bytes(8 * len(angles)))
    table[0::2] = array("f", map(math.cos, angles))
    table[1::2] = array("f", map(math.sin, angles))
    return table.tobytes()
