"""Types that are looked up are those cffi's parser would have given, and structs that we fill are those we know."""

import re
from pathlib import Path

import pytest
import wgpu
from cffi import FFI
from wgpu.backends.wgpu_native import ffi

from wgemma.errors import DeviceError
from wgemma.gpu.c_types import STRUCTS, WGPU, check_structs, look_up_types, looking_up

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


# -- structs that are filled by hand

ROOT = Path(__file__).parent.parent.parent
CHAIN = "typedef struct Chain { struct Chain *next; int sType; } WGPUChainedStruct;"
VIEW = "typedef struct { char *data; size_t length; } WGPUStringView;"
SOURCE = "typedef struct { WGPUChainedStruct chain; WGPUStringView code; } WGPUShaderSourceWGSL;"
MODULE = "typedef struct { WGPUChainedStruct *nextInChain; WGPUStringView label; } WGPUShaderModuleDescriptor;"
INFO = """typedef struct {
  WGPUChainedStruct *nextInChain; int mode; void (*callback)(int); void *userdata1; void *userdata2;
} WGPUBufferMapCallbackInfo;"""
HEADER = "\n".join((CHAIN, VIEW, SOURCE, MODULE, INFO))


def declared(header: str) -> FFI:
    made = FFI()
    made.cdef(header)
    return made


def test_the_structs_of_this_wgpu_are_those_we_fill() -> None:
    check_structs(ffi, wgpu.__version__)
    check_structs(declared(HEADER), WGPU)
    assert wgpu.__version__.startswith(f"{WGPU}.")
    assert re.search(rf'"wgpu>={re.escape(WGPU)},<', (ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_struct_that_is_filled_by_hand_is_checked() -> None:
    text = (ROOT / "src/wgemma/gpu/raw.py").read_text("utf-8")
    assert set(re.findall(r'ffi\.(?:new|cast)\("(WGPU\w+) \*"', text)) <= STRUCTS.keys()


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("WGPUStringView", HEADER.replace("size_t length;", "size_t length; size_t capacity;")),
        ("WGPUStringView", HEADER.replace("char *data; size_t length;", "size_t length; char *data;")),
        ("WGPUBufferMapCallbackInfo", HEADER.replace("userdata2", "userdata3")),
        ("WGPUShaderModuleDescriptor", HEADER.replace(MODULE, "")),
        ("WGPUChainedStruct", HEADER.replace("int sType", "long long sType[2]")),
        ("WGPUBufferMapCallbackInfo", HEADER.replace(INFO, "typedef int WGPUBufferMapCallbackInfo;")),
    ],
)
def test_another_wgpu_is_refused(name: str, header: str) -> None:
    with pytest.raises(
        DeviceError, match=rf"^wgpu 0\.99\.0 declares {name} differently from wgpu 0\.32, .*'wgpu==0\.32"
    ):
        check_structs(declared(header), "0.99.0")
