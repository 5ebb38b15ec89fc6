"""Who may import whom: the list in docs/architecture.md, and no circles."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "wgemma"


def layers() -> list[set[str]]:
    """The rooms of docs/architecture.md, from the top down; those on one line are one layer."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    block = text.split("```")[1].split("src/wgemma/\n")[1]
    lines = re.findall(r"^  (\S.*?)(?:   |$)", block, re.MULTILINE)
    return [{name.strip().removesuffix("/").removesuffix(".py") for name in line.split("·")} for line in lines]


def modules() -> dict[str, Path]:
    files = [path for path in PACKAGE.rglob("*.py") if "pyodide" not in path.parts]
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in files}


def imported(path: Path, known: set[str]) -> set[str]:
    """The modules of wgemma that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in known else node.module for name in whole)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    found = {f"{name}.__init__" if f"{name}.__init__" in known else name for name in found}
    return found & known


def room(module: str) -> str:
    return module.split(".")[1]


def test_rooms_import_only_from_rooms_above_them() -> None:
    known = modules()
    order = {name: i for i, layer in enumerate(layers()) for name in layer}
    assert {room(module) for module in known} <= order.keys(), "a room is missing in docs/architecture.md"
    wrong = [
        f"{module} imports {other}"
        for module, path in known.items()
        for other in sorted(imported(path, set(known)))
        if room(other) != room(module) and order[room(other)] >= order[room(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_in_a_circle() -> None:
    known = modules()
    graph = {module: imported(path, set(known)) - {module} for module, path in known.items()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join((*way, module))
        if module not in done:
            for other in graph[module]:
                visit(other, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())
