"""Strings ⇄ token ids, with the vocabulary in a GGUF file.

Byte-pair encoding over Unicode characters; spaces become '▁', and characters without a token are spelled as bytes.
Special tokens are found by text and type, never by id, because small vocabularies number them differently. Text is
plain unless the caller allows special tokens in it. `<bos>` is never added automatically.
"""

import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from wgemma.errors import GgufError
from wgemma.files.arrays import StringArray
from wgemma.files.gguf import Gguf
from wgemma.text.bpe import MAX_IDS, MAX_MERGES, Merges
from wgemma.text.vocabulary import Memo, Vocabulary

SPACE = "▁"
STOP_TEXTS = ("<eos>", "<turn|>", "<|tool_response>")  # each ends the model's turn
# Special tokens the reply parser needs to see; the others are dropped from the model's output.
MARKUP = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
)

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE_UTF8, _NEWLINE = SPACE.encode(), ord("\n")
_CACHED_WORDS, _CACHED_LENGTH, _CACHED_CHARACTERS = 1 << 15, 64, 1 << 16


class Tokenizer:
    """One vocabulary. `special` maps the text of every special token to its id."""

    def __init__(
        self, tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], stop_ids: Iterable[int] = ()
    ) -> None:
        self._tokens = tokens = _string_array(tokens)
        bridges: list[bytes] = []
        kinds = (_CONTROL, _USER_DEFINED, _UNKNOWN)
        self._special_ids = frozenset(i for i, kind in enumerate(types) if kind in kinds)
        vocabulary = Vocabulary(
            tokens,
            _string_array(merges),
            lambda batch: bridges.extend(_possible_bridges(batch)),
            reserved=self._special_ids,
        )
        self._vocabulary = vocabulary
        self.special = {text: i for i in sorted(self._special_ids) if (text := tokens[i])}
        self._special_start = re.compile("[" + re.escape("".join({text[0] for text in self.special} or "\0")) + "]")
        self._special_lengths = sorted({len(text) for text in self.special}, reverse=True)
        self._byte_ids = self._find_bytes()
        self._byte_values = {token_id: value for value, token_id in enumerate(self._byte_ids) if token_id >= 0}
        self._words = _word_pattern(token for token in map(bytes.decode, bridges) if token not in self.special)
        self._symbols = Memo(partial(_symbol, vocabulary), _CACHED_CHARACTERS)
        self._merges = Merges(vocabulary.join, len(merges))
        self._cache: dict[str, list[int]] = {}
        # Stop tokens are those that end a turn and those the file lists; `</s>` is ordinary text here.
        ends = {self.special[text] for text in STOP_TEXTS if text in self.special}
        self.stop_ids = frozenset(ends | {i for i in stop_ids if 0 <= i < len(tokens)})

    @classmethod
    def from_gguf(cls, target: Any) -> "Tokenizer":
        """The vocabulary of `target`: an open `Gguf`, or anything `Gguf.open` takes. No tensor is read."""
        if isinstance(target, Gguf):
            return cls._from_metadata(target.metadata, target.source.name)
        with Gguf.open(target) as gguf:
            return cls._from_metadata(gguf.metadata, gguf.source.name)

    @classmethod
    def _from_metadata(cls, metadata: dict[str, Any], name: str) -> "Tokenizer":
        def column(key: str, kind: type) -> Sequence[Any]:
            value = metadata.get(f"tokenizer.ggml.{key}")
            if not isinstance(value, Sequence) or isinstance(value, str) or (value and not isinstance(value[0], kind)):
                raise GgufError(f"{name}: the vocabulary's tokenizer.ggml.{key} is missing or has the wrong type.")
            return value

        model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        # Ollama writes "llama", although it is byte-pair encoding all the same.
        known = "gemma4" in (model, pre) or str(metadata.get("general.architecture", "")).startswith("gemma4")
        if not known:
            raise GgufError(f"{name}: its tokenizer is {model!r:.80}/{pre!r:.80}; wgemma supports only Gemma 4's.")
        tokens, types, merges = column("tokens", str), column("token_type", int), column("merges", str)
        if not tokens or len(tokens) != len(types):
            raise GgufError(f"{name}: the vocabulary has {len(tokens)} tokens but {len(types)} token types.")
        if len(tokens) > MAX_IDS or len(merges) > MAX_MERGES:
            raise GgufError(f"{name}: a vocabulary of {len(tokens)} tokens and {len(merges)} merges is too large.")
        stops = [metadata.get("tokenizer.ggml.eos_token_id")]
        listed = metadata.get("tokenizer.ggml.eos_token_ids", ())
        stops += listed if isinstance(listed, Sequence) and not isinstance(listed, str) else [listed]
        return cls(tokens, types, merges, [stop for stop in stops if isinstance(stop, int)])

    def __len__(self) -> int:
        return len(self._tokens)

    def id(self, text: str) -> int:
        """The id of a special token by its `text`, such as `<bos>`."""
        try:
            return self.special[text]
        except KeyError:
            raise GgufError(f"this vocabulary has no special token {text!r}.") from None

    def text(self, token_id: int) -> str:
        """The token `token_id` as the vocabulary spells it: '▁' for a space, `<0xHH>` for a byte."""
        return self._tokens[token_id]

    def token_bytes(self) -> list[bytes | None]:
        """The text of every token as bytes; None for special ones."""
        texts: list[bytes | None] = []
        for batch in self._tokens.batches():
            texts += [text.replace(_SPACE_UTF8, b" ") for text in batch]
        for token_id, value in self._byte_values.items():
            texts[token_id] = bytes((value,))
        for token_id in self._special_ids:
            texts[token_id] = None
        return texts

    # -- strings to ids

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of `text`; special tokens are recognised only when `special` is true."""
        return self.encode_segments([(text, special)])

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """The ids of consecutive (text, trusted) segments; special tokens are recognised in trusted text only.

        Plain text is joined across segments before merging, so a harmless prompt gives the ids of its whole text.
        """
        ids: list[int] = []
        plain: list[str] = []
        for text, trusted in segments:
            for piece, token_id in self._cut(text) if trusted else ((text, -1),):
                if token_id < 0:
                    plain.append(piece)
                else:
                    self._encode_plain("".join(plain), ids)
                    plain.clear()
                    ids.append(token_id)
        self._encode_plain("".join(plain), ids)
        return ids

    def _cut(self, text: str) -> Iterator[tuple[str, int]]:
        """Splits into plain text (−1) and special tokens (their id), the longest at each position."""
        start = position = 0
        while found := self._special_start.search(text, position):
            position = found.start()
            for length in self._special_lengths:
                token = text[position : position + length]
                if token in self.special:
                    if start < position:
                        yield text[start:position], -1
                    yield token, self.special[token]
                    start = position = position + len(token)
                    break
            else:
                position += 1
        if start < len(text):
            yield text[start:], -1

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """Appends the ids of text without special tokens, word by word."""
        if not text.isascii():
            text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        cache, extend = self._cache, ids.extend
        for word in self._words.findall(text.replace(" ", SPACE)):
            known = cache.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHED_WORDS:
                        cache.clear()
                    cache[word] = known
            extend(known)

    def _encode_word(self, word: str) -> list[int]:
        symbols = self._merges.apply([*map(self._symbols.__getitem__, word)])
        if min(symbols) >= 0:
            return symbols
        spelled: list[int] = []
        for symbol in symbols:
            spelled += (symbol,) if symbol >= 0 else self._spell(chr(~symbol))
        return spelled

    def _spell(self, character: str) -> list[int]:
        """A character without a token, as one token per UTF-8 byte."""
        ids = [self._byte_ids[byte] for byte in character.encode()]
        if min(ids) >= 0:
            return ids
        if "<unk>" in self.special:
            return [self.special["<unk>"]]
        raise GgufError(f"this vocabulary cannot spell {character!r} and has no <unk>.")

    def forget(self) -> None:
        """Empties the caches, for measurements that must start cold."""
        self._cache.clear()
        self._symbols.clear()
        self._vocabulary.forget()
        self._merges.forget()

    # -- ids to strings

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`; special tokens appear as text unless `skip_special` is set."""
        stream = self.stream(keep=() if skip_special else None)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, keep: Collection[str] | None = None) -> "StreamDecoder":
        """A decoder for ids that arrive one by one. `keep` names the special tokens to show; None shows all."""
        dropped = () if keep is None else self._special_ids
        silent = frozenset(i for i in dropped if self._tokens[i] not in (keep or ()))
        return StreamDecoder(self._tokens, self._byte_values, self._special_ids, silent)

    # -- construction

    def _find_bytes(self) -> "array[int]":
        """The token id for each byte value, −1 if there is none. Ollama marks them as normal tokens."""
        return array("i", (self._vocabulary.id(f"<0x{value:02X}>") for value in range(256)))


def _string_array(strings: Sequence[str]) -> StringArray:
    return strings if isinstance(strings, StringArray) else StringArray.of(strings)


def _symbol(vocabulary: Vocabulary, character: str) -> int:
    """A character's initial symbol: the id of its token, or its inverted code point if it has none."""
    found = vocabulary.id(character)
    return found if found >= 0 else ~ord(character)


def _possible_bridges(tokens: list[bytes]) -> list[bytes]:
    """The tokens that could matter to `_word_pattern`: those with '▁' after something, or with a newline."""
    return [token for token in tokens if token.rfind(_SPACE_UTF8) > 0 or _NEWLINE in token]


def _word_pattern(tokens: Iterable[str]) -> "re.Pattern[str]":
    """Splits text into words that no token of this vocabulary can bridge, so that each can be merged alone and cached.

    A word ends before a run of '▁', unless some token has '▁' after the character before it (the real vocabulary has
    one: `>▁</`), and on both sides of a run of newlines, unless some token mixes them with other text.
    """
    border = "\ud800"  # no token contains half a surrogate pair
    every = border.join(tokens)
    bridges = {match[0] for match in re.findall(f"[^{SPACE}{border}]{SPACE}", every)}
    mixes_newlines = re.search(f"\n[^\n{border}]|[^\n{border}]\n", every) is not None
    newline = "" if mixes_newlines else r"\n"
    inner = f"[^{SPACE}{newline}]+"
    if bridges:
        # Possessive, because a plain repetition would remember every iteration.
        inner = f"(?:{inner}|(?<=[{re.escape(''.join(sorted(bridges)))}]){SPACE}+)++"
    return re.compile(f"{SPACE}*{inner}|{SPACE}+" + ("" if mixes_newlines else r"|\n+"))


class StreamDecoder:
    """Turns ids into text as they arrive, never emitting half a UTF-8 character."""

    def __init__(
        self, tokens: Sequence[str], byte_values: dict[int, int], special: frozenset[int], silent: frozenset[int]
    ) -> None:
        self._tokens = tokens
        self._byte_values = byte_values
        self._special = special
        self._silent = silent
        self._pending = bytearray()

    def push(self, token_id: int) -> str:
        """The text that is certain after `token_id`."""
        byte = self._byte_values.get(token_id)
        if byte is not None:
            self._pending.append(byte)
            return self._complete()
        if not 0 <= token_id < len(self._tokens):
            raise GgufError(f"{token_id} is not a token id; this vocabulary has {len(self._tokens)}.")
        text = self.finish()
        if token_id in self._silent:
            return text
        token = self._tokens[token_id]
        return text + (token if token_id in self._special else token.replace(SPACE, " "))

    @property
    def pending(self) -> bool:
        """Whether bytes are waiting for the rest of their character."""
        return bool(self._pending)

    def finish(self) -> str:
        """What is left at the end: incomplete bytes become replacement characters."""
        text = self._pending.decode(errors="replace")
        self._pending.clear()
        return text

    def _complete(self) -> str:
        """The leading characters of the pending bytes that no further byte can change."""
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":  # the rest may still arrive
                text = self._pending[: error.start].decode(errors="replace")
                del self._pending[: error.start]
                return text
            text = self._pending[: error.end].decode(errors="replace")
            del self._pending[: error.end]
            return text + (self._complete() if self._pending else "")
        self._pending.clear()
        return text
