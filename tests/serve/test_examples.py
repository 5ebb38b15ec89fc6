"""Every example in docs/serving.md runs as it stands there, but for the port."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from api_server import Api

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/serving.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
NPM = Path(sys.prefix) / "clients"
ALWAYS = ("openai", "ollama", "anthropic")  # the others are in the extra `clients`
HERE = "http://127.0.0.1:11434"


def first_package(code: str) -> str:
    found = re.search(r"^(?:from|import) (\w+)", code)
    assert found is not None
    return found[1]


PYTHON = [
    pytest.param(code, id=first_package(code), marks=() if first_package(code) in ALWAYS else pytest.mark.slow)
    for language, code in BLOCKS
    if language == "python"
]
JAVASCRIPT = [code for language, code in BLOCKS if language == "js"]
CURL = [code for language, code in BLOCKS if language == "sh" and code.startswith("curl ")]
LLM = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines() if line.startswith("llm ")]


def said(api: Api, command: list[str], folder: Path, code: str = "") -> str:
    own = {"OLLAMA_HOST": api.url, "LLM_USER_PATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ended = subprocess.run(
        command,
        input=code.replace(HERE, api.url),
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not ended.returncode, ended.stderr
    return ended.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("code", CURL)
def test_curl(api: Api, code: str, tmp_path: Path) -> None:
    assert json.loads(said(api, ["sh"], tmp_path, code))["choices"][0]["message"]["content"] == "2 + 3 = 5"


@pytest.mark.parametrize("code", PYTHON)
def test_python(api: Api, code: str, tmp_path: Path) -> None:
    if find_spec(first_package(code)) is None:
        pytest.skip(f"{first_package(code)} is not installed: pip install -e '.[clients]'")
    lines = said(api, [sys.executable, "-"], tmp_path, code).split("\n")
    assert lines == ["2 + 3 = 5"] * (3 if "langchain" in code else 1) + [""]


@pytest.mark.slow
@pytest.mark.parametrize("code", JAVASCRIPT, ids=lambda code: re.search(r'from "(.*?)"', code)[1])
def test_javascript(api: Api, code: str) -> None:
    if not (NPM / "node_modules").is_dir():
        pytest.skip("the clients from npm are not installed: make .venv/.clients")
    node = str(Path(sys.executable).parent / "node")
    assert said(api, [node, "--input-type=module", "-"], NPM, code) == "2 + 3 = 5\n"


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LLM if "wgemma-tiny" in line])
def test_llm(api: Api, line: str, tmp_path: Path) -> None:
    if find_spec("llm") is None or find_spec("llm_ollama") is None:
        pytest.skip("llm is not installed: pip install -e '.[clients]'")
    command = [sys.executable, "-m", *shlex.split(line)]
    assert said(api, command, tmp_path).strip() == "2 + 3 = 5"


def test_every_client_has_an_example() -> None:
    assert len(PYTHON) == 6 and len(JAVASCRIPT) == 4 and len(LLM) > 4
