"""Regular expressions and lists of strings as grammars of the whole answer."""

from collections.abc import Iterable

from wgemma.errors import GrammarError
from wgemma.text.grammar.automaton import Grammar
from wgemma.text.grammar.characters import PlainText
from wgemma.text.grammar.expressions import NOTHING, Pool
from wgemma.text.grammar.pattern_trees import parse_pattern
from wgemma.text.grammar.patterns import PatternWriter

_MAX_BYTES = 10_000_000


def compile_regex(pattern: str) -> Grammar:
    """The grammar of the texts that `pattern` matches from start to end."""
    if not isinstance(pattern, str):
        raise GrammarError("a regular expression must be a string.")
    pool = Pool()
    node = PatternWriter(PlainText(pool)).full(parse_pattern(pattern, python=True))
    if pool.gave_up:
        raise GrammarError(f"the pattern {pattern[:60]!r} is too hard: no text was found that it matches.")
    if node is NOTHING:
        raise GrammarError(f"no text matches the pattern {pattern[:60]!r}.")
    return Grammar(pool, node)


def compile_choice(strings: Iterable[str]) -> Grammar:
    """The grammar of exactly these strings."""
    listed = [*strings] if isinstance(strings, Iterable) else []
    if (
        not isinstance(strings, Iterable)
        or isinstance(strings, str)
        or not all(isinstance(text, str) for text in listed)
    ):
        raise GrammarError('a choice must be a list of strings, like ["yes", "no"].')
    if not listed:
        raise GrammarError("a choice must have at least one string.")
    if sum(map(len, listed)) > _MAX_BYTES:
        raise GrammarError(f"a choice must not have more than {_MAX_BYTES} characters.")
    pool = Pool()
    try:
        return Grammar(pool, pool.words([text.encode() for text in listed]))
    except UnicodeEncodeError:
        raise GrammarError("a choice has half a surrogate pair; send whole characters.") from None
