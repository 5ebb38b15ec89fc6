"""Looks C types up instead of parsing them, and checks the structs we fill by hand.

wgpu names C types in strings (`WGPUBufferDescriptor *`). cffi runs a full C parser over each new one, preceded by every
name in wgpu's header: 20 ms, forty times before a model answers. Nearly all are a declared name followed by at most a
star or brackets, and need no parser.
"""

import re
from collections.abc import Callable
from typing import Any

from wgemma.errors import DeviceError

WGPU = "0.32"  # the wgpu whose C structs raw.py fills

# Those structs: their size in pointers, and their fields in order.
STRUCTS = {
    "WGPUChainedStruct": (2, ("next", "sType")),
    "WGPUStringView": (2, ("data", "length")),
    "WGPUShaderSourceWGSL": (4, ("chain", "code")),
    "WGPUShaderModuleDescriptor": (3, ("nextInChain", "label")),
    "WGPUBufferMapCallbackInfo": (5, ("nextInChain", "mode", "callback", "userdata1", "userdata2")),
}
_PLAIN = re.compile(r"(\w+) ?(\*|\[(\d*)\])? ?")


def check_structs(ffi: Any, version: str) -> None:
    """Raises `DeviceError` if a struct that we fill is not what it was in the wgpu we know: C would read past it, or
    take one field for another."""
    for name, (pointers, fields) in STRUCTS.items():
        try:
            declared = ffi.typeof(name)
            same = ffi.sizeof(declared) == pointers * ffi.sizeof("void *")
            same = same and tuple(field for field, _ in declared.fields) == fields
        except Exception:  # it is not there at all, or not a struct
            same = False
        if not same:
            raise DeviceError(
                f"wgpu {version} declares {name} differently from wgpu {WGPU}, which wgemma needs. "
                f"Install it with `pip install 'wgpu=={WGPU}.*'`."
            )


def look_up_types(ffi: Any) -> None:
    """Makes `ffi` look plain types up. It still parses the rest, and everything if cffi's internals have changed."""
    parser: Any = getattr(ffi, "_parser", None)
    if hasattr(parser, "_declarations") and hasattr(parser, "parse_type"):
        parser.parse_type = looking_up(parser, parser.parse_type)


def looking_up(parser: Any, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    from cffi import model

    def parse_type(text: str) -> Any:
        plain = _PLAIN.fullmatch(text)
        declared = parser._declarations.get(f"typedef {plain[1]}") if plain else None
        if plain is None or declared is None:
            return parse(text)
        kind, qualifiers = declared
        if plain[2] is None:
            return kind
        if plain[2] == "*":
            return model.PointerType(kind, qualifiers)
        return model.ArrayType(kind, int(plain[3]) if plain[3] else None)

    return parse_type
