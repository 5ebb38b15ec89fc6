"""`wgemma app` prints its address, and exports the site."""

import hashlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from app_server import running_app
from wgemma.cli import main
from wgemma.cli.app import PORT
from wgemma.web.export import LIST


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_that_is_asked_for_and_taken_is_refused(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "--port", str(taken)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"Cannot listen on port {taken} of 127.0.0.1: another program is using it" in said.err


def test_the_usual_port_gives_way_when_it_is_taken(store: Path) -> None:
    with running_app(store, "--host", "127.0.0.1") as first, running_app(store, "--host", "127.0.0.1") as second:
        assert PORT <= first.port < second.port
        assert second.ask("/models.json").status == 200


@pytest.mark.parametrize("host", ["203.0.113.9", "nowhere.invalid", "", "a b"])
def test_an_address_that_is_not_ours_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "--host", host, "--port", "0"]) == 1
    assert "127.0.0.1" in capsys.readouterr().err


def test_other_addresses_than_loopback_need_a_token_and_are_still_guarded(store: Path) -> None:
    with running_app(store, "--host", "0.0.0.0", "--port", "0") as app:
        assert app.host == "127.0.0.1"  # what is printed can be typed
        for path in ("/", "/models.json", "/models/gemma4-tiny.gguf", "/nowhere"):
            refused = app.ask(path)
            assert (refused.status, refused.headers["content-type"]) == (403, "text/plain; charset=utf-8")
            assert refused.headers["x-content-type-options"] == "nosniff"
        opened = app.ask(f"/?token={app.token}")
        assert (opened.status, b"<!doctype html>" in opened.body) == (200, True)
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert app.ask("/models.json", cookie=cookie).status == 200
        assert app.ask("/models.json", cookie=cookie, host=f"evil.example:{app.port}").status == 403
        assert app.ask(f"/?token={app.token}", host=f"evil.example:{app.port}").status == 403


def test_loopback_needs_no_token(store: Path) -> None:
    with running_app(store) as app:
        assert app.token == ""
        answer = app.ask("/")
        assert (answer.status, "set-cookie" in answer.headers) == (200, False)


def test_other_addresses_than_loopback_are_warned_of(store: Path) -> None:
    command = [sys.executable, "-m", "wgemma", "app", "--host", "0.0.0.0", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        urlopen(process.stdout.readline().split()[3]).close()  # it is up
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read().splitlines() == [
            "wgemma: anyone who has this address can download these models. On other machines the page needs https: "
            "browsers offer WebGPU only there and on localhost."
        ]


def test_ctrl_c_ends_it_also_while_a_model_is_being_sent(store: Path) -> None:
    command = [sys.executable, "-m", "wgemma", "app", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"GET /models/wgemma-tiny.gguf HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 200"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("port", ["-1", "65536", "http", "8e3", "٨"])
def test_a_port_is_a_number(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["app", "--port", port])
    assert ended.value.code == 2
    assert "a port is a number" in capsys.readouterr().err


# -- export


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_the_export_is_what_the_server_sends(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "--export", str(tmp_path / "site")]) == 0
    assert "http.server" in capsys.readouterr().out
    made = files(tmp_path / "site")
    with running_app(store) as app:
        for address, digest in made.items():
            if address not in ("models.json", LIST):
                answer = app.ask(f"/{'' if address == 'index.html' else address}")
                assert hashlib.sha256(answer.body).hexdigest() == digest, address
    (model,) = json.loads((tmp_path / "site/models.json").read_text())
    assert model["embedded"]
    assert made[model["url"]] == model["digest"]
    assert 'http-equiv="Content-Security-Policy"' in (tmp_path / "site/index.html").read_text()


def test_a_model_can_be_put_in(tmp_path: Path, store: Path) -> None:
    assert main(["app", "--export", str(tmp_path / "site"), "--with", "gemma4:tiny"]) == 0
    first, second = json.loads((tmp_path / "site/models.json").read_text())
    assert (first["embedded"], second["name"], second["url"]) == (True, "gemma4:tiny", "models/gemma4-tiny.gguf")
    assert hashlib.sha256((tmp_path / "site" / second["url"]).read_bytes()).hexdigest() == second["digest"]
    worker = (tmp_path / "site/sw.js").read_text()
    assert "wgemma-tiny.gguf" in worker
    assert "gemma4-tiny.gguf" not in worker.replace("wgemma-tiny.gguf", "")  # large models are not kept there


def test_exporting_again_leaves_only_what_belongs_there(tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["app", "--export", str(site), "--with", "gemma4:tiny"]) == 0
    (site / "CNAME").write_text("example.org")
    (site / "app.js").write_text("old")
    assert main(["app", "--export", str(site)]) == 0
    made = files(site)
    assert "models/gemma4-tiny.gguf" not in made
    assert "CNAME" in made
    assert (site / "app.js").read_text() != "old"


@pytest.mark.parametrize("target", ["full", "file", "closed/site"])
def test_a_folder_that_cannot_be_used_is_a_sentence(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").touch()
    (tmp_path / "closed").touch()
    before = files(tmp_path)
    assert main(["app", "--export", str(tmp_path / target)]) == 1
    assert capsys.readouterr().err.startswith(f"wgemma: {tmp_path / target} ")
    assert files(tmp_path) == before


@pytest.mark.parametrize("model", ["gemma4:nowhere", "http://localhost/x.gguf", "gemma4:mlx"])
def test_a_model_that_cannot_be_put_in_is_a_sentence(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["app", "--export", str(tmp_path / "site"), "--with", model]) == 1
    assert capsys.readouterr().err.startswith("wgemma: ")
    assert not (tmp_path / "site").exists()


def test_with_is_for_exports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "--with", "gemma4:tiny"]) == 1
    assert "--with is for --export" in capsys.readouterr().err
