"""`wgemma run`: one answer, or a chat in a real (pseudo-)terminal, with a tiny random model."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gguf_parts import write_parts
from pseudo_terminal import PATIENCE, Terminal
from range_server import good, send, serve
from wgemma.api import Answer as WholeText
from wgemma.api import Part, Usage
from wgemma.cli import main
from wgemma.cli.chat_answer import Answer, Stop, answer
from wgemma.cli.chat_commands import Line, divide, gather, split_command
from wgemma.cli.chat_conversation import NO_TOOLS, ChatSettings, Conversation
from wgemma.cli.chat_model import describe_plan
from wgemma.cli.chat_render import DIM, PLAIN, Painter, describe, remark, safe, statistics
from wgemma.engine import opening
from wgemma.engine.endings import Ending
from wgemma.engine.opening import Plan
from wgemma.errors import DeviceError, Error, SessionError, SettingsError
from wgemma.files.gguf import Gguf
from wgemma.gpu.native import NativeDevice
from wgemma.model.config import Config
from wgemma.text.reply import ToolCall
from wgemma.text.template import render

TINY = "gemma4:tiny"
SHORT = ("--device", "reference", "--seed", "1", "--max-tokens", "8")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return data / "ollama-store"


def wgemma(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "wgemma", "run", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60)


# -- one prompt, one answer


def test_a_prompt_is_answered_on_standard_output() -> None:
    done = wgemma(TINY, "hello", "--seed", "1", "--max-tokens", "8", "--verbose")
    assert done.returncode == 0
    assert done.stdout.strip() and done.stdout.endswith(b"\n")
    told = done.stderr.decode()
    assert "gemma4:tiny on " in told and "re-used" not in told
    assert all(fact in told for fact in ("load  ", "prompt  ", "generated    8 tokens", "first token  "))
    assert "Traceback" not in told


def test_the_same_seed_gives_the_same_answer_and_options_may_stand_anywhere() -> None:
    one = wgemma(TINY, "hello", *SHORT)
    other = wgemma("--device", "reference", "--seed", "1", TINY, "--max-tokens", "8", "hello")
    assert (one.returncode, other.returncode) == (0, 0)
    assert one.stdout == other.stdout
    assert wgemma(TINY, *SHORT, stdin=b"hello\n").stdout == one.stdout


def test_a_prompt_and_a_pipe_are_joined_by_an_empty_line(asked: list[Any]) -> None:
    done = run_here(["run", TINY, "Translate this:", *SHORT], b"Guten Tag\n")
    assert done == 0
    assert asked[-1] == [{"role": "user", "content": "Translate this:\n\nGuten Tag"}]


def test_a_system_text_comes_first(asked: list[Any]) -> None:
    assert run_here(["run", TINY, "--system", "Be brief.", *SHORT], b"Hello") == 0
    assert asked[-1][0] == {"role": "system", "content": "Be brief."}


def test_the_messages_stored_with_a_model_start_the_chat(asked: list[Any], pirate: Path) -> None:
    """The model puts them there itself."""
    assert run_here(["run", "pirate", "Who?", *SHORT]) == 0
    assert asked[-1] == [{"role": "user", "content": "Who?"}]


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "my cat.png"
    Image.new("RGB", (60, 40), "red").save(path)
    return path


def test_pictures_and_sounds_come_before_the_prompt(asked: list[Any], cat: Path, tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    sound.write_bytes(b"RIFF....WAVE")
    options = ["--image", str(cat), "--audio", str(sound), "--image", str(cat), "--budget", "70"]
    assert run_here(["run", TINY, "What is this?", *options, *SHORT]) == 0
    parts = asked[-1][0]["content"]
    assert [part["type"] for part in parts] == ["image", "image", "audio", "text"]
    assert parts[0]["budget"] == 70 and parts[0]["image"] == cat.read_bytes()
    assert parts[-1]["text"] == "What is this?"
    assert run_here(["run", TINY, "--image", str(cat), *SHORT], b"") == 0
    assert [part["type"] for part in asked[-1][0]["content"]] == ["image"]


def test_a_picture_named_in_the_prompt_is_attached(
    asked: list[Any], cat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(["run", TINY, f"What is in '{cat}' here?", *SHORT], b"see /nowhere/else.png") == 0
    image, text = asked[-1][0]["content"]
    assert image["image"] == cat.read_bytes()
    assert text["text"] == "What is in here?\n\nsee /nowhere/else.png"  # a pipe is only text
    assert f"Attached: {cat}." in capsys.readouterr().err
    cat = cat.rename(cat.with_name("cat.png"))
    assert run_here(["run", str(cat), "--device", "reference"]) == 0
    assert [part["type"] for part in asked[-1][0]["content"]] == ["image"]
    assert run_here(["run", "What is in ./nope.png?"]) == 1
    assert "wgemma: ./nope.png: no such file." in capsys.readouterr().err


def test_a_picture_is_seen(cat: Path) -> None:
    without = json.loads(wgemma(TINY, "hello", "--json", *SHORT).stdout)
    seen = wgemma(TINY, "hello", "--image", str(cat), "--budget", "70", "--json", *SHORT)
    assert (seen.returncode, seen.stderr) == (0, b"")
    rows = json.loads(seen.stdout)["usage"]["prompt"] - without["usage"]["prompt"] - 2
    assert rows == 60  # ten across, six down


def test_json_is_one_document_and_nothing_else() -> None:
    done = wgemma(TINY, "hello", "--json", "--think", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    record = json.loads(done.stdout)
    assert record.keys() >= {"text", "thinking", "tool_calls", "finish_reason", "usage", "timings"}
    assert record["usage"]["generated"] == 8 and record["usage"]["dropped"] == 0
    assert record["finish_reason"] == "length"
    assert record["timings"]["load_seconds"] > 0
    assert record["device"] == "NumPy (reference)"


def test_control_characters_of_the_model_do_not_reach_the_terminal() -> None:
    said = json.loads(wgemma(TINY, "hello", "--json", "--think", *SHORT).stdout)["text"]
    shown = wgemma(TINY, "hello", "--think", *SHORT).stdout.decode()
    assert "\x14" in said
    assert "\x14" not in shown
    assert "\\x14" in shown


@pytest.mark.parametrize(
    ("options", "think"),
    [
        ([], False),
        (["--think"], True),
        (["--think=false"], False),
        (["--think", "low"], "low"),
        (["--thinking-budget", "9"], True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_thinking_is_asked_for_by_level(options: list[str], think: bool | str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def chat(self: Any, messages: list[Any], **how: Any) -> Iterator[Part]:
        seen.append((messages[-1]["content"], how["think"]))
        yield Part("content", finish_reason="stop", usage=Usage(1, 0, 1))

    monkeypatch.setattr("wgemma.api.Model.chat", chat)
    assert run_here(["run", "-m", TINY, "--device", "reference", *options, "Why?"]) == 0
    assert seen == [("Why?", think)]


def test_a_stop_text_ends_the_answer() -> None:
    whole = json.loads(wgemma(TINY, "hello", "--json", *SHORT).stdout)["text"]
    cut = json.loads(wgemma(TINY, "hello", "--json", *SHORT, "--stop", whole[3:5]).stdout)
    assert cut["text"] == whole[:3].rstrip()
    assert cut["finish_reason"] == "stop"


SCHEMA = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The formats that were asked for. The answer fits them."""
    seen: list[Any] = []

    async def parts(format: Any) -> AsyncGenerator[Part | Ending, None]:
        yield Part("content", '{"tags": []}')
        yield Ending("stop", Usage(1, 0, 1), parse=None if format is None else json.loads)
        yield Part("content", finish_reason="stop", usage=Usage(1, 0, 1))

    def chat(self: Any, messages: list[Any], *, format: Any = None, **how: Any) -> WholeText[Part]:
        seen.append(format)
        return WholeText(parts(format))

    monkeypatch.setattr("wgemma.api.Model.chat", chat)
    return seen


def test_a_format_is_a_schema_in_a_file_or_json(
    schema: str, formats: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["run", "-m", TINY, "--device", "reference", "Which tags?"]
    assert run_here([*plain, "--format", schema]) == run_here([*plain, "--format", "json"]) == run_here(plain) == 0
    assert formats == [SCHEMA, "json", None]
    printed = capsys.readouterr()
    assert printed.out == '{"tags": []}\n' * 3
    assert printed.err.count("Not enforced: #/properties/tags/uniqueItems.") == 1


def test_what_a_format_parses_is_part_of_the_json(
    schema: str, formats: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for format, parsed in (([], None), (["--format", schema], {"tags": []})):
        assert run_here(["run", "-m", TINY, "--device", "reference", "Which tags?", "--json", *format]) == 0
        printed = capsys.readouterr()
        record = json.loads(printed.out)
        assert record.get("parsed") == parsed and ("parsed" in record) == bool(format) and printed.err == ""


def test_the_embedded_model_answers_in_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.json"
    path.write_text(
        json.dumps({"type": "array", "prefixItems": [{"enum": ["yes", "no"]}], "items": False, "minItems": 1})
    )
    assert run_here(["run", "Is it late?", "--format", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parsed"] in (["yes"], ["no"]) and json.loads(record["text"]) == record["parsed"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "schema.json cannot be read: No such file or directory."),
        ("{", "schema.json is no JSON schema: Expecting property name"),
        ("null", "schema.json is no JSON schema: it is null."),
        ('{"type": "strong"}', "schema.json: #/type is 'strong'"),
        ('{"type": "json_object"}', 'schema.json: any JSON object is format="json" here'),
        ("[1]", "schema.json: format is a list"),
    ],
)
def test_a_wrong_format_is_told_before_a_model_is_loaded(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schema.json"
    if text is not None:
        path.write_text(text)
    assert run_here(["run", "nowhere.gguf", "hi", "--format", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("wgemma: ") and words in printed.err and len(printed.err.splitlines()) == 1


def test_an_empty_prompt_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["run", TINY]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "The prompt is empty, so there is nothing to answer.\n")
    assert run_here(["run", TINY, "--json"]) == 1


# -- which model, which device


def test_without_a_name_the_embedded_model_answers_and_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["run", "--max-tokens", "32"], b"Who are you?") == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("Using wgemma-tiny, the tiny demonstration model that comes with wgemma.\n")
    assert "tiny demonstration model" in printed.out


def test_a_question_without_a_name_goes_to_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["run", "What is 3 plus 4?", "--temperature", "0"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == "3 + 4 = 7" and "the tiny demonstration model" in shown.err


def test_adapters_are_applied_as_much_as_asked_for(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads((store / "EXPECTED.json").read_text())["models"]
    lora = store / told["someone/mygemma:v1"]["adapters"][0]
    said = []
    for adapters in ([], [f"{lora}=900"], [f"{lora}=600", f"{lora}=300"], [f"{lora}=0"]):
        named = [word for path in adapters for word in ("--adapter", path)]
        assert run_here(["run", TINY, "hi", *SHORT, *named]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1] == said[2]
    assert said[3] == said[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TINY, "--json"], "The prompt is empty."),
        (["gemma4:tinny", "hi"], "Did you mean gemma4:tiny"),
        (["nowhere.gguf", "hi"], "no such file"),
        (["llama-mini", "hi"], "gemma4 only"),
        ([TINY, "hi", "--device", "no such thing"], "No adapter is called"),
        ([TINY, "hi", "--image", "nowhere.png"], "nowhere.png: no such file"),
        (["gemma4:legacy", "hi", "--audio", __file__, "--device", "reference"], "is not a sound wgemma can read"),
        (
            [TINY, "hi", "--image", __file__, "--device", "reference"],
            "test_run.py is not a picture wgemma can read",
        ),
        ([TINY, "hi", "--context", "0"], "context is 0"),
        ([TINY, "hi", "--adapter", "nowhere", "--device", "reference"], "nowhere"),
        ([TINY, "hi", "--adapter", "nowhere=much", "--device", "reference"], "'much' is not a scale"),
        (["gemma4:legacy", "hi", "--adapter", __file__, "--device", "reference"], "test_run.py"),
        ([TINY, "hi", "--temperature", "nan"], "temperature is nan"),
        ([TINY, "hi", "--max-tokens", "0"], "max_tokens is 0"),
        ([TINY, "hi", "--seed", str(1 << 64)], "seed is 1844"),
        ([TINY, "x" * 99999, "--context", "64", "--device", "reference"], "the context holds 64"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["run", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out.strip() == ""
    *_, last = printed.err.splitlines()
    assert last.startswith("wgemma: ") and words in last


def test_without_an_adapter_numpy_computes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str | None) -> None:
        raise DeviceError("no WebGPU adapter was found. Look for one.")

    monkeypatch.setattr("wgemma.cli.chat_model.open_device", none)
    assert run_here(["run", TINY, "hello", "--max-tokens", "2"]) == 0
    told = capsys.readouterr().err
    assert "No usable GPU (no WebGPU adapter was found), so wgemma falls back to NumPy" in told
    assert "mesa-vulkan-drivers" in told
    assert "gemma4:tiny on NumPy (reference)" in told


def test_a_url_is_downloaded_once_and_then_run_from_the_cache(
    data: Path, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    blob = next(path for path in (store / "blobs").iterdir() if path.stat().st_size > 1 << 20)
    with serve(good(blob.read_bytes())) as url:
        assert run_here(["run", url, "hello", *SHORT]) == 0
    first = capsys.readouterr()
    assert "downloading: 100 %" in first.err
    assert run_here(["run", url, "hello", *SHORT]) == 0
    again = capsys.readouterr()
    assert "downloading" not in again.err
    assert again.out == first.out


def test_the_url_of_a_part_runs_the_whole_model(blob: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_here(["run", str(blob), "hello", *SHORT]) == 0
    expected = capsys.readouterr().out
    with Gguf.open(blob) as gguf:
        parts = {path.name: path.read_bytes() for path in write_parts(tmp_path / "parts", gguf, 3)}

    def answer(request: Any, start: int, stop: int) -> None:
        data = parts[request.path.rpartition("/")[2]]
        send(request, start, data[start:stop], len(data))

    with serve(answer) as url:
        part = url.replace("model.gguf", "model-00002-of-00003.gguf")
        assert run_here(["run", part, "hello", *SHORT]) == 0
        assert capsys.readouterr().out == expected
        assert run_here(["show", part]) == 0
        assert "parts           3" in capsys.readouterr().out


def test_the_plan_names_every_part_and_their_sum() -> None:
    told = describe_plan("m on g", Plan(1000, 2000, False, 500, 3000, 4000, context=77, reads=1000))
    assert told == (
        "m on g: weights 1.0 kB (GPU), per-layer table 2.0 kB (host, read row by row), "
        "KV cache 3.0 kB (GPU, once all 77 tokens are in use), activations 4.0 kB (GPU), total 8.0 kB (GPU)"
    )


def test_a_software_adapter_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {"CPU": "memory", "DiscreteGPU": "GPU"}
    for kind, place in kinds.items():

        def opened(name: str | None, kind: str = kind) -> NativeDevice:
            device = NativeDevice()
            device.info = replace(device.info, kind=kind)
            return device

        monkeypatch.setattr("wgemma.cli.chat_model.open_device", opened)
        assert run_here(["run", TINY, "hello", "--max-tokens", "2"]) == 0
        told = capsys.readouterr().err
        assert f"({place})" in told and f"({place}, once all 2048 tokens are in use)" in told
        assert told.count("the processor does the work") == (kind == "CPU")
        assert ("install its driver" in told and "GPU)" not in told) == (kind == "CPU")
    assert run_here(["run", TINY, "hello", "--max-tokens", "2", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_a_model_is_opened_parsed_and_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    opened, parsed, planned = Gguf.aopen.__func__, Config.from_gguf.__func__, opening.plan  # type: ignore[attr-defined]

    async def aopen(cls: type[Gguf], target: Any) -> Gguf:
        counts["opened"] += 1
        return await opened(cls, target)

    def from_gguf(cls: type[Config], gguf: Gguf) -> Config:
        counts["parsed"] += 1
        return parsed(cls, gguf)

    async def plan(*args: Any, **options: Any) -> Plan:
        counts["planned"] += 1
        return await planned(*args, **options)

    monkeypatch.setattr(Gguf, "aopen", classmethod(aopen))
    monkeypatch.setattr(Config, "from_gguf", classmethod(from_gguf))
    monkeypatch.setattr("wgemma.loading.plan", plan)
    monkeypatch.setattr("wgemma.engine.opening.plan", plan)
    assert run_here(["run", TINY, "hello", "--max-tokens", "2"]) == 0
    assert counts == {"opened": 1, "parsed": 1, "planned": 1}


# -- the chat at a terminal


@pytest.fixture
def chat() -> Iterator[Terminal]:
    terminal = Terminal(TINY, *SHORT)
    terminal.until(">>> ")
    yield terminal
    terminal.close()


def test_a_chat_answers_line_after_line(chat: Terminal, tmp_path: Path) -> None:
    first = chat.say("hello")
    assert "(cut off after 8 tokens: max_tokens)" in first
    assert "re-used" in chat.say("/set verbose") + chat.say("and again")
    chat.type('"""one\n')
    chat.until("... ")
    chat.type('two"""\n')
    assert "generated    8 tokens" in chat.until(">>> ")
    saved = tmp_path / "chat.json"
    assert "Chat saved to" in chat.say(f"/save {saved}")
    questions = [m["content"] for m in json.loads(saved.read_text())["messages"] if m["role"] == "user"]
    assert questions == ["hello", "and again", "one\ntwo"]
    chat.type("/bye\n")
    assert chat.leave() == 0
    history = tmp_path / "state" / "wgemma" / "history"
    assert '"""one\x1ftwo"""' in history.read_text().split("\n")  # one entry


def test_settings_can_be_changed_and_shown(chat: Terminal) -> None:
    assert "temperature is 0.5 now." in chat.say("/set parameter temperature 0.5")
    assert "max_tokens is 3 now." in chat.say("/set parameter num_predict 3")
    shown = chat.say("/show parameters")
    assert "temperature       0.5         set" in shown
    assert "top_k             64          model" in shown
    assert "There is no system prompt." in chat.say("/show system")
    chat.type('/set system """Be brief.\n')
    chat.until("... ")
    chat.type('Be kind."""\n')
    chat.until(">>> ")
    assert "Be brief.\nBe kind." in chat.say("/show system")
    assert "architecture    gemma4" in chat.say("/show info")
    assert "<|turn>user" in chat.say("/show template")
    assert "Fixture licence: random weights" in chat.say("/show license")
    assert "think first" in chat.say("/set think")
    assert "think first" in chat.say("/set think low")
    assert "it must be one of false, true, low, medium, high" in chat.say("/set think much")
    assert "(cut off after 3 tokens" in chat.say("hello")


def test_mistakes_do_not_leave_the_chat(chat: Terminal, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for line, words in {
        "/shwo": "There is no command /shwo. Did you mean /show?",
        "/set temperature 1": "There is no setting temperature.",
        "/set parameter temprature 1": "There is no parameter 'temprature'. Did you mean temperature?",
        "/set parameter top_k many": "top_k is 'many'; it must be a whole number.",
        "/set parameter top_p 2": "top_p is 2.0; it must be a number from 0 to 1.",
        "/set parameter num_ctx 99": "The context is fixed when the model is loaded; restart with --context",
        "/show nothing": "/show lists them.",
        "/load nowhere.json": "nowhere.json: no such file.",
        f"/load {notes}": "is not a saved chat",
        f"/save {notes}": "is not a saved chat. Choose another name.",
        "/save /no/such/folder/x": "cannot be written",
        "/save": "Type /save FILE.",
        "/?": "start a message of several lines",
        "/set": "/set nohistory",
        "/show": "/show template",
    }.items():
        assert words in chat.say(line)
    assert notes.read_text() == "mine"
    chat.type("\x04")
    assert chat.leave() == 0


def test_a_full_context_is_told_once_and_the_chat_goes_on(tmp_path: Path) -> None:
    terminal = Terminal(TINY, *SHORT, "--context", "80", "--verbose")
    terminal.until(">>> ")
    assert "The prompt has" in (told := terminal.say("a b " * 80)) and "the context holds 80" in told  # and taken back
    answers = [terminal.say("hello") for _ in range(6)]
    told = [re.search(r"no longer sees the (\d+) oldest messages", answer) for answer in answers]
    counts = [int(found[1]) for found in told if found]
    assert told[0] is None and counts == sorted(set(counts)) and 0 < len(counts) < 5
    assert f"dropped      {counts[-1]} messages" in answers[-1]
    terminal.say(f"/save {tmp_path}/chat.json")
    assert len(json.loads((tmp_path / "chat.json").read_text())["messages"]) == 12  # all that was said
    terminal.say("/set parameter max_tokens 500")
    assert "(cut off: the context of 80 tokens is full)" in terminal.say("tell me all")
    terminal.say("/set parameter max_tokens 8")
    assert "generated    8 tokens" in terminal.say("and now?")
    terminal.close()


def test_a_chat_that_must_not_be_shortened_says_how_to_start_over() -> None:
    terminal = Terminal(TINY, *SHORT, "--context", "40", "--no-shift")
    terminal.until(">>> ")
    assert "/clear" not in terminal.say("a b " * 40)
    terminal.say("hello")
    told = terminal.say("hello again")
    assert "the context holds 40. Shorten it" in told and "Type /clear to start over." in told
    terminal.say("/clear")
    assert "(cut" in terminal.say("hello again")
    terminal.close()


def test_a_saved_chat_is_taken_up_again(chat: Terminal, tmp_path: Path) -> None:
    chat.say("hello")
    chat.say("/set parameter temperature 0.25")
    chat.say(f"/save {tmp_path}/chat.json")
    assert "cleared" in chat.say("/clear")
    chat.say("/set parameter temperature 1")
    chat.type(f"/load {tmp_path}/chat.json\n")
    assert "2 messages, saved with gemma4:tiny." in chat.until(">>> hello")
    chat.until(">>> ")
    assert "temperature       0.25        set" in chat.say("/show parameters")


def test_a_file_dropped_on_the_chat_is_attached(chat: Terminal, cat: Path, tmp_path: Path) -> None:
    told = chat.say(f"'{cat}' what is this?")
    assert "Attached: image my cat.png." in told and "(cut" in told
    assert "Attached: image my cat.png." in chat.say(str(cat).replace(" ", "\\ "))
    chat.paste(f"/image {cat}\nand\nthis?")
    chat.type("\n")
    chat.until("Attached: image my cat.png.\x1b[0m\n>>> and\nthis?\n")
    chat.until(">>> ")
    assert "my cat.png is not a sound wgemma can read" in chat.say(f"/audio {cat}")
    assert "Which file? Type /image FILE." in chat.say("/image")
    chat.say(f"/save {tmp_path}/chat.json")
    saved = json.loads((tmp_path / "chat.json").read_text())["messages"]
    image = {"type": "image", "path": str(cat)}
    asked = [message["content"] for message in saved if message["role"] == "user"]
    assert asked == [
        [image, {"type": "text", "text": "what is this?"}],
        [image],
        [image, {"type": "text", "text": "and\nthis?"}],
    ]
    chat.type(f"/load {tmp_path}/chat.json\n")
    chat.until("[image my cat.png] what is this?")


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(chat: Terminal, tmp_path: Path) -> None:
    chat.say("/set parameter max_tokens 1900")
    chat.type("tell me all\n")
    chat.until("all\n")
    while len(chat.seen.strip()) < 10:
        assert chat.hear(PATIENCE)
    chat.type("\x03")
    chat.until("(stopped)")
    chat.until(">>> ")
    chat.say(f"/save {tmp_path}/chat.json")
    question, reply = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert question["content"] == "tell me all"
    assert len(reply["content"]) > 5
    chat.say("/set parameter max_tokens 2")
    assert "(cut off after 2 tokens" in chat.say("go on")


def test_ctrl_c_at_the_prompt_gives_a_hint_however_often_it_is_pressed(chat: Terminal) -> None:
    deadline = time.monotonic() + PATIENCE
    while "Press Ctrl-D or type /bye to leave." not in chat.seen:
        assert time.monotonic() < deadline
        chat.type("\x03")  # Python misses one that comes just before it waits for a key
        chat.hear(1)
    chat.type("\x03\x03\x03")
    chat.type("\n\n/show system\n")  # the first key may go to an interrupt still in progress
    chat.until("There is no system prompt.")
    chat.until(">>> ")
    chat.type("\x04")
    assert chat.leave() == 0


def test_lines_are_remembered_unless_asked_not_to(tmp_path: Path) -> None:
    history = tmp_path / "state" / "wgemma" / "history"
    terminal = Terminal(TINY, *SHORT)
    terminal.until(">>> ")
    terminal.say("/show system")
    terminal.say("/set nohistory")
    terminal.say("/clear")
    terminal.type("/bye\n")
    assert terminal.leave() == 0
    terminal.close()
    assert history.read_text().splitlines()[-2:] == ["/show system", "/set nohistory"]
    assert history.stat().st_mode & 0o077 == 0


def test_a_place_that_cannot_hold_the_history_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    terminal = Terminal(TINY, *SHORT, XDG_STATE_HOME=str(tmp_path / "file"))
    terminal.until(">>> ")
    terminal.type("/bye\n")
    assert "Traceback" not in terminal.until("/bye")
    assert terminal.leave() == 0
    terminal.close()


def test_the_stored_messages_are_shown_at_the_start(pirate: Path) -> None:
    terminal = Terminal("pirate", *SHORT, NO_COLOR="1")
    start = terminal.until(">>> ") + terminal.until(">>> ")
    assert "Ahoy?\nAye & <ahoy>!\n" in start
    assert "You are a pirate." in terminal.say("/show system")
    assert DIM not in start
    terminal.close()


def test_what_goes_where_is_shown_before_loading() -> None:
    terminal = Terminal(TINY, "hello", "--max-tokens", "2")
    first = terminal.until("\n")
    if "No usable GPU" not in first:
        assert "gemma4:tiny on " in first
        shown = terminal.until(" total ")
        assert all(part in shown for part in ("weights", "per-layer table", "KV cache", "activations"))
    assert terminal.leave() == 0
    terminal.close()


# -- the pieces


class Echo:
    """A model with scripted answers that records what it was asked."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.was_reset = False

    def chat(self, messages: list[Any], **options: Any) -> Iterator[Part]:
        for part in self.parts:
            yield part
            if options["cancel"].is_set():
                yield Part("content", finish_reason="cancelled", usage=Usage(5, 2, 1))
                return
        yield Part("content", finish_reason="stop", usage=Usage(5, 2, len(self.parts), 3))

    def reset(self) -> None:
        self.was_reset = True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every list of messages a model is asked to answer."""
    seen: list[Any] = []

    def chat(self: Any, messages: list[Any], **options: Any) -> Iterator[Part]:
        seen.append(messages)
        yield Part("content", "yes", finish_reason="stop", usage=Usage(1, 0, 1))

    monkeypatch.setattr("wgemma.api.Model.chat", chat)
    return seen


@pytest.fixture
def pirate(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a model that has messages and a system prompt."""
    copy = shutil.copytree(store, tmp_path / "pirates")
    manifest = json.loads((copy / "manifests/registry.ollama.ai/someone/mygemma/v1").read_text())
    manifest["layers"] = [layer for layer in manifest["layers"] if not layer["mediaType"].endswith("adapter")]
    target = copy / "manifests/registry.ollama.ai/library/pirate/latest"
    target.parent.mkdir()
    target.write_text(json.dumps(manifest))
    monkeypatch.setenv("OLLAMA_MODELS", str(copy))
    return copy


def run_here(arguments: list[str], stdin: bytes = b"") -> int:
    """The exit code of the command, run in this process with `stdin` piped in."""
    import io

    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        return main(arguments)
    finally:
        sys.stdin = before


def paint(*parts: Part, **how: bool) -> str:
    painter = Painter(**how)
    return "".join(painter.part(part) for part in parts) + painter.end()


HOSTILE = "a\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202eb\x7f"


def test_nothing_a_model_says_is_obeyed_by_the_terminal_however_it_is_cut() -> None:
    whole = paint(Part("content", HOSTILE))
    assert whole == "a\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\x0d\\x202eb\\x7f\n"
    assert paint(*(Part("content", c) for c in HOSTILE)) == whole
    call = ToolCall("f\x1b[1m", {"a\x07": "\x1b\n"})
    broken = ToolCall("", error="no", raw="\x1b[31m")
    spoken = paint(Part("thinking", HOSTILE), Part("tool_call", tool_call=call), Part("tool_call", tool_call=broken))
    assert not set(spoken) & set("\x1b\x07\x9b\r\u202e\x7f")


def test_every_script_is_shown_as_it_is() -> None:
    text = "Grüße,\u00a0世界\u3000👩\u200d🚀 می\u200cخواهم\n\tok"
    assert safe(text) == text


def test_thinking_is_dimmed_and_marked_where_it_begins_and_ends() -> None:
    parts = Part("thinking", "hm"), Part("thinking", " so"), Part("content", "Yes.")
    assert paint(*parts, colour=True) == f"{DIM}thinking…\nhm so\n…done{PLAIN}\n\nYes.\n"
    assert paint(*parts) == "thinking…\nhm so\n…done\n\nYes.\n"
    assert paint(*parts, hide_thinking=True) == "Yes.\n"
    assert paint(*parts, hide_thinking=True, watched=True) == "thinking… …done\n\nYes.\n"
    assert paint(parts[0], colour=True) == f"{DIM}thinking…\nhm\n…done{PLAIN}\n"


def test_tool_calls_are_lines_of_their_own() -> None:
    call = ToolCall("weather", {"city": "Zürich", "days": 3})
    assert describe(call) == 'weather(city="Zürich", days=3)'
    shown = paint(Part("content", "Let me see"), Part("tool_call", tool_call=call), Part("content", "ok\n"))
    assert shown == 'Let me see\n→ weather(city="Zürich", days=3)\nok\n'


def test_a_reply_remembers_what_came_and_when() -> None:
    reply = Answer()
    model: Any = Echo(Part("thinking", "hm"), Part("content", "Y"), Part("content", "es"))
    answer(model, [], {}, reply, lambda part: None)
    assert (reply.thinking, reply.text, reply.finish_reason) == ("hm", "Yes", "stop")
    told = statistics(reply, 1.5)
    assert "load         1.50 s" in told
    assert "re-used      2 tokens; 3 computed" in told
    assert "generated    3 tokens" in told
    reply.usage = Usage(5, 0, 1, 5)
    told = statistics(reply)
    assert "re-used" not in told and "generated    1 token\n" in told
    assert remark(reply, 100) == ""


def test_the_first_ctrl_c_ends_the_answer_between_two_parts_and_the_second_at_once() -> None:
    def once(part: Part) -> None:
        if part.text == "3":
            signal.raise_signal(signal.SIGINT)

    def twice(part: Part) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    parts = [Part("content", str(i)) for i in range(9)]
    model: Any = Echo(*parts)
    reply = Answer()
    answer(model, [], {}, reply, once)
    assert (reply.text, reply.finish_reason, reply.kept, model.was_reset) == ("0123", "cancelled", True, False)
    reply = Answer()
    answer(model, [], {}, reply, twice)
    assert (reply.text, reply.finish_reason, model.was_reset) == ("0", "cancelled", True)


def test_ctrl_c_is_itself_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Stop():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_what_was_cut_before_anything_was_said_is_not_kept() -> None:
    chat = Conversation(ChatSettings())
    cancelled = Answer(thinking="hm", finish_reason="cancelled")
    chat.keep("why?", cancelled)
    assert chat.messages == []
    assert "dropped" in remark(cancelled, 10)
    chat.keep("why?", Answer(text="Beca", finish_reason="cancelled"))
    assert [message["content"] for message in chat.messages] == ["why?", "Beca"]


def test_a_call_of_a_tool_is_answered_that_there_is_none() -> None:
    chat = Conversation(ChatSettings())
    chat.keep("why?", Answer(tool_calls=[ToolCall("look", {"at": "sky"}), ToolCall("", error="x")]))
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool"]
    assert NO_TOOLS in render(chat.asking("so?"))


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["plain"], Line("plain")),
        (['"""one line"""'], Line("one line", literal=True)),
        (['"""', "/two", 'lines"""'], Line("/two\nlines", literal=True)),
        (['/set system """a', 'b"""'], Line("/set system a\nb")),
        (['say """ in between'], Line('say """ in between')),
        (['"""pasted\ntogether"""'], Line("pasted\ntogether", literal=True)),
        (['"""begun\nby a paste', 'ended"""'], Line("begun\nby a paste\nended", literal=True)),
        (['"""A docstring."""\nimport this'], Line('"""A docstring."""\nimport this')),
    ],
)
def test_three_quotes_hold_several_lines(lines: list[str], line: Line) -> None:
    rest = iter(lines[1:])
    assert gather(lines[0], lambda: next(rest)) == line
    assert not line.literal or not line.is_command


@pytest.mark.parametrize(
    ("text", "is_command"),
    [
        ("/shwo", True),
        ("/home/me/cat.png", False),
        ("/set system Be brief.\nBe kind.", True),
        ("/help\nme", True),
        ("/etc is a folder,\n/usr another", False),
        ("// a comment\nand code", False),
        ("\n \n", False),
    ],
)
def test_pasted_lines_are_a_command_only_if_they_begin_with_one(text: str, is_command: bool) -> None:
    assert Line(text).is_command == is_command


@pytest.mark.parametrize(
    ("entry", "first", "rest"),
    [
        ("one\ntwo", "one\ntwo", ""),
        ("/image cat.png\nWhat is\nthis?", "/image cat.png", "What is\nthis?"),
        ("/set verbose\n\n/bye\n", "/set verbose", "/bye"),
        ("/set system Be brief.\nBe kind.", "/set system Be brief.\nBe kind.", ""),
        ("/etc is a folder,\n/usr another", "/etc is a folder,\n/usr another", ""),
        ("/clear", "/clear", ""),
        ("", "", ""),
    ],
)
def test_a_command_takes_only_its_own_line_of_a_paste(entry: str, first: str, rest: str) -> None:
    assert divide(entry) == (first, rest)


def test_commands_are_recognised_by_name() -> None:
    assert split_command("/set  think ") == ("/set", "think")
    assert split_command("/help") == ("/?", "")
    with pytest.raises(SettingsError, match="Did you mean /bye"):
        split_command("/by")


def chat_file(**changes: Any) -> bytes:
    good = {"format": "wgemma chat", "version": 1, "messages": [], "system": None, "settings": {}}
    return json.dumps({**good, **changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        chat_file(format="another"),
        chat_file(version=2),
        chat_file(messages=None),
        chat_file(messages=[7]),
        chat_file(messages=[{"role": "x"}]),
        chat_file(system=5),
        chat_file(settings=[]),
        chat_file(settings={"parameters": {"nothing": 1}}),
        chat_file(settings={"parameters": {"stop": 1}}),
        chat_file(settings={"parameters": {"seed": None}}),
    ],
    ids=range(15),
)
def test_a_file_that_is_no_chat_is_refused_and_changes_nothing(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(content)
    chat = Conversation(ChatSettings({"seed": 1}), "Be brief.")
    chat.messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(Error):
        chat.load(path)
    assert (len(chat.messages), chat.system, chat.settings.values) == (1, "Be brief.", {"seed": 1})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi 🦙"}, {"role": "assistant", "content": "ho"}]
    chat = Conversation(ChatSettings({"temperature": 0.1, "stop": ["a b"]}, think=True), "Be brief.")
    chat.messages = messages
    chat.save(tmp_path / "chat", "m")
    chat.save(tmp_path / "chat", "m")
    other = Conversation(ChatSettings())
    assert other.load(tmp_path / "chat") == "m"
    assert (other.messages, other.system, other.settings) == (messages, "Be brief.", chat.settings)
    with pytest.raises(SessionError, match="not a saved chat"):
        chat.save(tmp_path, "m")
