"""Rules that call each other, as one automaton over bytes and special tokens.

A state is a set of frames. A frame is an expression and the frames it may return to, so many stacks share one frame and
ambiguity costs no more than the number of different expressions. Frames and states are made once and compare by
identity. Every state is alive: some text leads from it to the end.
"""

from collections.abc import Iterable

from wgemma.text.grammar.expressions import EMPTY, NOTHING, Node, Pool, Rule

_FORCED = 4096  # bytes that `forced` returns at most
_FRAMES = 2000  # an answer can be at so many places of an ambiguous grammar; more are not followed
_REMEMBERED = 1 << 17  # states and frames kept for the next time


class Frame:
    """An expression at work, and where to go on when it is done."""

    __slots__ = ("callers", "node")

    def __init__(self, node: Node, callers: frozenset["Frame"]) -> None:
        self.node = node
        self.callers = callers


class State:
    """Where a text stands in its grammar. `accepts`: it may end here."""

    __slots__ = ("_steps", "accepts", "frames")

    def __init__(self, frames: tuple[Frame, ...], accepts: bool) -> None:
        self.frames = frames
        self.accepts = accepts
        self._steps: dict[int, State | None] = {}


BOTTOM = Frame(EMPTY, frozenset())


class Grammar:
    """What an answer may look like. `unchecked` lists what of it is not enforced."""

    def __init__(self, pool: Pool, root: Node, unchecked: Iterable[str] = ()) -> None:
        self.unchecked = list(unchecked)
        self._pool = pool
        self._frames: dict[tuple[Node, frozenset[Frame]], Frame] = {}
        self._states: dict[tuple[frozenset[Frame], bool], State] = {}
        self.start = self._closed({root: {BOTTOM}})
        pool.hurry()

    def advance(self, state: State, symbol: int) -> State | None:
        """The state after a byte, or after special token 256 + k; None if it may not follow."""
        steps = state._steps
        if symbol in steps:
            return steps[symbol]
        after: dict[Node, set[Frame]] = {}
        for frame in state.frames:
            node = frame.node.step(symbol)
            if node is not NOTHING:
                after.setdefault(node, set()).update(frame.callers)
        steps[symbol] = result = self._closed(after) if after else None
        return result

    def advance_all(self, state: State | None, text: bytes) -> State | None:
        for byte in text:
            if state is None:
                return None
            state = self.advance(state, byte)
        return state

    def accepts(self, state: State) -> bool:
        """Whether the text may end here."""
        return state.accepts

    def only_ends(self, state: State) -> bool:
        """Whether the text must end here."""
        return not state.frames

    def allowed(self, state: State) -> int:
        """The symbols that may follow: bit n for symbol n."""
        mask = 0
        for frame in state.frames:
            mask |= frame.node.first()
        return mask

    def forced(self, state: State) -> bytes:
        """The bytes that must follow, while there is only one way to go on."""
        result = bytearray()
        while len(result) < _FORCED and not state.accepts:
            mask = self.allowed(state)
            symbol = mask.bit_length() - 1
            if mask != 1 << symbol or symbol > 255:
                break
            result.append(symbol)
            following = self.advance(state, symbol)
            assert following is not None
            state = following
        return bytes(result)

    def _closed(self, expressions: dict[Node, set[Frame]]) -> State:
        """The state with these expressions and their callers: what is complete returns, and rules are called."""
        accepts = False
        frames: dict[Node, set[Frame]] = {}
        waiting = list(expressions.items())
        while waiting:
            node, callers = waiting.pop()
            known = frames.setdefault(node, set())
            fresh = callers - known
            known |= fresh
            if node.nullable:
                for caller in fresh:
                    if caller is BOTTOM:
                        accepts = True
                    else:
                        waiting.append((caller.node, set(caller.callers)))
        called: dict[Rule, set[Frame]] = {}
        for node, callers in frames.items():
            self._call(node, callers, called)
        while called:
            # Lowest rank first: then nobody calls a rule after it has been entered.
            rule = min(called, key=lambda rule: rule.rank)
            callers = called.pop(rule)
            frames.setdefault(rule.body, set()).update(callers)
            self._call(rule.body, callers, called)
        live = [(node, callers) for node, callers in frames.items() if node.first()][:_FRAMES]
        return self._state(frozenset(self._frame(node, frozenset(callers)) for node, callers in live), accepts)

    def _call(self, node: Node, callers: set[Frame], called: dict[Rule, set[Frame]]) -> None:
        for rule, rest in node.calls():
            # With nothing left to do after the call, the rule returns to our own callers.
            back = callers if rest is EMPTY else {self._frame(rest, frozenset(callers))}
            called.setdefault(rule, set()).update(back)

    def _frame(self, node: Node, callers: frozenset[Frame]) -> Frame:
        found = self._frames.get((node, callers))
        if found is None:
            if len(self._frames) >= _REMEMBERED:
                self._frames.clear()
            found = self._frames[node, callers] = Frame(node, callers)
        return found

    def _state(self, frames: frozenset[Frame], accepts: bool) -> State:
        found = self._states.get((frames, accepts))
        if found is None:
            if len(self._states) >= _REMEMBERED:
                for state in self._states.values():  # they hold each other
                    state._steps = {}
                self._states.clear()
            found = self._states[frames, accepts] = State(tuple(frames), accepts)
        return found
