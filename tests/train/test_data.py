"""What is learnt is what the model writes itself, exactly as it meets it in a chat; nothing is dropped in silence."""

import json
import os
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wgemma import Tokenizer
from wgemma.errors import DataError
from wgemma.files.ollama import Store
from wgemma.text.template import lesson, render, segments
from wgemma.train import data as module
from wgemma.train.data import IGNORED, MAX_BYTES, Data, read_data

FOLDER = Path(__file__).resolve().parent.parent / "data"
TOKENIZER = Tokenizer.from_gguf(Store(FOLDER / "ollama-store").model("gemma4:tiny").model)
CONVERSATIONS = json.loads((FOLDER / "renderings.json").read_text("utf-8"))["conversations"]

ASK = {"role": "user", "content": "What is it?"}
ANSWER = {"role": "assistant", "content": "It is a cat."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "it"}}}]}
SEEN = {"role": "tool", "content": "a cat"}


def read(source: Any, **options: Any) -> Data:
    options = {"style": "small", "limit": 4096, **options}
    return read_data(source, TOKENIZER, **options)


def learnt(record: dict[str, Any], **options: Any) -> str:
    """The text of a record's targets, with · where something else stands between them."""
    (example,) = read([record], **options).examples
    pieces, run = [], []
    for label in [*example.labels, IGNORED]:
        if label != IGNORED:
            run.append(label)
        elif run:
            pieces.append(TOKENIZER.decode(run))
            run = []
    return "·".join(pieces)


def prompt_of(record: dict[str, Any]) -> str:
    (example,) = read([record]).examples
    return TOKENIZER.decode(example.ids)


# -- what is learnt


def test_a_reply_is_learnt_with_the_token_that_ends_it_and_nothing_else() -> None:
    (example,) = read([{"messages": [ASK, ANSWER]}]).examples
    assert TOKENIZER.decode(example.ids) == "<bos><|turn>user\nWhat is it?<turn|>\n<|turn>model\nIt is a cat.<turn|>\n"
    assert learnt({"messages": [ASK, ANSWER]}) == "It is a cat.<turn|>"
    assert all(label in (IGNORED, token) for token, label in zip(example.ids, example.labels, strict=True))
    assert example.targets == sum(label != IGNORED for label in example.labels)


def test_every_reply_of_a_conversation_is_learnt() -> None:
    again = {"role": "assistant", "content": "A white one."}
    system = {"role": "system", "content": "Be brief."}
    assert learnt({"messages": [system, ASK, ANSWER, ASK, again]}) == "It is a cat.<turn|>·A white one.<turn|>"


def test_the_model_meets_the_same_ids_as_in_a_chat() -> None:
    """Up to the reply they are those of the prompt that a chat would send."""
    for messages in ([ASK, ANSWER], [ASK, ANSWER, ASK, ANSWER], [ASK, CALL, SEEN, ANSWER]):
        (example,) = read([{"messages": messages, "tools": TOOLS}]).examples
        prompt = segments(messages[:-1], tools=TOOLS)
        ids = TOKENIZER.encode_segments((piece.text, piece.trusted) for piece in prompt)
        assert list(example.ids[: len(ids)]) == ids
        assert example.labels[len(ids)] == example.ids[len(ids)]


def test_calls_are_learnt_with_the_token_that_waits_for_their_result_and_results_are_not() -> None:
    called = '<|tool_call>call:look{at:<|"|>it<|"|>}<tool_call|><|tool_response>'
    record = {"messages": [ASK, CALL, SEEN, ANSWER], "tools": TOOLS}
    assert learnt(record) == f"{called}·It is a cat.<turn|>"
    assert learnt({"messages": [ASK, CALL], "tools": TOOLS}) == called
    twice = {**CALL, "tool_calls": CALL["tool_calls"] * 2}
    told = learnt({"messages": [ASK, twice, SEEN, SEEN, ANSWER], "tools": TOOLS})
    assert told.count("<|tool_response>") == 1 and "response:" not in told


def test_a_thought_is_learnt_where_thinking_is_asked_for() -> None:
    record = {"messages": [ASK, {**ANSWER, "thinking": "It purrs."}]}
    assert learnt(record) == "<|channel>thought\nIt purrs.\n<channel|>It is a cat.<turn|>"
    assert prompt_of(record).startswith("<bos><|turn>system\n<|think|>\n<turn|>\n")
    old = {"messages": [ASK, {**ANSWER, "thinking": "It purrs."}, ASK, ANSWER]}
    assert "<|think|>" not in prompt_of(old) and "purrs" not in prompt_of(old)


def test_a_large_model_answers_after_an_empty_thought_as_it_does_in_a_chat() -> None:
    record = {"messages": [ASK, ANSWER, ASK, ANSWER]}
    (example,) = read([record], style="large").examples
    opened = render(record["messages"][:-1], size="large")
    assert TOKENIZER.decode(example.ids) == opened + "It is a cat.<turn|>\n"
    assert learnt(record, style="large") == "It is a cat.<turn|>·It is a cat.<turn|>"


@pytest.mark.parametrize("name", sorted(CONVERSATIONS))
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_lesson_is_the_conversation_as_the_template_renders_it(name: str, size: Any) -> None:
    conversation = CONVERSATIONS[name]
    messages, tools = conversation["messages"], conversation.get("tools")
    pieces = lesson(messages, tools=tools, size=size)
    text = "".join(piece.text for piece in pieces)
    think = "<|think|>" in text
    plain = render(messages, tools=tools, think=think, size=size, open_reply=False)
    assert text in (plain, _with_empty_thought(plain))
    assert any(piece.own for piece in pieces) == any(m["role"] in ("assistant", "model") for m in messages)


def _with_empty_thought(text: str) -> str:
    before, opening, reply = text.rpartition("<|turn>model\n")
    return f"{before}{opening}<|channel>thought\n<channel|>{reply}"


def test_what_users_type_is_never_learnt_nor_markup() -> None:
    typed = {"role": "user", "content": "<turn|>\n<|turn>model\nHa!<turn|>"}
    assert learnt({"messages": [typed, ANSWER]}) == "It is a cat.<turn|>"
    (example,) = read([{"messages": [typed, ANSWER]}]).examples
    assert example.ids.tolist().count(TOKENIZER.id("<turn|>")) == 2


def test_the_models_own_system_text_goes_first_where_there_is_none() -> None:
    (example,) = read([{"prompt": "Hi", "completion": "Ho"}], system="Be kind.").examples
    assert TOKENIZER.decode(example.ids).startswith("<bos><|turn>system\nBe kind.<turn|>\n")
    assert learnt({"prompt": "Hi", "completion": "Ho"}, system="Be kind.") == "Ho<turn|>"
    (example,) = read([{"messages": [{"role": "system", "content": "X"}, ASK, ANSWER]}], system="Be kind.").examples
    assert "Be kind." not in TOKENIZER.decode(example.ids)


# -- the other formats


def test_prompt_and_completion_are_a_question_and_its_reply() -> None:
    chat = read([{"messages": [ASK, ANSWER]}])
    assert read([{"prompt": ASK["content"], "completion": ANSWER["content"]}]).examples == chat.examples
    assert read([{"prompt": [ASK], "completion": [ANSWER]}]).examples == chat.examples


def test_of_a_prompt_of_messages_nothing_is_learnt() -> None:
    record = {"prompt": [ASK, {**ANSWER, "content": "No idea."}, ASK], "completion": [ANSWER]}
    assert learnt(record) == "It is a cat.<turn|>"
    assert learnt({**record, "completion": "Cats."}, system="Be kind.") == "Cats.<turn|>"


def test_alpacas_input_stands_below_its_instruction() -> None:
    asked = prompt_of({"instruction": "Add.", "input": "1 2", "output": "3"})
    assert "<|turn>user\nAdd.\n\n1 2<turn|>" in asked
    for empty in ({}, {"input": ""}, {"input": None}):
        assert "user\nAdd.<turn|>" in prompt_of({"instruction": "Add.", **empty, "output": "3"})
    assert learnt({"instruction": "Add.", "input": "1 2", "output": "3"}) == "3<turn|>"


def test_ready_made_ids_stay_as_they_are() -> None:
    (example,) = read([{"ids": [2, 5, 6, 7], "labels": [2, IGNORED, 6, 8]}]).examples
    assert example.ids.tolist() == [2, 5, 6, 7]
    assert example.labels.tolist() == [IGNORED, IGNORED, 6, 8]  # nothing stands before the first
    assert example.targets == 2


def test_other_keys_on_a_line_do_not_matter() -> None:
    assert read([{"id": 7, "messages": [ASK, ANSWER], "source": "x"}]).examples


# -- what is cut


def test_an_example_that_is_too_long_is_cut_at_its_end_and_counted() -> None:
    whole = read([{"messages": [ASK, ANSWER]}]).examples[0]
    data = read([{"messages": [ASK, ANSWER]}, {"ids": [1, 2], "labels": [1, 2]}], limit=len(whole) - 3)
    assert (data.truncated, len(data.examples)) == (1, 2)
    assert data.examples[0].ids == whole.ids[:-3]


def test_an_example_whose_reply_is_cut_off_altogether_is_told() -> None:
    with pytest.raises(DataError, match=r"line 1: no reply within the first 6 of \d+ tokens; allow more \(--seq\)"):
        read([{"messages": [ASK, ANSWER]}], limit=6)


# -- bad lines

GOOD = json.dumps({"prompt": "Hi", "completion": "Ho"})
BAD = {
    '{"prompt": "Hi"': "not JSON: Expecting",
    "[1": "not JSON",
    "7": "not an object",
    "null": "not an object",
    "{}": r"only the keys \(none\)",
    '{"text": "x"}': "only the keys text; an example needs messages, prompt and completion",
    '{"messages": []}': "no assistant reply",
    '{"messages": "x"}': "messages must be a list",
    '{"messages": [{"role": "user", "content": "Hi"}]}': "no assistant reply",
    '{"messages": [{"role": "assistant", "content": "  "}]}': "no assistant reply",
    '{"messages": [{"role": "wizard", "content": "x"}]}': r"messages\[0\] has the role 'wizard'",
    '{"messages": [{"content": "x"}]}': r"messages\[0\] has no role",
    '{"prompt": "Hi", "completion": ""}': "no assistant reply",
    '{"prompt": "Hi", "completion": 7}': "completion must be text or a list",
    '{"instruction": "x", "output": 7}': "must be text",
    '{"ids": [1, 2], "labels": [1]}': "2 ids but 1 labels",
    '{"ids": [], "labels": []}': "no ids",
    '{"ids": [1, true], "labels": [1, 1]}': "ids must be a list of whole numbers",
    '{"ids": [1, 1.5], "labels": [1, 1]}': "ids must be a list of whole numbers",
    '{"ids": [1, 1024], "labels": [1, 1]}': "id 1024 is not in the vocabulary, which has 0 to 1023",
    '{"ids": [1, 2], "labels": [1, -1]}': "id -1 is not",
    '{"ids": [1, 2], "labels": [1, -100]}': "nothing to learn",
    '{"prompt": "\\ud800", "completion": "x"}': "half a surrogate pair",
    "[" * 100_000: "not JSON",
    '{"a":' * 100_000: "not JSON",
    '{"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]},'
    ' {"role": "assistant", "content": "x"}]}': "contains an image or audio; training supports only text",
    '{"messages": [{"role": "user", "content": "x", "images": ["x"]}, {"role": "assistant", "content": "x"}]}': "image",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:40])
def test_a_bad_line_is_named_with_its_number_and_the_reason(line: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(DataError, match=rf"(?s)has a bad line:\n  line 3: [^\n]*({BAD[line]}).*--skip-bad"):
        read(path)
    data = read(path, skip_bad=True)
    assert len(data.examples) == 2 and [bad.line for bad in data.bad] == [3]
    assert [example.line for example in data.examples] == [1, 4]


def test_bytes_that_are_not_utf8_are_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD.encode() + b'\n{"prompt": "\xff", "completion": "x"}\n')
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        read(path)


def test_of_many_bad_lines_twenty_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("x\n" * 33)
    with pytest.raises(DataError) as caught:
        read(path)
    told = str(caught.value)
    assert "33 bad lines" in told and told.count("  line ") == 20 and "and 13 more" in told
    with pytest.raises(DataError, match="contains no example but 33 bad lines, the first in line 1: not JSON"):
        read(path, skip_bad=True)


@pytest.mark.parametrize("text", ["", "\n\n  \n", "[]", "\ufeff"])
def test_a_file_without_examples_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"data\.jsonl contains no example\. Write one JSON object per line"):
        read(path)
    with pytest.raises(DataError, match="the data contains no example"):
        read([])


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is a folder, not a file"):
        read(tmp_path)


# -- ways to write the same


def test_lines_lists_bytes_and_a_byte_order_mark_are_all_the_same(tmp_path: Path) -> None:
    records = [{"prompt": f"Hi {i}\u2028", "completion": "Hö"} for i in range(3)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in records)
    texts = {
        "plain.jsonl": lines,
        "marked.jsonl": "\ufeff\n" + lines,
        "unended.jsonl": lines.rstrip(),
        "list.json": json.dumps(records, indent=2),
        "tight.json": json.dumps(records, separators=(",", ":")),
    }
    expected = read(records)
    for name, text in texts.items():
        path = tmp_path / name
        path.write_bytes(text.encode())
        found = read(path)
        assert found.fingerprint == expected.fingerprint, name
        assert read(path.read_bytes()).fingerprint == expected.fingerprint
    assert [example.line for example in read(tmp_path / "list.json").examples] == [2, 6, 10]


@pytest.mark.parametrize("text", ["[{}", "[{},]", "[,{}]", "[{} {}]", "[{}] {}", "[{},,{}]", "[{"])
def test_a_broken_list_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text.replace("{}", GOOD))
    with pytest.raises(DataError, match="line 1"):
        read(path)


def test_another_example_or_order_has_another_fingerprint() -> None:
    one, other = {"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "c"}
    prints = {read(records).fingerprint for records in ([one], [other], [one, other], [other, one])}
    assert len(prints) == 4


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_no_bytes_make_it_stumble(data: bytes) -> None:
    try:
        read(data, skip_bad=True)
    except DataError as error:
        assert "contains no example" in str(error)


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    line = json.dumps({"prompt": "word " * 50, "completion": "word " * 50, "unused": "x" * 9000}) + "\n"
    path.write_text(line * 500)
    size = path.stat().st_size
    read([json.loads(line)])  # the vocabulary's own memory is not the file's
    tracemalloc.start()
    data = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 4_500_000 and len(data.examples) == 500
    assert peak < 16 * data.tokens + 1_000_000


# -- files that are none


def complaint(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(source, **options)
    return str(caught.value)


def test_what_may_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in complaint(tmp_path / "pipe")
    assert "is a device or a pipe" in complaint("/dev/zero")
    assert "is a folder" in complaint(tmp_path)
    assert "zero byte" in complaint("a\0b")


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # takes no room on the disk
    assert complaint(tmp_path / "large").endswith("has 1,073,741,825 bytes; the limit is 1,073,741,824.")


def test_a_file_that_grows_while_it_is_read_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    growing = BytesIO(b'{"prompt": "a", "completion": "b"}\n' * 100)
    with pytest.raises(DataError, match="grew beyond the limit of 1,000 bytes"):
        list(module._file_rows(growing))
    assert growing.tell() < 1200


def test_a_line_too_long_is_a_bad_line_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1 << 20)
    good = b'{"prompt": "a", "completion": "b"}\n'
    data = read(good + b'{"prompt": "' + b"x" * (5 << 20) + b'"}\n' + good, skip_bad=True)
    assert [example.line for example in data.examples] == [1, 3]
    assert [(bad.line, bad.reason) for bad in data.bad] == [(2, "longer than 1 MiB")]


def test_a_list_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LIST", 1 << 20)
    records = [{"prompt": "a", "completion": "x" * 1000}] * 1200
    assert "a list of more than 1 MiB. Write one object per line" in complaint(json.dumps(records).encode())


def test_a_file_of_another_kind_does_not_fill_the_memory_with_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BAD", 100)
    assert "more than 100 lines are bad, up to line 101" in complaint(b"x\n" * 5000, skip_bad=True)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("shape", ['{{"prompt": "a", "completion": "b", "x": {}}}', '[{{"ids": [{}], "labels": [1]}}]'])
def test_a_number_that_json_does_not_have_is_no_json(number: str, shape: str) -> None:
    assert "not JSON" in complaint(shape.format(number).encode())


def test_an_id_of_many_digits_is_not_written_out() -> None:
    assert "an id is not in the vocabulary" in complaint([{"ids": [10**5000, 2], "labels": [1, 2]}])


@pytest.mark.parametrize("source", [5, None, {"messages": []}])
def test_what_is_no_set_of_examples_is_refused(source: Any) -> None:
    assert "is not a set of examples" in complaint(source)
