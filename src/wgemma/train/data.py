"""Reads examples from a file: JSON lines (or one JSON list) become token ids and labels, using the model's template.

    {"messages": [{"role": "user", "content": …}, …], "tools": […]}     every reply is learnt; tools are optional
    {"prompt": "…", "completion": "…"}                                  one question, one reply; or lists of messages,
                                                                        only the completion's being learnt
    {"instruction": "…", "input": "…", "output": "…"}                   Alpaca; input may be empty or missing
    {"ids": […], "labels": […]}                                         ready-made; a label of −100 is not learnt

labels[t] is the token at t if the model must predict it, otherwise IGNORED. It learns only what it writes itself,
including the token that ends its turn. Nothing is dropped silently: a bad line raises an error with its number, unless
bad lines are skipped, and then they are counted.
"""

import hashlib
import os
import re
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, Literal, TypeAlias

from wgemma.checks import kind_of
from wgemma.errors import DataError, TemplateError
from wgemma.files.json_text import decoder, parse_json
from wgemma.files.reading import regular_file
from wgemma.text.template import lesson
from wgemma.text.tokenizer import Tokenizer

IGNORED = -100
SHOWN = 20  # bad lines listed in the error
MAX_BYTES = 1 << 30  # of a file
MAX_LINE = 16 << 20
MAX_LIST = 256 << 20  # of a file that is one JSON list, which is read as a whole
MAX_BAD = 100_000  # lines, so that a file of another kind does not fill the memory with complaints
_BETWEEN = re.compile(r"[ \t\r\n]*([],]?)[ \t\r\n]*")  # the items of a JSON list

Source: TypeAlias = str | os.PathLike[str] | bytes | Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids and their labels; `line` is the line in the file."""

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
    """Examples in line order, how many were truncated, and the lines that were skipped. `fingerprint` identifies the
    set."""

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
    """Turns records into examples: with a vocabulary, a prompt style, the most tokens per example, and the model's own
    system prompt for conversations without one."""

    tokenizer: Tokenizer
    style: Literal["small", "large"]
    limit: int
    system: str | None = None

    def example(self, record: Any, line: int) -> tuple[Example, bool]:
        """A record's example, and whether it was truncated; a bad record raises DataError with just the reason."""
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
                f"only the keys {', '.join(map(str, record)) or '(none)':.80}; an example needs messages, prompt and "
                "completion, instruction and output, or ids and labels"
            )
        if labels.count(IGNORED) == len(labels):
            raise DataError("nothing to learn: every label after the first is −100")
        cut = Example(ids[: self.limit], labels[: self.limit], line)
        if not cut.targets:
            raise DataError(f"no reply within the first {self.limit} of {len(ids)} tokens; allow more (--seq)")
        return cut, len(ids) > self.limit

    def _conversation(self, messages: Any, tools: Any, first: int = 0) -> tuple["array[int]", "array[int]"]:
        """Tokenises what the model writes and what it does not separately, as happens in a chat."""
        if isinstance(messages, list) and self.system and not _has_system(messages):
            messages, first = [{"role": "system", "content": self.system}, *messages], first + 1
        pieces = lesson(messages, tools=tools, size=self.style, first=first)
        if any(piece.media is not None for piece in pieces):
            raise DataError("contains an image or audio; training supports only text")
        if not any(piece.own and not piece.trusted for piece in pieces):
            raise DataError("no assistant reply to learn")
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
                raise DataError(f"{name} must be a list of whole numbers")
        if len(ids) != len(labels):
            raise DataError(f"{len(ids)} ids but {len(labels)} labels")
        if not ids:
            raise DataError("no ids")
        size = len(self.tokenizer)
        wrong = next(
            (i for i in chain(ids, (label for label in labels if label != IGNORED)) if not 0 <= i < size), None
        )
        if wrong is not None:
            told = f"id {wrong}" if abs(wrong) < 1 << 40 else "an id"
            raise DataError(f"{told} is not in the vocabulary, which has 0 to {size - 1}")
        return array("i", ids), array("i", [IGNORED, *labels[1:]])  # nothing predicts the first


def read_data(
    source: Source,
    tokenizer: Tokenizer,
    style: Literal["small", "large"],
    limit: int,
    *,
    system: str | None = None,
    skip_bad: bool = False,
) -> Data:
    """All examples in a file (a path, or its bytes) or a list of records, numbered from 1 like lines."""
    reader = Reader(tokenizer, style, limit, system)
    name = str(source) if isinstance(source, str | os.PathLike) else "the data"
    read = _Read()
    with closing(_rows(source)) as rows:
        for line, record in rows:
            read.take(reader, line, record)
    if read.bad and not skip_bad:
        raise DataError(_complaint(name, read.bad))
    if not read.examples:
        raise DataError(f"{name} contains no example{_left_out(read.bad)}. Write one JSON object per line.")
    return Data(name, read.examples, read.truncated, read.bad, read.digest.hexdigest())


@dataclass(slots=True)
class _Read:
    """The lines read so far."""

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
            if len(self.bad) > MAX_BAD:
                raise DataError(
                    f"more than {MAX_BAD:,} lines are bad, up to line {line}. Is it the right file?"
                ) from None
            return
        self.examples.append(example)
        self.truncated += cut
        self.digest.update(len(example).to_bytes(4, "little") + example.ids.tobytes() + example.labels.tobytes())


def _complaint(name: str, bad: list[BadLine]) -> str:
    lines = [f"  line {item.line}: {item.reason}" for item in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  and {len(bad) - SHOWN} more")
    count = "a bad line" if len(bad) == 1 else f"{len(bad)} bad lines"
    them = "it" if len(bad) == 1 else "them"
    return "\n".join([f"{name} has {count}:", *lines, f"Fix {them}, or skip {them} with --skip-bad (skip_bad=True)."])


def _left_out(bad: list[BadLine]) -> str:
    return f" but {len(bad)} bad lines, the first in line {bad[0].line}: {bad[0].reason}" if bad else ""


# -- records of each kind


def _messages(record: Mapping[str, Any], key: str, role: str) -> list[Any]:
    """A prompt or completion: text, which gets this role, or messages, unchanged."""
    value = record[key]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise DataError(f"{key} must be text or a list of messages")
    return value


def _alpaca(record: Mapping[str, Any]) -> list[Any]:
    parts = [record["instruction"], record.get("input") or "", record["output"]]
    if not all(isinstance(part, str) for part in parts):
        raise DataError("instruction, input and output must be text")
    instruction, given, output = parts
    asked = f"{instruction}\n\n{given}" if given.strip() else instruction
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]


def _has_system(messages: list[Any]) -> bool:
    first = messages[0] if messages else None
    return isinstance(first, Mapping) and first.get("role") in ("system", "developer")


# -- from bytes to records


def _rows(source: Source) -> Generator[tuple[int, Any], None, None]:
    """Line numbers and their parsed JSON, or a BadLine for invalid JSON."""
    if isinstance(source, str | os.PathLike):
        with regular_file(source, MAX_BYTES, DataError) as file:
            yield from _file_rows(file)
    elif isinstance(source, bytes | bytearray | memoryview):
        if len(source) > MAX_BYTES:
            raise DataError(f"the data have {len(source):,} bytes; the limit is {MAX_BYTES:,}.")
        yield from _file_rows(BytesIO(source))
    elif isinstance(source, Iterable) and not isinstance(source, Mapping):
        yield from enumerate(source, 1)
    else:
        raise DataError(f"{kind_of(source)} is not a set of examples. Pass a file's path, or a list of records.")


def _file_rows(file: BinaryIO) -> Generator[tuple[int, Any], None, None]:
    """A file that starts with a bracket is one list; any other has an object per line."""
    lines = _lines(file)
    for line, data in lines:
        if line == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if data.strip():
            if data.lstrip().startswith(b"["):
                data += file.read(max(MAX_LIST + 1 - len(data), 0))
                if len(data) > MAX_LIST:
                    raise DataError(
                        f"the data are a list of more than {MAX_LIST >> 20} MiB. Write one object per line instead."
                    )
                yield from _list_rows(data, line)
            else:
                yield line, _parsed(data, line)
                break
    for line, data in lines:
        if data.strip():
            yield line, _parsed(data, line)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Line numbers and lines; of one that is too long just the start."""
    read, line = 0, 0
    while (data := file.readline(MAX_LINE + 1)) and read <= MAX_BYTES:
        line += 1
        yield line, data
        read += len(data)
        while len(data) > MAX_LINE and not data.endswith(b"\n") and read <= MAX_BYTES:
            data = file.readline(MAX_LINE + 1)
            read += len(data)
    if data:
        raise DataError(f"the data grew beyond the limit of {MAX_BYTES:,} bytes while they were read.")


def _parsed(data: bytes, line: int) -> Any:
    if len(data) > MAX_LINE:
        return BadLine(line, f"longer than {MAX_LINE >> 20} MiB")
    try:
        return parse_json(data)
    except ValueError as error:
        return BadLine(line, str(error))


def _list_rows(data: bytes, line: int) -> Generator[tuple[int, Any], None, None]:
    """The items of a JSON list, parsed one at a time, so that only the text is in memory."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield line, BadLine(line, "the list is not UTF-8")
        return
    decode, at, seen, items = decoder().raw_decode, text.index("[") + 1, 0, 0
    while found := _BETWEEN.match(text, at):
        at = found.end()
        line, seen = line + text.count("\n", seen, at), at
        if found[1] == "]":
            if at < len(text):
                yield line, BadLine(line, "something follows the end of the list")
            return
        if (found[1] == ",") != (items > 0):
            yield line, BadLine(line, "a comma or the end of the list is missing, or there is an extra comma")
            return
        try:
            record, at = decode(text, at)
        except (ValueError, RecursionError):
            yield line, BadLine(line, "an item of the list is not JSON")
            return
        yield line, record
        items += 1
