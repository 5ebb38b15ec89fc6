"""`wgemma batch` answers every request once, whatever happens in between."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batch_files import TINY, chat, records, sums, texts, write
from event_shapes import OPENAI_ERROR, check
from wgemma.cli import main
from wgemma.errors import Error
from wgemma.files.locks import locked


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, with short names, and no models but the embedded one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own-store"))


REQUESTS, RESULTS = Path("requests.jsonl"), Path("results.jsonl")
BATCH = ["batch", str(REQUESTS), "-o", str(RESULTS), "--context", "256"]


def test_every_kind_of_request_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    def post(custom_id: str, path: str, **body: object) -> dict[str, object]:
        return {"custom_id": custom_id, "method": "POST", "url": f"/v1/{path}", "body": {"model": TINY, **body}}

    rows = [
        chat("chat", "What is 2+3?"),
        post("completion", "completions", prompt="a", max_tokens=3),
        post("embedding", "embeddings", input=["a", "b"]),
        post("response", "responses", input="x", max_output_tokens=3),
    ]
    write(REQUESTS, rows)
    assert main(BATCH) == 0
    assert capsys.readouterr().out.startswith("4 requests, 0 failed: ")
    found = {one["custom_id"]: one for one in records(RESULTS)}
    kinds = {name: one["response"]["body"]["object"] for name, one in found.items()}
    assert kinds == {
        "chat": "chat.completion",
        "completion": "text_completion",
        "embedding": "list",
        "response": "response",
    }
    for one in found.values():
        assert one.keys() == {"id", "custom_id", "response", "error"} and one["error"] is None
        assert one["response"].keys() == {"status_code", "request_id", "body"} and one["response"]["status_code"] == 200
    assert len({one["id"] for one in found.values()}) == 4


def test_a_bad_row_becomes_an_error_and_the_others_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = chat("unknown", "x", model="gpt-x")
    write(REQUESTS, ["nonsense", chat("wrong", "x", temperature="hot"), unknown, chat("a", "x"), chat("a", "y")])
    assert main(BATCH) == 0
    said = capsys.readouterr().out
    assert "5 requests, 4 failed" in said and "The first failure: Line 1 is not JSON" in said
    found = {one["id"]: one for one in records(RESULTS)}
    assert len(found) == 5
    assert found["batch_req_1"]["error"]["code"] == "invalid_json_line" and found["batch_req_1"]["response"] is None
    assert found["batch_req_5"]["error"]["code"] == "duplicate_custom_id" and found["batch_req_5"]["custom_id"] is None
    for number, name, status in ((2, "wrong", 400), (3, "unknown", 404)):
        one = found[f"batch_req_{number}"]
        assert (one["custom_id"], one["response"]["status_code"]) == (name, status)
        check(OPENAI_ERROR, one["response"]["body"])
    assert found["batch_req_4"]["response"]["status_code"] == 200


def test_one_model_can_answer_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    write(REQUESTS, [chat("a", "x", model="gpt-x"), {**chat("b", "x"), "body": {"messages": []}}])
    assert main([*BATCH, "-m", TINY, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["requests"], summary["failed"], summary["skipped"]) == (2, 1, 0)
    assert summary["tokens"] > 0 and summary["tokens_per_s"] > 0 and "messages" in summary["first_failure"]


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(map(json.dumps, sums(3)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["batch", "-", "-o", str(RESULTS)]) == 0
    assert texts(RESULTS).keys() == {"sum-0", "sum-1", "sum-2"}


def test_results_that_exist_are_kept_and_told_how_to_go_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    write(REQUESTS, sums(1))
    RESULTS.write_text("precious")
    assert main(BATCH) == 1
    said = capsys.readouterr().err
    assert "results.jsonl exists" in said and "`wgemma batch requests.jsonl -o results.jsonl --resume" in said
    for text in ("precious", "precious\n", '{"id":1}\n', "null\n"):
        RESULTS.write_text(text)
        assert main([*BATCH, "--resume"]) == 1
        assert "Choose another -o" in capsys.readouterr().err
        assert RESULTS.read_text() == text


def test_a_second_run_does_what_is_missing_and_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    write(REQUESTS, [*sums(12), "nonsense", chat("sum-1", "again")])
    assert main(BATCH) == 0
    capsys.readouterr()
    whole = RESULTS.read_bytes()
    for cut in (0, 1, len(whole) // 2, whole.rindex(b"\n", 0, -1) + 1, len(whole) - 1, len(whole)):
        RESULTS.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert main([*BATCH, "--resume", "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert (summary["skipped"], summary["requests"]) == (kept, 14 - kept)
        found = records(RESULTS)
        assert sorted(one["id"] for one in found) == sorted(f"batch_req_{i}" for i in range(1, 15))


def test_a_job_that_is_killed_goes_on_where_it_was() -> None:
    write(REQUESTS, sums(60))
    command = [sys.executable, "-m", "wgemma", *BATCH, "--slots", "4"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_for(lambda: RESULTS.exists() and RESULTS.read_bytes().count(b"\n") >= 5)
        process.kill()
    with RESULTS.open("ab") as file:
        file.write(b'{"id":"batch_req_60","custom_id":"sum-59","respo')  # as a kill in the middle of a write leaves it
    before = RESULTS.read_bytes().rpartition(b"\n")[0]
    assert main([*BATCH, "--resume"]) == 0
    assert RESULTS.read_bytes().startswith(before)
    assert texts(RESULTS).keys() == {f"sum-{i}" for i in range(60)}


def test_ctrl_c_leaves_a_file_to_go_on_with() -> None:
    write(REQUESTS, sums(100))
    command = [sys.executable, "-m", "wgemma", *BATCH, "--slots", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_for(lambda: RESULTS.exists() and RESULTS.read_bytes().count(b"\n") >= 3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert "To go on: wgemma batch requests.jsonl -o results.jsonl --resume" in said
    assert 3 <= len(texts(RESULTS)) < 100
    assert not Path("results.jsonl.lock").exists()


def test_two_jobs_do_not_share_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    write(REQUESTS, sums(1))
    with locked(Path("results.jsonl.lock"), Error):
        assert main(BATCH) == 1
    assert f"another job, process {os.getpid()}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-m", "gemma4:nowhere"], "gemma4:nowhere is not on this computer"),
        (["-m", "broken.gguf"], "broken.gguf"),
        (["--device", "No Such GPU"], "o adapter is called"),
        (["--device", "77"], "o adapter 77: this machine has"),
        (["--slots", "65"], "--slots"),
    ],
)
def test_what_cannot_work_is_a_sentence(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.gguf").write_bytes(b"GGUF" + bytes(100))
    write(REQUESTS, sums(2))
    assert main([*BATCH, *more]) == 1
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert "To go on" not in told and not RESULTS.exists()
    assert main(BATCH) == 0


def test_a_model_that_breaks_ends_the_job_and_keeps_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Not one record says that the machine failed: a second run is to answer those requests."""
    Path("broken.gguf").write_bytes(b"GGUF" + bytes(100))
    write(REQUESTS, ["nonsense", *sums(3)])
    assert main([*BATCH, "-m", "broken.gguf"]) == 1
    assert main([*BATCH, "--resume"]) == 0
    assert len(records(RESULTS)) == 4 and len([one for one in records(RESULTS) if one["error"]]) == 1


def test_a_missing_requests_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BATCH) == 1
    assert "requests.jsonl cannot be read" in capsys.readouterr().err
    assert not RESULTS.exists()


def _wait_for(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)
