"""Schemas people use, with instances: the sample of MaskBench among the shared fixtures."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from grammar_texts import Speller
from wgemma import GrammarError
from wgemma.text.grammar import compile_schema

# Why schemas are refused. Each sentence starts with the place.
REASONS = ("cannot be enforced", "combinations; simplify it", "is too hard to find")


@dataclass
class Outcome:
    schemas: int = 0
    accepted: int = 0
    rejected: int = 0
    refused: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  # invalid, but only by what the grammar says it does not check
    wrong: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def outcome(shared: Path) -> Outcome:
    result = Outcome()
    for line in (shared / "schemas" / "maskbench-sample.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        result.schemas += 1
        try:
            grammar = compile_schema(row["schema"])
        except GrammarError as problem:
            result.refused.append(str(problem))
            continue
        escaped, plain = (Speller(grammar, row["schema"], ensure_ascii) for ensure_ascii in (True, False))
        for test in row["tests"]:
            accepted = escaped.accepts(test["data"])
            if "\\u" in json.dumps(test["data"]):
                assert plain.accepts(test["data"]) == accepted
            if accepted == test["valid"]:
                result.accepted += accepted
                result.rejected += not accepted
            elif accepted and grammar.unchecked:
                result.unchecked.append(row["name"])
            else:
                result.wrong.append((row["name"], test))
    return result


def test_nearly_all_compile_and_the_rest_says_why(outcome: Outcome) -> None:
    assert outcome.schemas == 426
    assert len(outcome.refused) <= 17
    for sentence in outcome.refused:
        assert sentence.startswith("#")
        assert any(reason in sentence for reason in REASONS), sentence


def test_valid_instances_are_accepted_and_invalid_ones_are_not(outcome: Outcome) -> None:
    assert outcome.wrong == []
    assert (outcome.accepted, outcome.rejected) >= (461, 690)


def test_few_invalid_ones_slip_through_and_the_grammar_says_so(outcome: Outcome) -> None:
    assert set(outcome.unchecked) <= {
        "JsonSchemaStore---chutzpah",  # an unknown format
        "JsonSchemaStore---aiproj-1.1",  # uniqueItems
        "JsonSchemaStore---madness",  # uniqueItems
    }
