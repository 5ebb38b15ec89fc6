"""The zip for the page contains only the engine, and needs only the standard library."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wgemma.web.package import ROOT, make_package

# Never imported in a page.
NATIVE = {
    "wgemma.__main__",
    "wgemma.engine.fallback",
    "wgemma.gpu.c_types",
    "wgemma.gpu.native",
    "wgemma.gpu.profiling",
    "wgemma.gpu.raw",
}


@pytest.fixture(scope="module")
def package() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(make_package()))


def test_the_engine_travels_and_the_rest_stays(package: zipfile.ZipFile) -> None:
    names = package.namelist()
    assert {"wgemma/__init__.py", "wgemma/api.py", "wgemma/worker.py", "wgemma/gpu/browser.py"} <= set(names)
    assert {"wgemma/worker_training.py", "wgemma/train/learner.py", "wgemma/train/trainer.py"} <= set(names)
    assert {f"wgemma/kernels/{path.name}" for path in (ROOT / "kernels").glob("*.wgsl")} <= set(names)
    assert "wgemma/selftest/answers.json" in names
    assert {Path(name).suffix for name in names} == {".py", ".wgsl", ".json"}
    assert not [name for name in names if name.split("/")[1] in ("cli", "reference", "serve", "web")]
    assert sum(entry.compress_size for entry in package.infolist()) < 1 << 20


def test_the_same_files_give_the_same_bytes() -> None:
    code = "import sys; from wgemma.web.package import make_package; sys.stdout.buffer.write(make_package())"
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    )
    assert made.stdout == make_package()


def test_it_runs_without_anything_installed(package: zipfile.ZipFile, tmp_path: Path, data: Path) -> None:
    """-S drops site-packages and -I the environment, which leaves the standard library, as in Pyodide."""
    package.extractall(tmp_path)
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in package.namelist()
        if name.endswith(".py")
    }
    code = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
for name in {sorted(modules - NATIVE)!r}:
    importlib.import_module(name)
import wgemma
assert wgemma.__file__.startswith({str(tmp_path)!r})
blob = {str(data / "ollama-store/blobs/sha256-66002a3e60d3ad89de72fa3ee7512bf25fddef7294dfb4a32aaba01dba6b6457")!r}
ids = wgemma.Tokenizer.from_gguf(blob).encode("Hello world")
assert ids
assert "<|turn>user" in wgemma.render([{{"role": "user", "content": "Hello"}}])
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
