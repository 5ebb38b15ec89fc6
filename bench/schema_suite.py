"""JSON Schema's official tests, keyword by keyword: `python bench/schema_suite.py FOLDER [--list]`.

FOLDER holds the tests of a draft, such as `json/tests/draft2020-12` in the source of PyPI's `jsonschema`. Each schema
either compiles or is refused. Instances are written as `json.dumps` does, with keys in an order that the grammar takes.
A valid one that is rejected, or an invalid one that is accepted although nothing is listed as unchecked, is wrong;
`--list` names those, and the sentences of refusals.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from grammar_texts import Speller
from wgemma.errors import GrammarError
from wgemma.text.grammar import compile_schema

COLUMNS = (
    "schemas",
    "compiled",
    "valid accepted",
    "valid rejected",
    "invalid rejected",
    "invalid accepted",
    "unchecked",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help="name what is refused or wrong")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    if not files:
        parser.error(f"{options.folder} has no tests.")
    total: Counter[str] = Counter()
    print("| keyword | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    remarks: list[str] = []
    for file in files:
        counts: Counter[str] = Counter()
        for case in json.loads(file.read_text("utf-8")):
            _try(case, counts, remarks, file.stem)
        print(_row(f"`{file.stem}`", counts))
        total += counts
    print(_row("all", total))
    if options.list:
        print(*remarks, sep="\n")


def _try(case: dict[str, object], counts: Counter[str], remarks: list[str], keyword: str) -> None:
    """Compiles a schema of the suite and follows its instances."""
    counts["schemas"] += 1
    schema, tests = case["schema"], case["tests"]
    assert isinstance(schema, dict | bool) and isinstance(tests, list)
    try:
        grammar = compile_schema(schema)
    except GrammarError as problem:
        remarks.append(f"{keyword}: {case['description']}: {problem}")
        return
    counts["compiled"] += 1
    speller = Speller(grammar, schema)
    for test in tests:
        accepted = speller.accepts(test["data"])
        valid = "valid" if test["valid"] else "invalid"
        if accepted and not test["valid"] and grammar.unchecked:
            counts["unchecked"] += 1
            continue
        counts[f"{valid} {'accepted' if accepted else 'rejected'}"] += 1
        if accepted != test["valid"]:
            remarks.append(f"{keyword}: {case['description']}: {test['description']}: {valid}, and not taken so")


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counts[column] or "") for column in COLUMNS) + " |"


if __name__ == "__main__":
    main()
