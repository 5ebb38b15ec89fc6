"""Trees of patterns → expressions over bytes, for a text as a whole or for any part of it.

Lookahead works where the rest of the pattern follows it at the top level, as in `^(?!-)[a-z-]+$`.
"""

from wgemma.errors import GrammarError
from wgemma.text.grammar.characters import PlainText
from wgemma.text.grammar.expressions import EMPTY, NOTHING, Node
from wgemma.text.grammar.pattern_trees import Tree

Variants = dict[tuple[bool, bool], Node]  # (must stand at the start, must stand at the end) → what it matches there


class PatternWriter:
    """Turns trees into expressions over the characters of `text`."""

    def __init__(self, text: PlainText) -> None:
        self.text = text
        self.pool = text.pool

    def search(self, tree: Tree) -> Node:
        """All texts the pattern is found in."""
        parts = []
        for at_start, node in self._to_the_end(tree, anywhere=True):
            parts.append(node if at_start else self.pool.join(self.text.texts, node))
        return self.pool.either(parts)

    def full(self, tree: Tree) -> Node:
        """All texts the pattern matches from start to end."""
        return self.pool.either([node for _, node in self._to_the_end(tree, anywhere=False)])

    def _to_the_end(self, tree: Tree, *, anywhere: bool) -> list[tuple[bool, Node]]:
        """(must stand at the start, what it and all that follows it matches) of every alternative."""
        if tree[0] == "alt":
            return [found for part in tree[1] for found in self._to_the_end(part, anywhere=anywhere)]
        parts = list(tree[1]) if tree[0] == "cat" else [tree]
        cut = next((i for i, part in enumerate(parts) if part[0] == "look"), None)
        if cut is None:
            rest = parts[-1:]
            if rest and rest[0][0] in ("cat", "alt") and _looks(rest[0]):
                ends = self._to_the_end(rest[0], anywhere=anywhere)
                return self._prefixed(parts[:-1], ends)
            return [
                (start, self.pool.join(node, EMPTY if end or not anywhere else self.text.texts))
                for (start, end), node in self._sequence(parts).items()
            ]
        _, inside, positive = parts[cut]
        found = self._to_the_end(inside, anywhere=True)
        if any(at_start for at_start, _ in found):
            raise GrammarError("a pattern has a ^ inside a lookahead, which cannot be enforced.")
        ahead = self.pool.either([node for _, node in found])
        if not positive:
            ahead = self.pool.other_than(ahead)
        ends = [
            (start, self.pool.both([ahead, node, self.text.texts]))
            for start, node in self._to_the_end(("cat", parts[cut + 1 :]), anywhere=anywhere)
        ]
        return self._prefixed(parts[:cut], ends)

    def _prefixed(self, parts: list[Tree], ends: list[tuple[bool, Node]]) -> list[tuple[bool, Node]]:
        result = []
        for (start, end), node in self._sequence(parts).items():
            for also_start, rest in ends:
                if also_start and not node.nullable:
                    continue
                before = EMPTY if also_start else node
                after = (EMPTY if rest.nullable else NOTHING) if end else rest
                result.append((start or also_start, self.pool.join(before, after)))
        return result

    def _sequence(self, parts: list[Tree]) -> Variants:
        if not any(_anchored(part) for part in parts):
            return {(False, False): self.pool.join(*map(self.plain, parts))}
        result: Variants = {(False, False): EMPTY}
        for part in parts:
            result = self._after(result, self._variants(part))
        return result

    def _after(self, left: Variants, right: Variants) -> Variants:
        """One after the other: before `^` and after `$` there may only be the empty text."""
        result: dict[tuple[bool, bool], list[Node]] = {}
        for (start, end), before in left.items():
            for (also_start, also_end), after in right.items():
                if (end and not after.nullable) or (also_start and not before.nullable):
                    continue
                node = self.pool.join(EMPTY if also_start else before, EMPTY if end else after)
                result.setdefault((start or also_start, end or also_end), []).append(node)
        return {key: self.pool.either(nodes) for key, nodes in result.items()}

    def _variants(self, tree: Tree) -> Variants:
        if not _anchored(tree):
            return {(False, False): self.plain(tree)}
        match tree:
            case ("start",):
                return {(True, False): EMPTY}
            case ("end",):
                return {(False, True): EMPTY}
            case ("cat", parts):
                return self._sequence(parts)
            case ("alt", parts):
                result: dict[tuple[bool, bool], list[Node]] = {}
                for part in parts:
                    for key, node in self._variants(part).items():
                        result.setdefault(key, []).append(node)
                return {key: self.pool.either(nodes) for key, nodes in result.items()}
            case ("rep", part, low, 1):
                found = self._variants(part)
                if low == 0:
                    found[False, False] = self.pool.optional(found.get((False, False), NOTHING))
                return found
        raise GrammarError("a pattern has an anchor or a lookahead inside a repetition, which cannot be enforced.")

    def plain(self, tree: Tree) -> Node:
        """A tree without anchors and lookahead."""
        match tree:
            case ("set", ranges):
                return self.text.characters(ranges)
            case ("cat", parts):
                return self.pool.join(*map(self.plain, parts))
            case ("alt", parts):
                return self.pool.either(map(self.plain, parts))
            case ("rep", part, low, high):
                return self.pool.repeat(self.plain(part), low, high)
        raise GrammarError("a pattern has a lookahead inside a group, which cannot be enforced.")


def _anchored(tree: Tree) -> bool:
    return _has(tree, ("start", "end", "look"))


def _looks(tree: Tree) -> bool:
    return _has(tree, ("look",))


def _has(tree: Tree, kinds: tuple[str, ...]) -> bool:
    if tree[0] in ("cat", "alt"):
        return any(_has(part, kinds) for part in tree[1])
    return tree[0] in kinds or (tree[0] == "rep" and _has(tree[1], kinds))
