"""Sets of bytes as integers: bit n for byte n."""

from collections.abc import Iterable

BYTES = (1 << 256) - 1
Classes = tuple[int, ...]  # sets that have no byte in common, and together have all


def refined(partitions: Iterable[Classes]) -> Classes:
    """The sets of bytes that none of the partitions takes apart."""
    result: Classes = (BYTES,)
    for partition in dict.fromkeys(partitions):
        if partition != (BYTES,):
            result = tuple(same for old in result for new in partition if (same := old & new))
    return result


def each_apart(mask: int) -> Classes:
    """Every byte of `mask` alone, and all others together."""
    result, rest = [], mask & BYTES
    while rest:
        result.append(rest & -rest)
        rest &= rest - 1
    return (*result, BYTES & ~mask) if BYTES & ~mask else tuple(result)


def lowest(mask: int) -> int:
    """The smallest of a set of symbols."""
    return (mask & -mask).bit_length() - 1
