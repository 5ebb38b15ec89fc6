"""The block sizes match the `gguf` package."""

import gguf
import pytest

from wgemma.files.quants import BLOCK_FORMATS, BY_ID, BY_NAME, UNSUPPORTED, BlockFormat
from wgemma.model.planes import PLANES


@pytest.mark.parametrize("block", BLOCK_FORMATS, ids=lambda block: block.name)
def test_block_sizes_equal_those_of_the_gguf_package(block: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType[block.name]
    assert (kind.value, gguf.GGML_QUANT_SIZES[kind]) == (block.id, (block.elements, block.nbytes))


def test_every_type_of_ggml_is_read_or_can_be_named_in_a_refusal() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert kind.value in BY_ID or UNSUPPORTED[kind.value][0] == kind.name


def test_a_refusal_names_a_type_that_works() -> None:
    assert {instead for _, instead in UNSUPPORTED.values()} <= PLANES.keys()


def test_no_id_or_name_is_there_twice() -> None:
    assert len(BY_ID) == len(BY_NAME) == len(BLOCK_FORMATS)
    assert not BY_ID.keys() & UNSUPPORTED.keys()


def test_a_row_fills_whole_blocks() -> None:
    assert BY_NAME["Q4_K"].row_nbytes(512) == 288
    with pytest.raises(ValueError, match="multiples of 256, not 300"):
        BY_NAME["Q4_K"].row_nbytes(300)
