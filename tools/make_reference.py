"""Writes docs/reference.md: every public name, with its signature, its docstring and its fields.

    python tools/make_reference.py

Everything is read from the source as it is written there, so the result does not depend on Python's version.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import wgemma
from wgemma.engine.opening import Plan
from wgemma.files.sounds import Sound
from wgemma.train.finetune import TrainingResult
from wgemma.train.settings import TrainingSettings
from wgemma.train.trainer import Progress

TARGET = Path(__file__).resolve().parent.parent / "docs/reference.md"
FUNCTIONS = ("load", "aload", "render")
FIRST = (
    "Model",
    "Conversation",
    "Answer",
    "AsyncAnswer",
    "Answers",
    "AsyncAnswers",
    "WholeAnswer",
    "ToolRun",
    "AsyncToolRun",
    "Part",
    "Piece",
    "Usage",
    "PromptProgress",
    "TokenLogprob",
    "ToolCall",
    "ToolStep",
    "Sampling",
)
BESIDES = (TrainingSettings, TrainingResult, Progress, Plan, Sound)  # what calls take or give, outside of __all__

Function = ast.FunctionDef | ast.AsyncFunctionDef


def reference() -> str:
    """The whole file."""
    lines = ["# Reference", "", "Made by `tools/make_reference.py` from the docstrings.", ""]
    for name in FUNCTIONS:
        lines += function(tree(inspect.unwrap(getattr(wgemma, name))), f"wgemma.{name}")
    for name, cls in classes().items():
        lines += described(name, cls)
    lines += ["## Errors", ""]
    for error in sorted(errors(), key=lambda error: len(error.__mro__)):
        lines += [f"- `wgemma.{error.__name__}`: {' '.join(docstring(error).split())}"]
    return "\n".join(lines) + "\n"


def errors() -> list[type]:
    return [found for name in wgemma.__all__ if (found := getattr(wgemma, name)) and is_error(found)]


def is_error(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, wgemma.Error)


def classes() -> dict[str, type]:
    """All classes but the errors, by their public names."""
    public = [name for name in wgemma.__all__ if isinstance(getattr(wgemma, name), type)]
    names = [*FIRST, *(name for name in public if name not in FIRST and not is_error(getattr(wgemma, name)))]
    besides = {f"{cls.__module__}.{cls.__name__}": cls for cls in BESIDES}
    return {f"wgemma.{name}": getattr(wgemma, name) for name in names} | besides


def described(name: str, cls: type) -> Iterator[str]:
    """A class: its docstring, its fields, and its methods with those it inherits; of plain data, no methods."""
    yield from (f"## {name}", "", *text(cls), "")
    fields = list(fields_of(cls))
    if fields:
        yield from ("```python", *fields, "```", "")
    methods = list(methods_of(cls))
    for method in filter(is_property, methods):
        yield f"- `{method.name}: {annotation(method.returns)}`: {' '.join(docstring(method).split())}"
    if any(map(is_property, methods)):
        yield ""
    for method in methods:
        if not is_property(method) and not is_dataclass(cls):
            yield from function(method)


def function(node: Function, name: str = "") -> list[str]:
    """A function or method; the twin of another one gets no heading."""
    given = ast.unparse(node.args) if name else ast.unparse(node.args).partition(",")[2].strip()  # without self
    returns = annotation(node.returns)
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    called = f"{begin}{name or node.name}({_plain(given)}){'' if returns == 'None' else f' -> {returns}'}"
    if is_twin(node):
        return [f"`{called}`: {' '.join(docstring(node).split())}", ""]
    level = "##" if name else "###"
    return [f"{level} {name or node.name}", "", "```python", called, "```", "", *text(node), ""]


def is_twin(node: Function) -> bool:
    """Whether it does the same as another one, for other callers."""
    return re.match(r"`\w+`, for code", docstring(node)) is not None


def text(item: Any) -> list[str]:
    """The docstring as Markdown: the options become a list."""
    doc = docstring(item)
    options = [f"- {_named(names)}: {meaning}" for names, meaning in options_in(doc)]
    return [*doc.partition("Options:\n")[0].rstrip("\n").split("\n"), *([""] if options else []), *options]


def options_in(doc: str) -> list[tuple[list[str], str]]:
    """The entries of a docstring's list of options: (names, meaning)."""
    entries: list[str] = []
    for line in doc.partition("Options:\n")[2].split("\n"):
        if line.startswith("     "):  # goes on
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line.strip())
    split = [entry.partition(": ") for entry in entries]
    return [(names.split(", "), meaning) for names, _, meaning in split]


def _named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def docstring(item: Any) -> str:
    found = ast.get_docstring(tree(item) if inspect.isclass(item) else item)
    if not found:
        raise SystemExit(f"{getattr(item, 'name', item)} has no docstring.")
    return found


# -- reading the source


def tree(item: Any) -> Any:
    """The definition of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]


def fields_of(cls: type) -> Iterator[str]:
    """The annotated public fields, inherited ones first, as they are written, with their comments."""
    source, definition = textwrap.dedent(inspect.getsource(cls)).split("\n"), tree(cls)
    for base in definition.bases:  # a TypedDict forgets its bases
        inherited = getattr(sys.modules[cls.__module__], ast.unparse(base), None)
        if isinstance(inherited, type) and inherited.__module__.startswith("wgemma"):
            yield from fields_of(inherited)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            yield from textwrap.dedent("\n".join(source[node.lineno - 1 : node.end_lineno])).split("\n")


def methods_of(cls: type) -> Iterator[Function]:
    """The public methods and properties, the class's own first."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("wgemma"):
            continue
        for node in tree(owner).body:
            public = isinstance(node, Function) and not node.name.startswith("_") and node.name not in seen
            if public:
                seen.add(node.name)
                yield node


def decorators(node: Function) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def is_property(node: Function) -> bool:
    return "property" in decorators(node)


def annotation(node: ast.expr | None) -> str:
    return "None" if node is None else _plain(ast.unparse(node))


def _plain(code: str) -> str:
    """Without quotes around the names of types, and with spaces around defaults."""
    code = re.sub(r"(?<=: )'([^']+)'|^'([^']+)'$", lambda found: found[1] or found[2], code)
    return re.sub(r"(?<=\S)=(?=\S)", " = ", code)


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    print(f"wrote {TARGET}")
