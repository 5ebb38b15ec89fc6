"""The wheel, installed into a clean environment, works: it answers, and it serves the page."""

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".venv" / "wheels"  # the wheel's dependencies, downloaded by tools/setup.sh


def build(kind: str, source: Path, out: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)]
    run = {**os.environ, **environment}
    return subprocess.run(command, cwd=source, env=run, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    built = build("wheel", ROOT, out)
    assert built.returncode == 0, built.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel, its dependencies, and nothing else."""
    place = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet", "--no-compile"]
    offline = ["--no-index", "--find-links", str(WHEELS)] if WHEELS.is_dir() else []
    done = subprocess.run([*pip, *offline, str(wheel)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return place / "bin"


def outside(tmp_path: Path) -> dict[str, str]:
    """Environment variables with which only the installed package is found, and an empty store."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "OLLAMA_MODELS": str(tmp_path / "store"), "HOME": str(tmp_path)}


def test_the_wheel_holds_the_page_with_python_and_its_licences(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    page = {
        "index.html",
        "app.js",
        "bench.html",
        "bench.js",
        "style.css",
        "wgemma.js",
        "worker.js",
        "fetcher.js",
        "sources.js",
        "sw.js",
        "manifest.webmanifest",
    }
    assert {f"wgemma/web/{name}" for name in page} <= names
    pyodide = {"pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"}
    assert {f"wgemma/web/pyodide/{name}" for name in (*pyodide, "NOTICE.txt")} <= names
    assert "wgemma/gpu/replay.js" in names
    notice = zipfile.ZipFile(wheel).read("wgemma/web/pyodide/NOTICE.txt").decode()
    assert "Mozilla Public License, v. 2.0" in notice
    assert not {name for name in names if "__pycache__" in name or name.startswith("tests/")}


def test_the_installed_command_answers(clean: Path, tmp_path: Path) -> None:
    command = [clean / "wgemma", "run", "--max-tokens", "4"]
    run = {"cwd": tmp_path, "env": outside(tmp_path), "input": "Hello!", "text": True}
    done = subprocess.run(command, capture_output=True, timeout=300, **run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.fixture
def app(clean: Path, tmp_path: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [clean / "wgemma", "app", "--port", "0", "--no-open"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=outside(tmp_path), **pipes) as running:
        yield running
        running.kill()


def test_the_installed_app_serves_the_page(app: "subprocess.Popen[str]") -> None:
    assert app.stdout is not None
    said = app.stdout.readline()
    address = re.search(r"http://([0-9.]+):(\d+)/", said)
    assert address, said
    connection = http.client.HTTPConnection(address[1], int(address[2]), timeout=30)

    def get(path: str) -> bytes:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, path
        return body

    assert b"<html" in get("/")
    assert get("/pyodide/pyodide.asm.wasm").startswith(b"\0asm")
    assert get("/wgemma.zip").startswith(b"PK")
    model = json.loads(get("/models.json"))[0]
    assert model["embedded"]
    assert hashlib.sha256(get(f"/{model['url']}")).hexdigest() == model["digest"]
    connection.close()
    app.send_signal(signal.SIGINT)
    assert app.wait(timeout=20) == 0


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive as users get it: without Pyodide."""
    out = tmp_path_factory.mktemp("sdist")
    built = build("sdist", ROOT, out)
    assert built.returncode == 0, built.stderr
    (archive,) = out.glob("*.tar.gz")
    shutil.unpack_archive(archive, out)
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    assert not (folder / "src/wgemma/web/pyodide").exists()
    return folder


def test_a_wheel_without_a_network_is_refused_in_a_sentence(unpacked: Path, tmp_path: Path) -> None:
    built = build("wheel", unpacked, tmp_path, npm_config_registry="http://127.0.0.1:9")
    assert built.returncode != 0
    assert "Pyodide could not be downloaded" in built.stderr
    assert "Traceback" not in built.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_source_archive_builds_a_wheel_with_pyodide(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    """Needs the npm registry."""
    built = build("wheel", unpacked, tmp_path)
    assert built.returncode == 0, built.stderr
    (made,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(made).namelist() == zipfile.ZipFile(wheel).namelist()
