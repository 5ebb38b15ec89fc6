"""Examples from a file: lines of JSON (or one JSON list) become token ids and labels, by the model's own template.

    {"messages": [{"role": "user", "content": …}, …], "tools": […]}     every reply is learnt; tools may be left out
    {"prompt": "…", "completion": "…"}                                  one question, one reply; or lists of messages,
                                                                        of which only the completion's are learnt
    {"instruction": "…", "input": "…", "output": "…"}                   Alpaca; input may be empty or left out
    {"ids": […], "labels": […]}                                         ready-made; a label of −100 is not learnt

labels[t] is the token at t where the model is to predict it from those before, and IGNORED elsewhere. What is learnt is
what the model writes itself, with the token that ends its turn. Nothing is dropped in silence: a bad line stops
everything with its number, unless bad lines are to be skipped, and then they are counted.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from wgemma.errors import DataError, TemplateError
from wgemma.text.template import lesson
from wgemma.text.tokenizer import Tokenizer

IGNORED = -100
SHOWN = 20  # bad lines named one by one
_BETWEEN = re.compile(r"[ \t\r\n]*([],]?)[ \t\r\n]*")  # the items of a JSON list

Source: TypeAlias = str | Path | bytes | Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids and what is to be predicted of them; `line` is where it stood."""

    ids: "array[int]"
    labels: "array[int]"
    line: int = 0

    @property
    def targets(self) -> int:
        return len(self.labels) - self.labels.count(IGNORED)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class BadLine:
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Data:
    """Examples in the order of their lines, how many had to be cut, and the lines that were left out. `fingerprint`
    tells one set from another."""

    name: str
    examples: list[Example]
    truncated: int
    bad: list[BadLine]
    fingerprint: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.examples))

    @property
    def targets(self) -> int:
        return sum(example.targets for example in self.examples)


@dataclass(frozen=True, slots=True)
class Reader:
    """How records become examples: a vocabulary, a prompt style, the model's own system text where a conversation has
    none, and the most tokens of an example."""

    tokenizer: Tokenizer
    style: Literal["small", "large"]
    limit: int
    system: str | None = None

    def example(self, record: Any, line: int) -> tuple[Example, bool]:
        """A record's example, and whether it had to be cut; a bad one raises DataError with the reason alone."""
        if not isinstance(record, Mapping):
            raise DataError("not an object")
        if "messages" in record:
            ids, labels = self._conversation(record["messages"], record.get("tools"))
        elif "prompt" in record and "completion" in record:
            prompt = _messages(record, "prompt", "user")
            messages = prompt + _messages(record, "completion", "assistant")
            ids, labels = self._conversation(messages, record.get("tools"), len(prompt))
        elif "instruction" in record and "output" in record:
            ids, labels = self._conversation(_alpaca(record), None)
        elif "ids" in record and "labels" in record:
            ids, labels = self._ready_made(record["ids"], record["labels"])
        else:
            raise DataError(
                f"only the keys {', '.join(map(str, record)) or '(none)':.80}; an example has messages, prompt and "
                "completion, instruction and output, or ids and labels"
            )
        if labels.count(IGNORED) == len(labels):
            raise DataError("nothing to learn: every label after the first is −100")
        cut = Example(ids[: self.limit], labels[: self.limit], line)
        if not cut.targets:
            raise DataError(f"no reply within the first {self.limit} of {len(ids)} tokens; allow more (--seq)")
        return cut, len(ids) > self.limit

    def _conversation(self, messages: Any, tools: Any, first: int = 0) -> tuple["array[int]", "array[int]"]:
        """Runs of what the model writes and what it does not are tokenised one by one: so it meets them in a chat."""
        if isinstance(messages, list) and self.system and not _has_system(messages):
            messages, first = [{"role": "system", "content": self.system}, *messages], first + 1
        pieces = lesson(messages, tools=tools, size=self.style, first=first)
        if any(piece.media is not None for piece in pieces):
            raise DataError("a picture or a sound; only text can be trained on")
        if not any(piece.own and not piece.trusted for piece in pieces):
            raise DataError("no reply of the assistant's to learn")
        ids, labels = array("i"), array("i")
        run: list[tuple[str, bool]] = []
        for i, piece in enumerate(pieces):
            run.append((piece.text, piece.trusted))
            if i + 1 == len(pieces) or pieces[i + 1].own != piece.own:
                found = array("i", self.tokenizer.encode_segments(run))
                ids += found
                labels += found if piece.own else array("i", [IGNORED]) * len(found)
                run.clear()
        return ids, labels

    def _ready_made(self, ids: Any, labels: Any) -> tuple["array[int]", "array[int]"]:
        for name, values in (("ids", ids), ("labels", labels)):
            if not isinstance(values, list) or not all(type(value) is int for value in values):
                raise DataError(f"{name} that are not a list of whole numbers")
        if len(ids) != len(labels):
            raise DataError(f"{len(ids)} ids but {len(labels)} labels")
        if not ids:
            raise DataError("no ids")
        size = len(self.tokenizer)
        wrong = next(
            (i for i in chain(ids, (label for label in labels if label != IGNORED)) if not 0 <= i < size), None
        )
        if wrong is not None:
            raise DataError(f"the id {wrong}; this vocabulary has 0 to {size - 1}")
        return array("i", ids), array("i", [IGNORED, *labels[1:]])  # the first is predicted from nothing


def read_data(
    source: Source,
    tokenizer: Tokenizer,
    style: Literal["small", "large"],
    limit: int,
    *,
    system: str | None = None,
    skip_bad: bool = False,
) -> Data:
    """All examples of a file (a path, or its bytes) or of a list of records, which count from 1 as lines do."""
    reader = Reader(tokenizer, style, limit, system)
    name = str(source) if isinstance(source, str | Path) else "the data"
    read = _Read()
    with closing(_rows(source)) as rows:
        for line, record in rows:
            read.take(reader, line, record)
    if read.bad and not skip_bad:
        raise DataError(_complaint(name, read.bad))
    if not read.examples:
        raise DataError(f"{name} holds no example{_left_out(read.bad)}. Write one JSON object per line.")
    return Data(name, read.examples, read.truncated, read.bad, read.digest.hexdigest())


@dataclass(slots=True)
class _Read:
    """What has come of the lines so far."""

    examples: list[Example] = field(default_factory=list)
    truncated: int = 0
    bad: list[BadLine] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def take(self, reader: Reader, line: int, record: Any) -> None:
        try:
            if isinstance(record, BadLine):
                raise DataError(record.reason)
            example, cut = reader.example(record, line)
        except (DataError, TemplateError) as error:
            self.bad.append(BadLine(line, str(error).rstrip(".")))
            return
        self.examples.append(example)
        self.truncated += cut
        self.digest.update(len(example).to_bytes(4, "little") + example.ids.tobytes() + example.labels.tobytes())


def _complaint(name: str, bad: list[BadLine]) -> str:
    lines = [f"  line {item.line}: {item.reason}" for item in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  and {len(bad) - SHOWN} more")
    count = "a bad line" if len(bad) == 1 else f"{len(bad)} bad lines"
    return "\n".join([f"{name} has {count}:", *lines, "Mend them, or leave them out with --skip-bad (skip_bad=True)."])


def _left_out(bad: list[BadLine]) -> str:
    return f" but {len(bad)} bad lines, the first in line {bad[0].line}: {bad[0].reason}" if bad else ""


# -- records of each kind


def _messages(record: Mapping[str, Any], key: str, role: str) -> list[Any]:
    """A prompt or a completion: a text of that role, or messages as they are."""
    value = record[key]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise DataError(f"a {key} that is neither a text nor a list of messages")
    return value


def _alpaca(record: Mapping[str, Any]) -> list[Any]:
    parts = [record["instruction"], record.get("input") or "", record["output"]]
    if not all(isinstance(part, str) for part in parts):
        raise DataError("an instruction, input or output that is not a text")
    instruction, given, output = parts
    asked = f"{instruction}\n\n{given}" if given.strip() else instruction
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]


def _has_system(messages: list[Any]) -> bool:
    first = messages[0] if messages else None
    return isinstance(first, Mapping) and first.get("role") in ("system", "developer")


# -- from bytes to records


def _rows(source: Source) -> Generator[tuple[int, Any], None, None]:
    """Line numbers and what JSON stands there; in place of what is no JSON, a BadLine."""
    if isinstance(source, str | Path):
        try:
            with Path(source).expanduser().open("rb") as file:
                yield from _file_rows(file)
        except OSError as error:
            raise DataError(f"{source} cannot be read: {error.strerror or error}.") from None
    elif isinstance(source, bytes):
        from io import BytesIO

        yield from _file_rows(BytesIO(source))
    else:
        yield from enumerate(source, 1)


def _file_rows(file: BinaryIO) -> Generator[tuple[int, Any], None, None]:
    """A file whose first letter is a bracket is one list; any other has an object per line."""
    lines = enumerate(iter(file.readline, b""), 1)
    for line, data in lines:
        if line == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if data.strip():
            if data.lstrip().startswith(b"["):
                yield from _list_rows(data + file.read(), line)
            else:
                yield line, _parsed(data, line)
                break
    for line, data in lines:
        if data.strip():
            yield line, _parsed(data, line)


def _parsed(data: bytes, line: int) -> Any:
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError:
        return BadLine(line, "not UTF-8")
    except (ValueError, RecursionError) as error:
        reason = f": {error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        return BadLine(line, f"not JSON{reason}")


def _list_rows(data: bytes, line: int) -> Generator[tuple[int, Any], None, None]:
    """The items of a JSON list, one at a time, so that only the text of it all is held."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield line, BadLine(line, "a list that is not UTF-8")
        return
    decode, at, seen, items = json.JSONDecoder().raw_decode, text.index("[") + 1, 0, 0
    while found := _BETWEEN.match(text, at):
        at = found.end()
        line, seen = line + text.count("\n", seen, at), at
        if found[1] == "]":
            if at < len(text):
                yield line, BadLine(line, "something follows the end of the list")
            return
        if (found[1] == ",") != (items > 0):
            yield line, BadLine(line, "a comma or the end of the list is missing, or a comma is too much")
            return
        try:
            record, at = decode(text, at)
        except (ValueError, RecursionError):
            yield line, BadLine(line, "an item of the list that is not JSON")
            return
        yield line, record
        items += 1
