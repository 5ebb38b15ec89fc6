"""A Modelfile is read as Ollama reads it; what wgemma does not do is refused by name and line."""

import pytest

from wgemma.errors import StoreError
from wgemma.files.modelfile import parse_modelfile

GOOD = '''
# a comment
FROM gemma4:e2b
from ./mmproj.gguf
ADAPTER "./my lora.gguf"
PARAMETER temperature 0.25
PARAMETER top_k 5
PARAMETER stop "<turn|>"
parameter stop AI:
PARAMETER use_mmap False
SYSTEM """You are a "pirate".

FROM the sea."""
MESSAGE user Who are you?
MESSAGE assistant """Arr,
matey."""
LICENSE "MIT"
LICENSE """
Apache
"""
RENDERER gemma4
PARSER gemma4
TEMPLATE {{ .Prompt }}
'''


def test_every_instruction_is_read() -> None:
    said = parse_modelfile(GOOD.encode())
    assert said.bases == {"gemma4:e2b": 3, "./mmproj.gguf": 4}
    assert said.adapters == {"./my lora.gguf": 5}
    assert said.parameters == {"temperature": 0.25, "top_k": 5, "stop": ["<turn|>", "AI:"], "use_mmap": False}
    assert said.system == 'You are a "pirate".\n\nFROM the sea.'
    assert said.messages == [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "Arr,\nmatey."},
    ]
    assert said.licenses == ["MIT", "\nApache\n"]


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ('SYSTEM "one\ntwo"', "one\ntwo"),  # as Ollama writes it
        ('SYSTEM "one\r\ntwo"\r\nPARAMETER top_k 3', "one\ntwo"),
        ('SYSTEM "he said', '"he said'),
        ("SYSTEM one\u2028two\ftwo", "one\u2028two\ftwo"),
        ('SYSTEM say """', 'say """'),
        ('SYSTEM """one\nand """two""" three\nend"""  ', 'one\nand """two""" three\nend'),
        ('SYSTEM "one "two" three"', 'one "two" three'),
        ('SYSTEM """one"""', "one"),
        ('SYSTEM ""', ""),
        ("REQUIRES 0.14.0\nSYSTEM x", "x"),
        ('TEMPLATE """{{ .Prompt }}\n"""\nSYSTEM x', "x"),
    ],
)
def test_texts_are_read_as_ollama_writes_them(text: str, system: str) -> None:
    assert parse_modelfile(f"\ufeffFROM x\n{text}".encode()).system == system


def test_quotes_that_never_end_are_looked_for_once() -> None:
    said = parse_modelfile(b"FROM x\n" + b'SYSTEM "x\n' * 300_000)
    assert said.system == '"x'


def test_a_negative_top_k_stands_for_all_tokens() -> None:
    assert parse_modelfile(b"FROM x\nPARAMETER top_k -1").parameters == {"top_k": -1}


def test_a_message_may_go_over_several_lines() -> None:
    said = parse_modelfile(b'FROM x\nMESSAGE user "one\ntwo"\nMESSAGE assistant three')
    assert said.messages == [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "three"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no FROM"),
        ("SYSTEM x", "has no FROM"),
        ("FROM", "line 1 .*FROM has no value"),
        ("FROM x\nTEMPLATE {{ .System }}", "line 2 .*wgemma renders Gemma's prompts itself and runs no templates"),
        ("FROM x\n\nCMD 1", "line 3 .*CMD is not supported. There are FROM"),
        ("FROM x\nPARAMTER top_k 3", "line 2 .*PARAMTER is not supported. Did you mean PARAMETER?"),
        ("FROM x\nRENDERER llama", "RENDERER 'llama' is not supported: it must be gemma4"),
        ('FROM ""', "line 1 .*FROM names nothing"),
        ("FROM x\nPARAMETER heat 5", "line 2 .*there is no parameter 'heat'. Known: frequency_penalty"),
        ("FROM x\nPARAMETER temprature 5", "there is no parameter 'temprature'. Did you mean temperature?"),
        ("FROM x\nPARAMETER temperature -1", "line 2 .*temperature is -1.0; it must be a number from 0 to 100"),
        ("FROM x\nPARAMETER temperature 0_1", "temperature is '0_1'; it must be a number"),
        ("FROM x\nPARAMETER temperature nan", "temperature is nan; it must be a number"),
        ("FROM x\nPARAMETER top_p 7", "top_p is 7.0; it must be a number from 0 to 1"),
        ("FROM x\nPARAMETER min_p inf", "min_p is inf; it must be a number"),
        ("FROM x\nPARAMETER num_ctx -1", "num_ctx is -1; it must be a whole number of at least 0"),
        ("FROM x\nPARAMETER num_predict -5", "num_predict is -5; it must be a whole number of at least -2"),
        ('FROM x\nPARAMETER stop ""', "a stop is empty"),
        ("FROM x\nPARAMETER top_k 0.5", "top_k is '0.5'; it must be a whole number"),
        ("FROM x\nPARAMETER temperature", "line 2 .*PARAMETER temperature has no value"),
        ("FROM x\nMESSAGE user", "line 2 .*MESSAGE user has no text"),
        ("FROM x\nPARAMETER use_mmap maybe", "it must be true or false"),
        ("FROM x\nMESSAGE robot hi", "the role 'robot' must be system, user or assistant"),
        ('FROM x\nSYSTEM """no end', "line 2 .*has no end"),
        ("FROM x\n\x00\x01", "line 2 .*is no instruction"),
        ("{{ }}", "is no instruction"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        parse_modelfile(text.encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("FROM x\nSYSTEM caf\u00e9".encode("latin-1"), "line 2 of the Modelfile: this is not UTF-8"),
        ("FROM x".encode("utf-16"), "line 1 of the Modelfile: this is not UTF-8"),
        (b"GGUF\3\0\0\0", "this is a GGUF file, no Modelfile"),
    ],
)
def test_what_is_no_utf8_is_not_guessed(data: bytes, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        parse_modelfile(data)


def test_lines_may_end_as_on_any_system() -> None:
    for end in ("\n", "\r\n", "\r"):
        assert parse_modelfile(f"FROM x{end}SYSTEM hi{end}".encode()).system == "hi"
