"""The template language of the .wgsl files, and what WGSL compilers stricter than ours would say to them."""

import re
import struct
from collections.abc import Iterator
from importlib.resources import files

import pytest

from wgemma.gpu import shaders
from wgemma.gpu.shaders import BindingDeclaration, Uniform, declarations, enabled, load_shader, uniform

KERNELS = {
    file.name.removesuffix(".wgsl"): file.read_text("utf-8")
    for file in files("wgemma.kernels").iterdir()
    if file.name.endswith(".wgsl")
}


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Shaders by name, in place of those of the package."""
    made: dict[str, str] = {}
    monkeypatch.setattr(shaders, "_source", lambda name: tuple(made[name].splitlines()))
    return made


def test_holes_are_filled_wherever_they_stand(texts: dict[str, str]) -> None:
    texts["a"] = "// {{N}} rows\nconst n = {{N}}u; const t = {{TYPE}}; {{N}}"
    assert load_shader("a", {"N": 4, "TYPE": "u32"}) == "// 4 rows\nconst n = 4u; const t = u32; 4"


def test_booleans_become_wgsl_s_own(texts: dict[str, str]) -> None:
    texts["a"] = "{{YES}} {{NO}} {{ONE}}"
    assert load_shader("a", {"YES": True, "NO": False, "ONE": 1}) == "true false 1"


def test_a_hole_without_a_constant_is_an_error(texts: dict[str, str]) -> None:
    texts["a"] = "const n = {{N}};"
    with pytest.raises(KeyError, match="N"):
        load_shader("a", {"M": 1})


def test_a_hole_in_lines_left_out_needs_no_constant(texts: dict[str, str]) -> None:
    texts["a"] = "//#if USED\n{{N}}\n//#endif\nend"
    assert load_shader("a", {}) == "end"


def test_includes_bring_text_with_its_own_directives(texts: dict[str, str]) -> None:
    texts["a"] = "one\n//#include b\nfour"
    texts["b"] = "two {{N}}\n//#if DEEP\n//#include c\n//#endif"
    texts["c"] = "three"
    assert load_shader("a", {"N": 2, "DEEP": True}).split("\n") == ["one", "two 2", "three", "four"]
    assert load_shader("a", {"N": 2}).split("\n") == ["one", "two 2", "four"]


def test_loops_repeat_their_lines_within_each_other(texts: dict[str, str]) -> None:
    texts["a"] = "//#for i in N\n//#for j in 2\ns{{i}}{{j}}\n//#endfor\n//#include b\n//#endfor\nend"
    texts["b"] = "//#if LAST\nt{{i}}\n//#endif"
    assert load_shader("a", {"N": 2, "LAST": True}).split("\n") == ["s00", "s01", "t0", "s10", "s11", "t1", "end"]
    assert load_shader("a", {"N": 0}) == "end"


@pytest.mark.parametrize(
    ("text", "error"),
    [("//#for i in 2\nx", "is not closed"), ("//#for 2\n//#endfor", "wants"), ("//#if A\nx", "is not closed")],
)
def test_a_directive_that_is_not_whole_is_an_error(texts: dict[str, str], text: str, error: str) -> None:
    texts["a"] = text
    with pytest.raises(ValueError, match=error):
        load_shader("a", {})


def test_a_loop_in_lines_left_out_is_not_carried_out(texts: dict[str, str]) -> None:
    texts["a"] = "//#if NEVER\n//#for i in N\n{{M}}\n//#endfor\n//#endif\nend"
    assert load_shader("a", {}) == "end"


def test_a_compiler_is_told_of_the_extensions_it_knows() -> None:
    code = "var a: vec4<f16>; // subgroups\nlet b = subgroupAdd(c);"
    assert enabled(code) == "enable f16;\nenable subgroups;\n"
    assert enabled(code, ("f16",)) == "enable f16;\n"
    assert enabled("// f16\nlet a = unpack2x16float(b);") == ""


def test_the_name_of_an_include_may_have_holes(texts: dict[str, str]) -> None:
    texts["a"] = "//#include block_{{TYPE}}"
    texts["block_q4_0"] = "nibbles"
    assert load_shader("a", {"TYPE": "q4_0"}) == "nibbles"


def test_an_include_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        load_shader("no_such_kernel", {})


def test_an_include_in_lines_left_out_is_not_looked_for(texts: dict[str, str]) -> None:
    texts["a"] = "//#if NEVER\n//#include nothing\n//#endif\nend"
    assert load_shader("a", {}) == "end"


@pytest.mark.parametrize(
    ("constants", "kept"),
    [
        ({"A": True, "B": True}, "a ab z"),
        ({"A": True, "B": False}, "a a-not-b z"),
        ({"A": False, "B": True}, "not-a not-a-b z"),
        ({"A": False}, "not-a z"),
    ],
)
def test_conditions_nest(texts: dict[str, str], constants: dict[str, bool], kept: str) -> None:
    texts["a"] = """//#if A
a
//#if B
ab
//#else
a-not-b
//#endif
//#else
not-a
  //#if B
not-a-b
  //#endif
//#endif
z"""
    assert load_shader("a", constants).split() == kept.split()


@pytest.mark.parametrize(("value", "kept"), [(True, "no"), (False, "yes"), (None, "yes")])
def test_a_condition_can_be_turned_round(texts: dict[str, str], value: bool | None, kept: str) -> None:
    texts["a"] = "//#if !FLAG\nyes\n//#else\nno\n//#endif"
    assert load_shader("a", {} if value is None else {"FLAG": value}) == kept


def test_a_condition_left_open_is_an_error(texts: dict[str, str]) -> None:
    texts["a"] = "//#if A\nx"
    with pytest.raises(ValueError, match=r"kernels/a\.wgsl"):
        load_shader("a", {"A": True})


def test_comments_that_are_no_directives_stay(texts: dict[str, str]) -> None:
    texts["a"] = "// #if A\n//#iffy\nx //#endif"
    assert load_shader("a", {}) == texts["a"]


def test_declarations_say_index_name_and_access() -> None:
    code = """
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> y: array<atomic<u32>>;
var<workgroup> scratch: array<f32, 4>;
"""
    assert declarations(code) == [
        BindingDeclaration(0, "params", "uniform"),
        BindingDeclaration(3, "x", "read"),
        BindingDeclaration(7, "y", "read_write"),
    ]


def test_a_uniform_is_read_from_its_struct() -> None:
    code = """struct Row {
  used: u32,
}
struct Params {
  blocks: u32,  // K / 32, not: f32
  eps: f32,
  first: u32, shift: i32,
  last: f32
}
@group(0) @binding(0) var<uniform> params: Params;
"""
    found = uniform("a", code)
    assert found.fields == {"blocks": "u32", "eps": "f32", "first": "u32", "shift": "i32", "last": "f32"}
    assert list(found.fields) == ["blocks", "eps", "first", "shift", "last"]
    assert uniform("a", "@group(0) @binding(0) var<storage, read> x: array<f32>;").fields == {}


def test_a_uniform_lies_as_wgsl_lays_out_its_struct() -> None:
    found = Uniform("a", {"count": "u32", "eps": "f32", "shift": "i32", "flag": "u32"})
    values = {"flag": True, "shift": -3, "count": 0xFFFFFFFF, "eps": 0.5}
    assert found.pack(values) == struct.pack("<ifii", -1, 0.5, -3, 1) == found.pack(dict(reversed(values.items())))


def test_a_uniform_takes_what_python_calls_an_integer_or_a_float() -> None:
    np = pytest.importorskip("numpy")
    found = Uniform("a", {"count": "u32", "eps": "f32"})
    assert found.pack({"count": np.int64(3), "eps": np.float64(0.25)}) == struct.pack("<If", 3, 0.25)
    assert found.pack({"count": 3, "eps": float("inf")}) == struct.pack("<If", 3, float("inf"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("var<uniform> params: Params;", "no struct Params"),
        ("struct Params {\n  at: vec2<u32>,\n}\nvar<uniform> params: Params;", r"not 'at: vec2<u32>'"),
        ("struct Params {\n  half: f16,\n}\nvar<uniform> params: Params;", "not 'half: f16'"),
    ],
)
def test_a_uniform_that_cannot_be_read_is_an_error(code: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        uniform("a", code)


# -- the kernels themselves


def variants(name: str) -> Iterator[str]:
    """A kernel without any of its conditions, with each of them, and with all."""
    texts, todo = dict[str, str](), [name]
    while todo:
        one = todo.pop()
        for filled in (one.replace("{{TYPE}}", kind).replace("{{MADE}}", "residual") for kind in ("f32", "q4_0")):
            if filled not in texts and filled in KERNELS:
                texts[filled] = KERNELS[filled]
                todo += re.findall(r"//#include (\S+)", KERNELS[filled])
    text = "\n".join(texts.values())
    flags = sorted(set(re.findall(r"//#if !?(\w+)", text)) - {"MADE"})
    holes = re.findall(r"\{\{([A-Z_0-9]+)\}\}", text) + re.findall(r"//#for \w+ in ([A-Z_]+)", text)
    constants = {hole: 2 for hole in holes if hole not in flags} | {"TYPE": "q4_0", "MADE": "residual"}
    for chosen in ([], *([flag] for flag in flags), flags):
        yield load_shader(name, constants | dict.fromkeys(chosen, True))


@pytest.mark.parametrize("name", [name for name, text in KERNELS.items() if "@compute" in text])
def test_every_uniform_can_be_read(name: str) -> None:
    for code in variants(name):
        assert bool(uniform(name, code).fields) == ("var<uniform>" in code)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_opens_with_what_it_computes(name: str) -> None:
    header = KERNELS[name].split("\n\n")[0]
    assert all(line.startswith("//") for line in header.splitlines())
    assert len(header) > 40
    assert "Grid: (" in header or "@compute" not in KERNELS[name]


@pytest.mark.parametrize("name", KERNELS)
def test_every_binding_of_a_kernel_is_found(name: str) -> None:
    assert len(declarations(KERNELS[name])) == KERNELS[name].count("@binding(")


COMPARISON = r"[<>!=]=|(?<![<>])[<>](?![<>])"
BITWISE = r"(?<!&)&(?!&)|(?<!\|)\|(?!\|)|\^"
ARITHMETIC = r"(?<=\w) [-+*/%]"


def expressions(code: str) -> list[str]:
    """The expressions of a shader, every one in parentheses or brackets replaced by a name in the one around it."""
    code = re.sub(r"//.*", "", code)
    code = re.sub(r"\{\{\w+\}\}", "hole", code)
    code = re.sub(r"\b(vec[234]|array|atomic|bitcast|var)<(?:[\w, ]|<\w+>)*>", "type", code)
    found = []
    while innermost := re.search(r"[(\[]([^()\[\]]*)[)\]]", code):
        found.append(innermost[1])
        code = code[: innermost.start()] + "inner" + code[innermost.end() :]
    return re.split(r"[;{},]|(?<![=<>!])=(?!=)", ";".join([*found, code]))


def mixes(expression: str) -> bool:
    """WGSL (and Tint, but not naga) wants parentheses here: a shift takes unary operands; &, | and ^ take unary ones or
    their own kind, and are not compared; && and || do not meet."""
    if len(set(re.findall(r"&&|\|\|", expression))) > 1:
        return True
    for clause in re.split(r"&&|\|\|", expression):
        bitwise = re.findall(BITWISE, clause)
        if bitwise and (len(set(bitwise)) > 1 or re.search(rf"{COMPARISON}|{ARITHMETIC}|<<|>>", clause)):
            return True
        for side in re.split(COMPARISON, clause):
            shifts = re.findall("<<|>>", side)
            if len(shifts) > 1 or (shifts and re.search(ARITHMETIC, side)):
                return True
    return False


@pytest.mark.parametrize("name", KERNELS)
def test_no_expression_mixes_operators_that_wgsl_keeps_apart(name: str) -> None:
    assert [expression for expression in expressions(KERNELS[name]) if mixes(expression)] == []


@pytest.mark.parametrize(
    "line",
    ["a << b + 1u", "a & b | c", "a >> 4u & 15u", "a & 1u == 0u", "a * b << 2u", "a || b && c", "x[a << 1u << 2u]"],
)
def test_such_a_mixture_is_found(line: str) -> None:
    assert any(map(mixes, expressions(f"let y = {line};")))


@pytest.mark.parametrize(
    "line",
    ["(a << b) + 1u", "a & b & c", "(a >> 4u) & 15u", "(a & 1u) == 0u", "a << b < c", "a * b + c % d", "a && b && !c"],
)
def test_what_wgsl_allows_is_left_alone(line: str) -> None:
    assert not any(map(mixes, expressions(f"let y = vec4<u32>({line}, &z);")))
