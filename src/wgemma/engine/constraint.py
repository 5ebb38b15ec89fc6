"""What an answer may look like, followed token by token: a grammar of its text, and one of its tool calls.

  open ──<|channel>──▶ thought ──<channel|>──▶ ready       a thought is free
  open, ready ──▶ text                                     the text's grammar, or anything
  open, ready, text ──<|tool_call>──▶ call ──<tool_call|>──▶ called

Where a grammar holds for the text, or a call is required, a thought opens only if the answer may think, and neither
text nor thought can end the answer early. Forced text has only one continuation: it need not be drawn.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from wgemma.text.grammar import Grammar, TokenIndex
from wgemma.text.grammar import State as GrammarState
from wgemma.text.grammar.tokens import finished
from wgemma.text.grammar.tools import CLOSE, SYMBOLS
from wgemma.text.tokenizer import Tokenizer

WORTH = 4  # fewer forced tokens are drawn like any other: a pass of their own would cost more

Place: TypeAlias = Literal["open", "thought", "ready", "text", "call", "called", "over"]
Masking: TypeAlias = Generator[None, None, bytes]


class State(NamedTuple):
    """Where an answer stands; `inner` is the state of the grammar at work."""

    place: Place
    inner: GrammarState | None = None


class Alphabet:
    """A model's tokens, as grammars see them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        self.tokenizer = tokenizer
        self.texts = tokenizer.token_bytes()
        self.ends = frozenset(tokenizer.stop_ids)
        self.symbols = {special[text]: symbol for text, symbol in SYMBOLS.items() if text in special}
        self.index = TokenIndex(self.texts, self.symbols, self.ends)
        self.open_thought, self.close_thought = special.get("<|channel>", -1), special.get("<channel|>", -1)
        self.open_call, self.close_call = special.get("<|tool_call>", -1), special.get(CLOSE, -1)

    def advance(self, grammar: Grammar, state: GrammarState | None, token: int) -> GrammarState | None:
        if state is None:
            return None
        if token in self.symbols:
            return grammar.advance(state, self.symbols[token])
        text = self.texts[token] if token < len(self.texts) else None
        return grammar.advance_all(state, text) if text else None

    def mask(self, tokens: Iterable[int], *, all_but: bool = False) -> bytes:
        """The mask of these tokens, or of all others."""
        bits = bytearray((b"\xff" if all_but else b"\0") * (len(self.texts) + 7 >> 3))
        for token in tokens:
            if 0 <= token < len(self.texts):
                bits[token >> 3] ^= 1 << (token & 7)
        return bytes(bits)


class Constraint:
    """`text` is the grammar of the answer's text, `calls` that of a tool call from after `<|tool_call>` on. A call is
    `required`, possible, or forbidden if `calls` is None; `parallel`: several may follow each other. `forces`: text
    with a single continuation is not drawn. `alphabet` makes the model's alphabet when it is first needed."""

    def __init__(
        self,
        alphabet: Callable[[], Alphabet],
        *,
        text: Grammar | None = None,
        calls: Grammar | None = None,
        required: bool = False,
        parallel: bool = True,
        thinks: bool = False,
        forces: bool = True,
    ) -> None:
        self._make = alphabet
        self._alphabet: Alphabet | None = None
        self.text = text
        self.calls = calls
        self.required = required
        self.parallel = parallel
        self.strict = text is not None or required
        self.thinks = thinks or not self.strict
        self.forces = forces

    @property
    def alphabet(self) -> Alphabet:
        if self._alphabet is None:
            self._alphabet = self._make()
        return self._alphabet

    # -- following

    def start(self, *, in_thought: bool, written: Sequence[int] = ()) -> State | None:
        """The state where an answer begins, or where it stands after `written`."""
        state: State | None = State("thought") if in_thought else self._at("open" if self.thinks else "ready")
        for token in written:
            state = None if state is None else self.step(state, token)
        return state

    def _at(self, place: Place) -> State:
        return State(place, self.text.start if self.text else None)

    def step(self, state: State, token: int) -> State | None:
        """The state after a token; None if it is forbidden."""
        alphabet = self.alphabet
        if state.place == "call":
            assert self.calls is not None
            inner = alphabet.advance(self.calls, state.inner, token)
            if inner is None:
                return None
            return State("called") if token == alphabet.close_call else State("call", inner)
        if token == alphabet.open_call:
            return State("call", self.calls.start) if self.calls is not None and self._may_call(state) else None
        if state.place == "thought":
            if token in alphabet.ends:
                return None if self.strict else State("over")
            return self._at("ready") if token == alphabet.close_thought else state
        if token == alphabet.open_thought and self._may_think(state):
            return State("thought")
        if token in alphabet.ends:
            return State("over") if self._may_end(state) else None
        return self._write(state, token)

    def _write(self, state: State, token: int) -> State | None:
        """Text goes on."""
        if self.required or (self.text and state.place == "called"):
            return None
        if self.text is None:
            return state if state.place == "called" else State("text")
        inner = self.alphabet.advance(self.text, state.inner, token)
        return None if inner is None or token in self.alphabet.symbols else State("text", inner)

    def _may_think(self, state: State) -> bool:
        if self.strict:
            return state.place == "open"
        return self.parallel or state.place != "called"

    def _may_call(self, state: State) -> bool:
        if self.calls is None or state.place == "thought":
            return False
        if state.place == "called":
            return self.parallel
        return state.place in ("open", "ready") or not self.strict

    def _may_end(self, state: State) -> bool:
        if state.place == "called" or not self.strict:
            return True
        return state.inner is not None and state.inner.accepts and not self.required

    def is_plain(self, state: State) -> bool:
        """Whether the last token was text that the grammar describes, and no markup."""
        return state.place == "text" and self.text is not None

    # -- masks

    def known_mask(self, state: State) -> bytes | None:
        """The mask of a state whose grammar was there before."""
        known = state.inner is not None and self.alphabet.index.knows(state.inner)
        return self.mask(state) if known else None

    def mask(self, state: State) -> bytes:
        return finished(self.masking(state))

    def masking(self, state: State) -> Masking:
        """Finds the tokens that may follow, in slices of some milliseconds: bit i % 8 of byte i / 8 for token i."""
        alphabet, bits = self.alphabet, b""
        singles = [token for token in self._singles() if self.step(state, token) is not None]
        if state.place == "call":
            assert self.calls is not None and state.inner is not None
            bits = yield from alphabet.index.masking(self.calls, state.inner)
            singles = []
        elif state.place != "thought" and self.text is not None and state.inner is not None and not self.required:
            bits = yield from alphabet.index.masking(self.text, state.inner)
        elif state.place == "thought" or not self.strict:
            forbidden = [token for token in self._singles() if token not in singles]
            bits, singles = alphabet.mask(forbidden, all_but=True), []
        if not singles:
            return bits
        found = int.from_bytes(bits, "little") | int.from_bytes(alphabet.mask(singles), "little")
        return found.to_bytes(len(alphabet.texts) + 7 >> 3, "little")

    def _singles(self) -> list[int]:
        """The tokens that text has not."""
        alphabet = self.alphabet
        markup = (alphabet.open_thought, alphabet.close_thought, alphabet.open_call, alphabet.close_call)
        return [token for token in (*markup, *alphabet.ends) if token >= 0]

    # -- forced text

    def forced(self, state: State, most: int) -> list[int]:
        """The tokens that must follow, `most` at most, if they are worth it. The last of a text is left to be drawn,
        because a longer one may begin there; the end of the answer is always worth it."""
        found: list[int] = []
        while self.forces and len(found) < most + WORTH:  # what is worth it does not depend on a limit
            tokens = self._forced(state)
            if not tokens:
                break
            for token in tokens:
                following = self.step(state, token)
                if following is None:  # the tokenizer cannot spell it: "▁" is a space to it
                    tokens = []
                    break
                state = following
                found.append(token)
            if not tokens:
                break
        if state.place != "over" and len(found) < WORTH:
            return []
        return found[:most]

    def _forced(self, state: State) -> list[int]:
        """Some of the tokens that must follow."""
        if state.place in ("over", "thought") or not (self.strict or state.place == "call"):
            return []
        if state.place == "open":  # it may think
            return []
        if state.place == "called":
            return [] if self.parallel and self.calls is not None else [min(self.alphabet.ends)]
        if self.required and state.place == "ready":
            return [self.alphabet.open_call]
        grammar = self.calls if state.place == "call" else self.text
        assert grammar is not None and state.inner is not None
        if state.place == "ready" and self.calls is not None:  # a call or text
            return []
        if state.place != "call" and grammar.only_ends(state.inner):
            return [min(self.alphabet.ends)]
        return self._forced_text(grammar, state.inner)

    def _forced_text(self, grammar: Grammar, state: GrammarState) -> list[int]:
        symbols = {symbol: token for token, symbol in self.alphabet.symbols.items()}
        allowed = grammar.allowed(state)
        first = allowed.bit_length() - 1
        if allowed == 1 << first and first in symbols and not state.accepts:
            return [symbols[first]]
        text = grammar.forced(state)
        after = grammar.advance_all(state, text)
        assert after is not None
        tokens = self.alphabet.tokenizer.encode(_characters(text))
        following = grammar.allowed(after)
        marked = following.bit_length() > 256 and following == 1 << following.bit_length() - 1 and not after.accepts
        return tokens if grammar.only_ends(after) or marked else tokens[:-1]


def _characters(text: bytes) -> str:
    """The whole characters at the start of `text`; none if it begins within one."""
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        return text[: problem.start].decode()
