"""Stretches of text that a state takes without looking: most of the tokens that may follow, known at once.

Inside a free JSON string every plain character leads back to where it came from; inside one of at most 20 characters
each leads to the next of 20 states that are all alike. So a token made of such characters is allowed if it is short
enough, and need not be walked.
"""

from collections import Counter
from typing import NamedTuple

from wgemma.text.grammar.automaton import BOTTOM, State
from wgemma.text.grammar.expressions import EMPTY, NOTHING, Both, Either, Group, Join, Node, Repeat

NOT_ASCII = 1 << 128  # in a set of characters: all that are not ASCII
ENDLESS = 1 << 30
_FEWEST = 20  # a set with fewer characters is not worth it
_FOLLOWED = 4  # states looked at to find one run, if they are neither known nor simple
_SAMPLES = [character.encode() for character in ("\x80", "é", "一", "\u2028", "😀")]
_LEADS = ((1 << 0xF5) - 1) ^ ((1 << 0xC2) - 1)


class Run(NamedTuple):
    """A text of these characters is allowed if, and only if, it has at most `most` of them."""

    characters: int  # bit n for ASCII character n, and NOT_ASCII
    most: int


class _Link(NamedTuple):
    characters: int
    target: Node


class Runs:
    """Finds runs. What it found of an expression is remembered in the expression's pool, and goes with it."""

    def __init__(self, longest: int) -> None:
        self._longest = longest  # longer texts are never asked about

    def of(self, state: State) -> Run | None:
        alone = len(state.frames) == 1
        best = None
        for frame in state.frames:
            # After the last character of a bounded run, a caller might go on with the same characters.
            run = self._follow(frame.node, sure=alone and frame.callers == {BOTTOM})
            if run is not None and (run.most == ENDLESS or alone):
                best = run if best is None or run.characters.bit_count() > best.characters.bit_count() else best
        return best

    def _follow(self, node: Node, *, sure: bool) -> Run | None:
        counted = self._counted(node)
        if counted is not None:
            return counted
        first = _link(node)
        if first is None:
            return None
        characters, count = first.characters, 1
        here, there = node, first.target
        while there is not here and count <= self._longest:
            if count > _FOLLOWED and not _is_simple(there) and there not in there.pool.links:
                return None
            if (there.nullable or there.calls()) and not sure:
                return None
            link = _link(there)
            if link is None or link.characters & characters != characters:
                return Run(characters, count) if _is_dead(there, characters) else None
            here, there = there, link.target
            count += 1
        return Run(characters, ENDLESS)

    def _counted(self, node: Node) -> Run | None:
        """The run of a repeated character, whose length is known without following it."""
        head, tail = (node.head, node.tail) if isinstance(node, Join) else (node, EMPTY)
        if not isinstance(head, Repeat) or head.node not in node.pool.single:
            return None
        link = _link(head.node)
        if link is None or link.target is not EMPTY:
            return None
        if head.high is None:
            return Run(link.characters, ENDLESS)
        if tail.nullable or tail.calls() or not _is_dead(tail, link.characters):
            return None
        return Run(link.characters, head.high)


def _link(node: Node) -> _Link | None:
    """The state most characters lead to, and which do."""
    if node is EMPTY:
        return None
    links = node.pool.links
    if node not in links:
        links[node] = _find_link(node)
    found: _Link | None = links[node]
    return found


def _is_simple(node: Node) -> bool:
    """Whether looking at all steps of a state takes little time."""
    head = node.head if isinstance(node, Join) else node
    inner = head.node if isinstance(head, Group) else head
    return not isinstance(inner, Either | Both) or len(inner.parts) <= 3


def _find_link(node: Node) -> _Link | None:
    if node.first().bit_count() < _FEWEST:
        return None
    steps = [node.step(byte) for byte in range(128)]
    counts = Counter(step for step in steps if step is not NOTHING)
    if not counts:
        return None
    target, count = counts.most_common(1)[0]
    if count < _FEWEST:
        return None
    characters = sum(1 << byte for byte, step in enumerate(steps) if step is target)
    return _Link(characters | (NOT_ASCII if _all_lead_to(node, target) else 0), target)


def _all_lead_to(node: Node, target: Node) -> bool:
    """Whether every character beyond ASCII leads from `node` to `target`."""
    for sample in _SAMPLES:  # most sets that leave some out leave one of these out
        step = node
        for byte in sample:
            step = step.step(byte)
        if step is not target:
            return False
    paths = {(node.step(lead), 1, 0x80, 0xBF) for lead in range(0xC2, 0xE0)}
    paths |= {(node.step(lead), 2, 0x80, 0xBF) for lead in (*range(0xE1, 0xED), 0xEE, 0xEF)}
    paths |= {(node.step(lead), 3, 0x80, 0xBF) for lead in range(0xF1, 0xF4)}
    paths |= {(node.step(0xE0), 2, 0xA0, 0xBF), (node.step(0xED), 2, 0x80, 0x9F)}
    paths |= {(node.step(0xF0), 3, 0x90, 0xBF), (node.step(0xF4), 3, 0x80, 0x8F)}
    while paths:
        inner, more, low, high = paths.pop()
        for step in {inner.step(byte) for byte in range(low, high + 1)}:
            if step is NOTHING or (more == 1 and step is not target):
                return False
            if more > 1:
                paths.add((step, more - 1, 0x80, 0xBF))
    return True


def _is_dead(node: Node, characters: int) -> bool:
    """Whether none of the characters may follow."""
    first = node.first()
    return not first & characters & ((1 << 128) - 1) and not (characters & NOT_ASCII and first & _LEADS)
