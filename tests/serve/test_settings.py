"""What Ollama's environment variables mean here."""

import math
from typing import Any

import pytest

from wgemma.cli import main
from wgemma.errors import Error, SettingsError
from wgemma.files.names import Name
from wgemma.serve.address import parse_address
from wgemma.serve.settings import from_environment, registry_host, seconds


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("", ("127.0.0.1", 11434)),
        ("1.2.3.4", ("1.2.3.4", 11434)),
        (":1234", ("127.0.0.1", 1234)),
        ("1.2.3.4:1234", ("1.2.3.4", 1234)),
        ("http://1.2.3.4", ("1.2.3.4", 80)),
        ("https://1.2.3.4", ("1.2.3.4", 443)),
        ("https://1.2.3.4:1234", ("1.2.3.4", 1234)),
        ("example.com", ("example.com", 11434)),
        ("example.com:1234/", ("example.com", 1234)),
        ("http://example.com/a/b", ("example.com", 80)),
        ("https://example.com:1234/path", ("example.com", 1234)),
        ("[::1]", ("::1", 11434)),
        ("[::1]:1234", ("::1", 1234)),
        ("http://[0001:0002:0003::1]:56/path", ("0001:0002:0003::1", 56)),
        ("::1", ("::1", 11434)),
        ("0.0.0.0", ("0.0.0.0", 11434)),
        ('"localhost:5"', ("localhost", 5)),
        ("localhost:", ("localhost", 11434)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_hosts(host: str, wanted: tuple[str, int]) -> None:
    found = parse_address(host)
    assert (found.host, found.port) == wanted


def test_a_port_must_be_one() -> None:
    for host in ("localhost:65536", "localhost:99999999999999", "localhost:port"):
        with pytest.raises(Error, match="not a server's address"):
            parse_address(host)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (5, 5),
        (1.5, 1.5),
        ("5m", 300),
        ("1h2m3.5s", 3723.5),
        ("100ms", 0.1),
        ("-1", math.inf),
        (-0.5, math.inf),
        ("0", 0),
        ("300", 300),
        (10**400, 1e12),
    ],
)
def test_durations(given: Any, wanted: float) -> None:
    assert seconds(given) == pytest.approx(wanted)


@pytest.mark.parametrize("given", [None, True, "", "soon", "5 m", "m", "1e9", "5mm", [5], "９"])
def test_what_is_no_duration(given: Any) -> None:
    assert seconds(given) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("registry.example", "registry.example"),
        (" Registry.Example:5000 ", "registry.example:5000"),
        ("https://registry.example/", "registry.example"),
        ("HTTP://LocalHost:5000", "localhost:5000"),
        ("www.huggingface.co", "hf.co"),
    ],
)
def test_a_registry_is_spelt_as_names_spell_it(text: str, host: str) -> None:
    assert registry_host(text) == host == Name.parse(f"{host}/me/model").host


@pytest.mark.parametrize(
    "text",
    ["", " ", "/", "https://", "registry.example/v2", "https://registry.example/v2/", "ftp://x", "me:pw@x", "x:", "x:y",
     "x:0", "x:65536", "a:1:2", "[::1]:5000", "hf.co?x", "a b", "*", "x,y", "-x", "host:" + "9" * 5000],
)  # fmt: skip
def test_a_registry_that_would_match_nothing_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"is not a host; write registry.example, or localhost:5000"):
        registry_host(text)
    assert main(["serve", "--port", "0", "--registry=" + text]) == 1
    assert "is not a host" in capsys.readouterr().err


def test_the_environment() -> None:
    found = from_environment(
        {
            "OLLAMA_NUM_PARALLEL": "100",
            "OLLAMA_MAX_QUEUE": "0",
            "OLLAMA_MAX_LOADED_MODELS": "0",
            "OLLAMA_CONTEXT_LENGTH": "8192",
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_ORIGINS": "http://a, https://b:*",
            "OLLAMA_KV_CACHE_TYPE": "f16",
        }
    )
    assert found == {
        "slots": 64,
        "queue": 0,
        "context": 8192,
        "keep_alive": math.inf,
        "origins": ("http://a", "https://b:*"),
        "kv": "f16",
    }
    assert from_environment({"OLLAMA_KEEP_ALIVE": " "}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OLLAMA_NUM_PARALLEL", "many"),
        ("OLLAMA_MAX_QUEUE", "-1"),
        ("OLLAMA_KEEP_ALIVE", "soon"),
        ("OLLAMA_KV_CACHE_TYPE", "q8_0"),
    ],
)
def test_mistakes_are_told_by_name(name: str, value: str) -> None:
    with pytest.raises(Error, match=name):
        from_environment({name: value})
