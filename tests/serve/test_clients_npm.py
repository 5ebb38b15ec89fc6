"""JavaScript's clients, unmodified: the scripts in tools/clients, run by the Node of the virtual environment."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from api_server import TINY, Api

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.prefix) / "clients"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", ["ai", "anthropic", "ollama", "openai"])
def test_chat_stream_tool_structured_output_and_media(api: Api, name: str, data: Path) -> None:
    if not (INSTALLED / "node_modules").is_dir():
        pytest.skip("the clients from npm are not installed: make .venv/.clients")
    media = [(data / "embedded" / name).read_bytes() for name in ("colour-and-shape-0.png", "transcripts-0.wav")]
    encoded = [base64.b64encode(one).decode() for one in media]
    asked = json.dumps([api.url, TINY, "What is 2+3?", "What is the weather in Paris?", WEATHER, PERSON, *encoded])
    script = (ROOT / f"tools/clients/{name}.mjs").read_text()
    # Read from standard input, a script finds its packages from the folder that Node runs in.
    command = [str(Path(sys.executable).parent / "node"), "--input-type=module", "-", asked]
    ended = subprocess.run(command, input=script, cwd=INSTALLED, capture_output=True, text=True, timeout=120)
    assert not ended.returncode, ended.stderr
    told = json.loads(ended.stdout)
    assert told["chat"] == told["stream"] == "2 + 3 = 5"
    tool, values = told["tool"]
    assert tool == "get_weather" and [*values] == ["city"] and isinstance(values["city"], str)
    assert set(told["structured"]) == {"name", "age"}
    assert len(told["structured"]["name"]) <= 8 and 0 <= told["structured"]["age"] <= 99
    assert "triangle" in told["seen"]
    assert bool(told.get("heard")) == (name == "openai")
