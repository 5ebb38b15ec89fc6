"""How values are written: strings, keys and what stands between them. This is JSON as `json.dumps` writes it."""

import json
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.characters import JsonText, PlainText
from wgemma.text.grammar.expressions import Node, Pool


class JsonSpelling:
    """Spaces after commas and colons, with or without `ensure_ascii`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.text: PlainText = JsonText(pool)
        self.comma = pool.words([b", "])
        self.key_text = self.text.texts  # what a key that no schema names may be
        self._quote = pool.words([b'"'])
        self._key_end = pool.words([b'": '])

    def string(self, content: Node) -> Node:
        return self.pool.join(self._quote, self.pool.group(content), self._quote)

    def key(self, content: Node) -> Node:
        return self.pool.join(self._quote, self.pool.group(content), self._key_end)

    def keys(self, name: str) -> list[bytes]:
        """The ways to write the key `name` and its colon."""
        return [text + b": " for text in _dumped(name)]

    def literals(self, values: list[Any]) -> Node:
        """Any of these values."""
        return self.pool.words([text for value in values for text in _dumped(value)])


def _dumped(value: Any) -> list[bytes]:
    """A value with and without `ensure_ascii`."""
    try:
        texts = [json.dumps(value, allow_nan=False).encode()]
        if isinstance(value, float) and value.is_integer():
            texts.append(json.dumps(int(value)).encode())
        return [*texts, _unescaped(value)] if b"\\u" in texts[0] else texts
    except (ValueError, TypeError, RecursionError):
        raise GrammarError("a schema has a value that JSON cannot write: not finite, not JSON, or too deep.") from None


def _unescaped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass")
