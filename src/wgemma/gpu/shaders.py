"""The small template language of the .wgsl files, and parsing of their bindings and uniforms.

    {{NAME}}                         a hole, filled with a constant
    //#include NAME                  the text of kernels/NAME.wgsl, holes and all
    //#if NAME … //#else … //#endif  lines kept when the constant is true (or false: //#if !NAME)
    //#for i in N … //#endfor        lines repeated with {{i}} = 0, 1, … below N, a number or a constant: arrays
                                     would not stay in registers

That is all: shaders stay readable, and most are plain WGSL. Browsers require `enable` directives for extensions and
naga rejects some of them, so the files have none; `enabled` adds them.
"""

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

Values: TypeAlias = Mapping[str, float]  # a uniform's fields by name

_HOLE = re.compile(r"\{\{(\w+)\}\}")
_DIRECTIVE = re.compile(r"\s*//#(include|if|else|endif|for|endfor)\b\s*(.*?)\s*$")
_LOOP = re.compile(r"(\w+) in (\w+)")
_EXTENSIONS = {"f16": re.compile(r"\bf16\b"), "subgroups": re.compile(r"\bsubgroup[A-Z]|\bsubgroup_")}
_COMMENT = re.compile(r"//.*")
_UNIFORM = re.compile(r"var<uniform> \w+: (\w+);")
_FIELD = re.compile(r"(\w+)\s*:\s*([\w<>]+)")
_FORMATS = {"u32": "I", "i32": "i", "f32": "f"}  # all four bytes, aligned to four, so there is no padding
_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<(uniform|storage)(?:, (read_write|read))?> (\w+)")


@dataclass(frozen=True, slots=True)
class BindingDeclaration:
    """One `var<…>` of a shader: `access` is uniform, read or read_write."""

    index: int
    name: str
    access: str


class Uniform:
    """A shader's uniform: its fields and their layout. A shader without one has no fields."""

    __slots__ = ("_floats", "_names", "_struct", "fields", "kernel")

    def __init__(self, kernel: str, fields: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.fields = dict(fields)  # types by name, in order
        self._names = tuple(fields)
        self._floats = tuple(at for at, kind in enumerate(fields.values()) if kind == "f32")
        self._struct = struct.Struct("<" + "".join(_FORMATS[kind] for kind in fields.values()))

    def pack(self, values: Values) -> bytes:
        """The uniform's bytes. Every field needs a value: a float for f32, else an int, or a bool for 0 or 1. Raises
        `ValueError`, naming the field, if one is missing, unknown, of the wrong type or out of range."""
        try:
            numbers = [values[name] for name in self._names]
            good = len(values) == len(numbers)
            for at in self._floats:
                good = good and isinstance(numbers[at], float)
            if good:
                return self._struct.pack(*numbers)
        except (KeyError, struct.error, OverflowError):
            pass
        raise ValueError(f"{self.kernel}: {self._complaint(values)}")

    def _complaint(self, values: Values) -> str:
        """What is wrong with these values."""
        if missing := self.fields.keys() - values.keys():
            return f"no value for {', '.join(sorted(missing))}"
        if unknown := values.keys() - self.fields.keys():
            return f"Params has no field {', '.join(sorted(unknown))}"
        for name, kind in self.fields.items():
            value = values[name]
            if isinstance(value, float) != (kind == "f32"):
                return f"{name} is {kind}, and {value!r} is not"
            try:
                struct.pack(f"<{_FORMATS[kind]}", value)
            except (struct.error, OverflowError):
                return f"{name} is {kind}, and {value!r} is out of range"
        raise AssertionError("nothing is wrong")


def load_shader(name: str, constants: Mapping[str, Any]) -> str:
    """The WGSL of `kernels/NAME.wgsl` with all directives expanded and all holes filled."""
    return "\n".join(_expand(name, _source(name), constants))


def declarations(code: str) -> list[BindingDeclaration]:
    """The bindings a shader declares."""
    return [BindingDeclaration(int(i), name, access or kind) for i, kind, access, name in _BINDING.findall(code)]


def uniform(kernel: str, code: str) -> Uniform:
    """The uniform a shader declares, parsed from its struct."""
    declared = _UNIFORM.search(code)
    if declared is None:
        return Uniform(kernel, {})
    body = re.search(rf"^struct {declared[1]} \{{$(.*?)^\}}", code, re.DOTALL | re.MULTILINE)
    if body is None:
        raise ValueError(f"{kernel} has a uniform of type {declared[1]}, but no struct {declared[1]}.")
    lines = _COMMENT.sub("", body[1])
    fields: dict[str, str] = {}
    for field in filter(None, (part.strip() for part in lines.split(","))):
        parts = _FIELD.fullmatch(field)
        if parts is None or parts[2] not in _FORMATS:
            raise ValueError(f"{kernel}: a field of {declared[1]} must be u32, i32 or f32, not {field!r}.")
        fields[parts[1]] = parts[2]
    return Uniform(kernel, fields)


def enabled(code: str, known: Collection[str] = tuple(_EXTENSIONS)) -> str:
    """The `enable` directives this code needs, out of those the compiler knows; a browser knows all."""
    bare = _COMMENT.sub("", code)
    return "".join(f"enable {name};\n" for name in known if _EXTENSIONS[name].search(bare))


@cache
def _source(name: str) -> tuple[str, ...]:
    return tuple((files("wgemma.kernels") / f"{name}.wgsl").read_text("utf-8").splitlines())


def _expand(name: str, lines: Sequence[str], constants: Mapping[str, Any]) -> Iterator[str]:
    keep = [True]
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        directive = _DIRECTIVE.match(line)
        if directive is None:
            if keep[-1]:
                yield _fill(line, constants)
            continue
        verb, words = directive.groups()
        if verb == "if":
            holds = bool(constants.get(words.removeprefix("!"), False)) != words.startswith("!")
            keep.append(keep[-1] and holds)
        elif verb == "else":
            keep[-1] = keep[-2] and not keep[-1]
        elif verb == "endif":
            keep.pop()
        elif verb == "for":
            end = _end_of_loop(name, lines, at)
            if keep[-1]:
                yield from _repeat(name, words, lines[at:end], constants)
            at = end + 1
        elif keep[-1]:
            included = _fill(words, constants)
            yield from _expand(included, _source(included), constants)
    if len(keep) != 1:
        raise ValueError(f"kernels/{name}.wgsl: an //#if is not closed")


def _fill(text: str, constants: Mapping[str, Any]) -> str:
    def fill(hole: re.Match[str]) -> str:
        value = constants[hole[1]]
        return ("true" if value else "false") if isinstance(value, bool) else str(value)

    return _HOLE.sub(fill, text)


def _repeat(name: str, words: str, body: Sequence[str], constants: Mapping[str, Any]) -> Iterator[str]:
    loop = _LOOP.fullmatch(words)
    if loop is None:
        raise ValueError(f"kernels/{name}.wgsl: //#for wants `i in N`, not {words!r}")
    variable, count = loop.groups()
    for i in range(int(count) if count.isdigit() else constants[count]):
        yield from _expand(name, body, {**constants, variable: i})


def _end_of_loop(name: str, lines: Sequence[str], at: int) -> int:
    """The line of the //#endfor of the loop whose body begins at `at`."""
    depth = 1
    for i in range(at, len(lines)):
        directive = _DIRECTIVE.match(lines[i])
        verb = directive[1] if directive else ""
        depth += (verb == "for") - (verb == "endfor")
        if depth == 0:
            return i
    raise ValueError(f"kernels/{name}.wgsl: a //#for is not closed")
