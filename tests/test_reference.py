"""docs/reference.md is up to date, and docstrings and signatures name the same options."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wgemma
from wgemma import options

ROOT = Path(__file__).resolve().parent.parent


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools/make_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = tool()
FUNCTIONS = {name: make.tree(inspect.unwrap(getattr(wgemma, name))) for name in make.FUNCTIONS}
METHODS = {method.name: method for method in make.methods_of(wgemma.Model) if not make.is_property(method)}
CALLS = FUNCTIONS | METHODS


def named_options(node: Any) -> set[str]:
    """The options in a signature: keyword-only ones, and those of an unpacked TypedDict."""
    found = {argument.arg for argument in node.args.kwonlyargs}
    if node.args.kwarg is not None:
        unpacked = ast.unparse(node.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
        found |= getattr(options, unpacked).__optional_keys__
    return found


def told_options(node: Any) -> list[str]:
    return [name for names, _ in make.options_in(make.docstring(node)) for name in names]


def arguments(node: Any) -> set[str]:
    return {argument.arg for argument in node.args.args} - {"self", "cls"}


def test_the_reference_is_up_to_date() -> None:
    written = make.TARGET.read_text("utf-8")
    assert written == make.reference(), "run: python tools/make_reference.py"


def test_every_public_name_is_in_the_reference() -> None:
    headings = set(re.findall(r"^## (\S+)$|^[-`] ?`?(?:async )?(wgemma\.\w+)", make.reference(), re.MULTILINE))
    named = {name for pair in headings for name in pair}
    assert {f"wgemma.{name}" for name in wgemma.__all__ if name != "__version__"} <= named


@pytest.mark.parametrize("name", CALLS)
def test_docstrings_and_signatures_name_the_same_options(name: str) -> None:
    node = CALLS[name]
    if make.is_twin(node):
        other = CALLS[re.match(r"`(\w+)`", make.docstring(node))[1]]  # type: ignore[index]
        assert arguments(node) | named_options(node) == arguments(other) | named_options(other)
        return
    told = told_options(node)
    assert sorted(told) == sorted(named_options(node))
    words = set(re.findall(r"\w+", make.docstring(node)))
    assert arguments(node) <= words


@pytest.mark.parametrize("cls", [wgemma.Gguf, wgemma.Tokenizer, wgemma.Answer, wgemma.AsyncAnswer])
def test_docstrings_name_every_argument(cls: type) -> None:
    for method in make.methods_of(cls):
        words = set(re.findall(r"\w+", make.docstring(method)))
        assert arguments(method) <= words or make.is_twin(method), method.name


def test_the_readme_leads_to_the_reference() -> None:
    assert "(docs/reference.md)" in (ROOT / "README.md").read_text("utf-8")
