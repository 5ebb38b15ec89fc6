"""Types that are looked up are those cffi's parser would have given."""

import pytest
from wgpu.backends.wgpu_native import ffi

from wgemma.gpu.c_types import look_up_types, looking_up

NAMES = ("WGPUBufferDescriptor", "WGPUBindGroupEntry", "WGPUCommandBuffer", "WGPUBufferMapCallback", "WGPUFeatureName")


class Refused(Exception):
    pass


def refuse(text: str) -> None:
    raise Refused(text)


@pytest.mark.parametrize("form", ["{}", "{} *", "{}[]", "{}[1]", "{} * "])
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_type_is_the_one_the_parser_gives(name: str, form: str) -> None:
    text, parser = form.format(name), ffi._parser
    parsed = type(parser).parse_type(parser, text)
    assert looking_up(parser, refuse)(text) == parsed


@pytest.mark.parametrize(
    "text", ["void(WGPUDevice const *, void *)", "uint8_t *", "WGPUDevice const *", "WGPUNothing *"]
)
def test_anything_else_is_parsed(text: str) -> None:
    with pytest.raises(Refused):
        looking_up(ffi._parser, refuse)(text)


def test_where_cffi_looks_different_inside_nothing_changes() -> None:
    class Other:
        class _parser:
            parse_type = refuse

    look_up_types(Other)
    assert Other._parser.parse_type is refuse
