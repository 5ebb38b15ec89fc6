"""GBNF, the notation of llama.cpp → a grammar.

rules  = { name ::= choice newline }                           `root` is where texts start; # comments to the line's end
choice = sequence { | sequence }
item   = "text" | [set] | . | name | ( choice )                each may have * + ? {m} {m,} {m,n} after it

A rule ends at a newline, except inside parentheses and after ::= or |. A rule must not call itself before it has
written anything: such a grammar is refused. Rules that no text completes are left out.
"""

import re
from collections.abc import Callable
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.automaton import Grammar
from wgemma.text.grammar.characters import ALL, PlainText, Ranges, inverted, ranges_of
from wgemma.text.grammar.expressions import EMPTY, NOTHING, Node, Pool, Rule
from wgemma.text.grammar.pattern_trees import check_threads

_MAX_LENGTH, _MAX_DEPTH, _MAX_COUNT = 1_000_000, 60, 100_000
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*[ \t]*::=")
_COUNT = re.compile(r"\{[ \t]*(\d{1,6})[ \t]*(?:(,)[ \t]*(\d{1,6})?)?[ \t]*\}")
_ESCAPES = {"n": 10, "r": 13, "t": 9}
_LENGTHS = {"x": 2, "u": 4, "U": 8}

# ("set", ranges) | ("rule", name) | ("cat", [tree]) | ("alt", [tree]) | ("rep", tree, low, high)
Tree = tuple[Any, ...]


def compile_gbnf(text: str) -> Grammar:
    """The grammar of the texts that the rule `root` describes."""
    if not isinstance(text, str):
        raise GrammarError("a GBNF grammar must be a string.")
    if len(text) > _MAX_LENGTH:
        raise GrammarError(f"a GBNF grammar of {len(text)} characters is too large; the limit is {_MAX_LENGTH}.")
    trees = _Parser(text).rules()
    if "root" not in trees:
        raise GrammarError("the grammar has no rule `root`; write root ::= … first.")
    nullable = _settled(trees, lambda tree, known: _all(tree, known, letters=False))
    productive = _settled(trees, lambda tree, known: _all(tree, known, letters=True))
    if "root" not in productive:
        raise GrammarError("no text satisfies the grammar: `root` never comes to an end.")
    pool = Pool()
    rules = {name: _TreeRule(name, trees[name], name in nullable) for name in productive}
    plain = PlainText(pool)
    for rule in rules.values():
        rule.write = lambda tree: _write(tree, plain, rules)
    _rank(trees, nullable, rules)
    return Grammar(pool, pool.invoke(rules["root"]))


class _TreeRule(Rule):
    write: Callable[[Tree], Node]

    def __init__(self, name: str, tree: Tree, nullable: bool) -> None:
        super().__init__(name, nullable)
        self.tree = tree

    def build(self) -> Node:
        return self.write(self.tree)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def error(self, complaint: str) -> GrammarError:
        line = self.text.count("\n", 0, self.at) + 1
        return GrammarError(f"the grammar {complaint} on line {line}.")

    def skip(self, lines: bool) -> None:
        match = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def rules(self) -> dict[str, Tree]:
        trees: dict[str, Tree] = {}
        self.skip(True)
        while self.at < len(self.text):
            head = _HEAD.match(self.text, self.at)
            if head is None:
                raise self.error("has something that is no rule; write name ::= …")
            name = head.group().removesuffix("::=").strip()
            if name in trees:
                raise self.error(f"has the rule {name} twice")
            self.at = head.end()
            self.skip(True)
            trees[name] = self.choice(False)
            check_threads(trees[name], f"the rule {name}")
            if self.peek() not in ("", "\n", "\r"):
                raise self.error(f"has an unexpected {self.peek()!r}")
            self.skip(True)
        for name, tree in trees.items():
            for called in _called(tree):
                if called not in trees:
                    raise GrammarError(f"the rule {name} calls {called}, which does not exist.")
        return trees

    def choice(self, inside: bool) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"nests deeper than {_MAX_DEPTH} levels")
        parts = [self.sequence(inside)]
        while self.peek() == "|":
            self.at += 1
            self.skip(True)
            parts.append(self.sequence(inside))
        self.depth -= 1
        return parts[0] if len(parts) == 1 else ("alt", parts)

    def sequence(self, inside: bool) -> Tree:
        parts: list[Tree] = []
        while True:
            self.skip(inside)
            if self.peek() in ("", "|", ")", "\n", "\r"):
                return parts[0] if len(parts) == 1 else ("cat", parts)
            parts.append(self.counted(self.item()))

    def item(self) -> Tree:
        char = self.peek()
        if char == '"':
            return self.literal()
        if char == "[":
            return ("set", self.set())
        if char == ".":
            self.at += 1
            return ("set", ALL)
        if char == "(":
            self.at += 1
            tree = self.choice(True)
            if self.peek() != ")":
                raise self.error("has a ( without its )")
            self.at += 1
            return tree
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise self.error(f"has an unexpected {char!r}")
        self.at = name.end()
        return ("rule", name.group())

    def counted(self, tree: Tree) -> Tree:
        for _ in range(4):
            char = self.peek()
            if char and char in "*+?":
                self.at += 1
                tree = ("rep", tree, int(char == "+"), 1 if char == "?" else None)
            elif char == "{":
                match = _COUNT.match(self.text, self.at)
                if match is None:
                    raise self.error("has a { that is no count; write {2}, {2,} or {2,5}")
                low = int(match[1])
                high = low if not match[2] else int(match[3]) if match[3] else None
                if max(low, high or 0) > _MAX_COUNT or (high is not None and high < low):
                    raise self.error("has a count that is too large, or ends before it starts,")
                self.at = match.end()
                tree = ("rep", tree, low, high)
            else:
                return tree
        raise self.error("has too many counts after one another")

    def literal(self) -> Tree:
        self.at += 1
        parts: list[Tree] = []
        while self.peek() != '"':
            code = self.character()
            parts.append(("set", ((code, code),)))
        self.at += 1
        return ("cat", parts)

    def set(self) -> Ranges:
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        pairs = []
        while self.peek() != "]":
            low = high = self.character()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self.character()
                if high < low:
                    raise self.error("has a range that ends before it starts")
            pairs.append((low, high))
        self.at += 1
        found = ranges_of(pairs)
        return inverted(found) if negated else found

    def character(self) -> int:
        char = self.peek()
        if char in ("", "\n"):
            raise self.error("has a string or a set without its end")
        self.at += 1
        if char != "\\":
            return ord(char)
        char = self.peek()
        self.at += 1
        if char in _LENGTHS:
            digits = self.text[self.at : self.at + _LENGTHS[char]]
            try:
                code = int(digits, 16)
                chr(code).encode()
            except (ValueError, OverflowError):
                raise self.error("has an escape that is no character") from None
            self.at += len(digits)
            return code
        if char in _ESCAPES:
            return _ESCAPES[char]
        if not char or char.isalnum():
            raise self.error(f"has the unknown escape \\{char}")
        return ord(char)


def _called(tree: Tree) -> list[str]:
    if tree[0] == "rule":
        return [tree[1]]
    if tree[0] in ("cat", "alt"):
        return [name for part in tree[1] for name in _called(part)]
    return _called(tree[1]) if tree[0] == "rep" else []


def _all(tree: Tree, known: set[str], *, letters: bool) -> bool:
    """Whether a text of the tree needs nothing but rules in `known`, and letters if there are some."""
    match tree:
        case ("set", ranges):
            return letters and bool(ranges)
        case ("rule", name):
            return name in known
        case ("cat", parts):
            return all(_all(part, known, letters=letters) for part in parts)
        case ("alt", parts):
            return any(_all(part, known, letters=letters) for part in parts)
        case ("rep", part, low, _):
            return low == 0 or _all(part, known, letters=letters)
    raise AssertionError(tree)


def _settled(trees: dict[str, Tree], holds: Callable[[Tree, set[str]], bool]) -> set[str]:
    """The rules for which something holds, given those for which it is known to hold."""
    users: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for called in _called(tree):
            users.setdefault(called, set()).add(name)
    known: set[str] = set()
    waiting = list(trees)
    while waiting:
        name = waiting.pop()
        if name not in known and holds(trees[name], known):
            known.add(name)
            waiting += users.get(name, ())
    return known


def _first(tree: Tree, nullable: set[str]) -> list[str]:
    """The rules that the tree may call before it writes anything."""
    match tree:
        case ("rule", name):
            return [name]
        case ("alt", parts):
            return [name for part in parts for name in _first(part, nullable)]
        case ("rep", part, _, _):
            return _first(part, nullable)
        case ("cat", parts):
            found: list[str] = []
            for part in parts:
                found += _first(part, nullable)
                if not _all(part, nullable, letters=False):
                    break
            return found
    return []


def _rank(trees: dict[str, Tree], nullable: set[str], rules: dict[str, _TreeRule]) -> None:
    """Gives every rule a higher rank than those that call it first; refuses a circle of such calls."""
    calls = {name: [other for other in _first(trees[name], nullable) if other in rules] for name in rules}
    waiting_for = dict.fromkeys(rules, 0)
    for others in calls.values():
        for other in others:
            waiting_for[other] += 1
    ready = [name for name, count in waiting_for.items() if not count]
    for rank, name in enumerate(ready):
        rules[name].rank = rank
        for other in calls[name]:
            waiting_for[other] -= 1
            if not waiting_for[other]:
                ready.append(other)
    if len(ready) < len(rules):
        name = next(name for name in rules if name not in set(ready))
        raise GrammarError(f"the rule {name} calls itself before it writes anything; put what comes first in front.")


def _write(tree: Tree, plain: PlainText, rules: dict[str, _TreeRule]) -> Node:
    pool = plain.pool
    match tree:
        case ("set", ranges):
            return plain.characters(ranges)
        case ("rule", name):
            return pool.invoke(rules[name]) if name in rules else NOTHING
        case ("cat", parts):
            return pool.join(*(_write(part, plain, rules) for part in parts))
        case ("alt", parts):
            return pool.either(_write(part, plain, rules) for part in parts)
        case ("rep", part, low, high):
            return pool.repeat(_write(part, plain, rules), low, high)
    return EMPTY
