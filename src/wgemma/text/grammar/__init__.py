"""What an answer may look like: JSON Schema, patterns, choices, GBNF and tool calls as one kind of automaton."""

from wgemma.text.grammar.automaton import Grammar, State
from wgemma.text.grammar.choices import compile_choice, compile_regex
from wgemma.text.grammar.gbnf import compile_gbnf
from wgemma.text.grammar.schema import compile_json, compile_schema
from wgemma.text.grammar.tokens import TokenIndex
from wgemma.text.grammar.tools import compile_tools

__all__ = [
    "Grammar",
    "State",
    "TokenIndex",
    "compile_choice",
    "compile_gbnf",
    "compile_json",
    "compile_regex",
    "compile_schema",
    "compile_tools",
]
