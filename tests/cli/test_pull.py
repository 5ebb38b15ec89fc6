"""`wgemma pull`, `rm`, `cp` and `create`, and `wgemma run` of a model that is not here."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

import adapter_maker
import wgemma
from gguf_parts import write_parts
from pseudo_terminal import Terminal
from registry_server import TINY, Registry, digest, serving
from store_models import projector
from wgemma.cli import main
from wgemma.cli.create import _kept
from wgemma.files.adapters import write_gguf_adapter, write_peft
from wgemma.files.copying import delete
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import partial_place
from wgemma.files.locate import locate
from wgemma.files.stores import Stores

BIG = Random(2).randbytes(300_000)


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return Stores.find()


@pytest.fixture
def server() -> Iterator[Registry]:
    with serving() as server:
        server.add("acme/tiny:x", [("model", TINY), ("projector", BIG)])
        yield server


def test_a_pull_says_how_far_it_is_and_where_the_model_is(
    server: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{server.host}/acme/tiny:x"
    assert main(["pull", name]) == 0
    printed = capsys.readouterr()
    why = "wgemma cannot run it: the key gemma4.block_count is missing."
    assert printed.out == f"{name} is here: 300 kB in {tmp_path / 'own'}. {why}\n"
    assert printed.err.startswith("pulling manifest\n") and f"pulling {name}: 100 %\n" in printed.err
    assert main(["verify", name]) == 0
    assert main(["list"]) == 0
    assert any(line.split()[0] == name and "wgemma" in line for line in capsys.readouterr().out.splitlines()[1:])


def test_a_terminal_has_a_bar_before_the_size_is_known(server: Registry) -> None:
    name = f"{server.host}/acme/tiny:x"
    with closing(Terminal(name, program=("-m", "wgemma", "pull"), COLUMNS="200")) as terminal:
        terminal.until("0/? bytes")
        terminal.until(f"{name} is here: ")
        assert terminal.leave() == 0


def test_json_is_one_event_per_line(server: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "--json", f"{server.host}/acme/tiny:x"]) == 0
    printed = capsys.readouterr()
    events = [json.loads(line) for line in printed.out.splitlines()]
    assert events[0] == {"status": "pulling manifest"} and events[-1] == {"status": "success"}
    assert printed.err == ""


def test_what_goes_wrong_is_a_sentence(server: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", f"{server.host}/acme/tiny:y"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"wgemma: {server.host}/acme/tiny:y: {server.host} has no such model."
    )
    assert main(["pull", "../x"]) == 1


def test_ctrl_c_leaves_what_can_be_resumed(server: Registry, stores: Stores) -> None:
    server.pause = 0.1
    name = f"{server.host}/acme/tiny:x"
    with subprocess.Popen([sys.executable, "-m", "wgemma", "pull", name], stderr=subprocess.PIPE, text=True) as child:
        partial = partial_place(stores.own, digest(BIG))
        until = time.monotonic() + 20
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < until:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
        assert child.stderr is not None
        assert f"Stopped. `wgemma pull {name}` goes on where it stopped." in child.stderr.read()
    assert 0 < partial.stat().st_size < len(BIG)
    server.pause = 0.0
    assert main(["pull", name]) == 0
    assert int(server.asked[-1][1][6:].partition("-")[0]) > 0


def test_ctrl_c_does_not_wait_for_a_silent_registry(server: Registry) -> None:
    server.delay = 10.0
    name = f"{server.host}/acme/tiny:x"
    with subprocess.Popen([sys.executable, "-m", "wgemma", "pull", name], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "pulling manifest\n"
        assert child.stderr.readline() == f"waiting for {server.host}\n"
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130 and time.monotonic() - began < 3.0


def test_a_model_that_is_not_here_is_offered(server: Registry, stores: Stores, blob: Path) -> None:
    server.add("acme/tiny:y", [("model", blob.read_bytes())])
    name = f"{server.host}/acme/tiny:y"
    with closing(Terminal("-m", name, "Hello", "--device", "reference", "--max-tokens", "1")) as terminal:
        terminal.until(f"{name} is not on this computer. Pull it now? [Y/n] ")
        terminal.type("\n")
        terminal.until(f"{name} is here: ")
        terminal.until(f"{name} on NumPy")
        assert terminal.leave() == 0
    assert name in stores.own


@pytest.mark.parametrize("no", ["n\n", "\x04"])  # Ctrl-D is no answer
def test_no_means_no(server: Registry, stores: Stores, no: str) -> None:
    name = f"{server.host}/acme/tiny:x"
    with closing(Terminal(name, "Hello")) as terminal:
        terminal.until("Pull it now? [Y/n] ")
        terminal.type(no)
        terminal.until(f"`wgemma pull {name}` gets it")
        assert terminal.leave() == 1
    assert name not in stores.own


def test_a_model_to_build_upon_is_offered_too(server: Registry, stores: Stores, tmp_path: Path) -> None:
    name = f"{server.host}/acme/tiny:x"
    file = written(tmp_path, f"FROM {name}\nSYSTEM Be brief.")
    with closing(Terminal("mine", "-f", file, program=("-m", "wgemma", "create"))) as terminal:
        terminal.until(f"{name} is not on this computer. Pull it now? [Y/n] ")
        terminal.type("\n")
        terminal.until("mine:latest is ready.")
        assert terminal.leave() == 0
    assert stores.own.model("mine").system == "Be brief."


@pytest.mark.parametrize(("answer", "wanted"), [("\n", False), ("y\n", True)])
def test_a_name_like_one_that_is_here_is_offered_with_care(
    server: Registry, stores: Stores, answer: str, wanted: bool
) -> None:
    here, name = (f"{server.host}/acme/tiny:{tag}" for tag in "xy")
    server.add("acme/tiny:y", [("model", TINY)])
    assert main(["pull", here]) == 0
    with closing(Terminal(name, "Hello", "--device", "reference")) as terminal:
        terminal.until(f"{name} is not on this computer. Did you mean {here}? Pull {name} now? [y/N] ")
        terminal.type(answer)
        terminal.until(f"{name} is here: " if wanted else f"`wgemma pull {name}` gets it")
        assert terminal.leave() == 1  # TINY is no model that could answer
    assert (name in stores.own) == wanted


def test_without_a_terminal_the_command_is_named(
    server: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{server.host}/acme/tiny:x"
    monkeypatch.setattr("sys.stdin", None)
    assert main(["run", "-m", name, "Hello", "--device", "reference"]) == 1
    assert f"`wgemma pull {name}` gets it" in capsys.readouterr().err
    assert server.tokens == {}


def test_models_are_copied_and_removed(stores: Stores, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", "gemma4:tiny", "mine"]) == 0
    assert capsys.readouterr().out == "gemma4:tiny is now also mine:latest. `wgemma run mine:latest` starts it.\n"
    assert main(["show", "mine"]) == 0 and main(["verify", "mine"]) == 0
    assert main(["rm", "mine"]) == 0
    assert "Deleted mine:latest.\n" in capsys.readouterr().out
    assert main(["rm", "gemma4:tiny"]) == 1
    assert "`ollama rm gemma4:tiny` deletes it" in capsys.readouterr().err
    assert stores.own.names() == []


def test_a_model_that_hides_one_of_ollamas_is_told(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cp", "gemma4:tiny", "gemma4:latest"]) == 0  # the same
    assert "Ollama's" not in capsys.readouterr().out
    assert main(["cp", "someone/mygemma:v1", "gemma4:tiny"]) == 0
    told = "It hides Ollama's gemma4:tiny, which `wgemma rm gemma4:tiny` shows again.\n"
    assert capsys.readouterr().out.endswith(told)
    assert main(["list"]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if row.endswith("hides Ollama's")]
    assert [row.split()[0] for row in rows] == ["gemma4:tiny"]
    assert main(["rm", "gemma4:tiny"]) == 0
    assert stores.model("gemma4:tiny").store == stores.ollama
    monkeypatch.setenv("OLLAMA_MODELS", "/nowhere/at/all")
    assert main(["list"]) == 0
    assert "OLLAMA_MODELS is /nowhere/at/all, which does not exist.\n" in capsys.readouterr().err


# -- create


def written(folder: Path, text: str) -> str:
    (folder / "Modelfile").write_text(text)
    return str(folder / "Modelfile")


def test_a_modelfile_becomes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "FROM gemma4:tiny\nSYSTEM Be brief.\nPARAMETER top_k 3\nMESSAGE user Hi\nLICENSE MIT\n")
    assert main(["create", "mine", "-f", file]) == 0
    assert capsys.readouterr().out == "mine:latest is ready. `wgemma run mine:latest` starts it.\n"
    found = locate("mine")
    assert (found.system, found.params["top_k"]) == ("Be brief.", 3)
    assert found.messages == [{"role": "user", "content": "Hi"}]
    assert main(["verify", "mine"]) == 0


def test_the_embedded_model_can_be_copied_and_built_upon(
    tmp_path: Path, stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["create", "mine", "-f", written(tmp_path, "FROM wgemma-tiny\nSYSTEM Be brief.")]) == 0
    assert main(["cp", "wgemma-tiny:latest", "other"]) == 0
    assert capsys.readouterr().out.endswith("now also other:latest. `wgemma run other:latest` starts it.\n")
    assert main(["verify", "mine"]) == 0
    embedded, mine = locate(None), locate("mine")
    assert isinstance(embedded.model, Path) and isinstance(mine.model, Path)
    assert mine.model.read_bytes() == embedded.model.read_bytes()
    assert (mine.system, mine.params, locate("other").params) == ("Be brief.", embedded.params, embedded.params)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["pull", "wgemma-tiny"], "there is nothing to pull"),
        (["rm", "wgemma-tiny"], "it cannot be deleted"),
        (["cp", "gemma4:tiny", "wgemma-tiny:latest"], "choose another name"),
        (["create", "wgemma-tiny", "-f", "Modelfile"], "choose another name"),
        (["pull", "library/wgemma-tiny"], "there is nothing to pull"),
        (["cp", "gemma4:tiny", "ollama.com/library/wgemma-tiny"], "choose another name"),
    ],
)
def test_the_embedded_models_name_stays_its_own(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "FROM gemma4:tiny")
    assert main(words) == 1
    assert f"wgemma-tiny comes with wgemma: {why}. `wgemma run` starts it." in capsys.readouterr().err


def test_a_file_that_is_deleted_with_another_model_is_copied_again(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(stores.model("gemma4:tiny").model, tmp_path / "a.gguf")
    file = written(tmp_path, "FROM ./a.gguf\n")
    assert main(["create", "one", "-f", file]) == 0
    copied = []

    def kept(*given: Any) -> Any:
        copied.append(_kept(*given))
        if len(copied) == 1:
            list(delete("one"))
        return copied[-1]

    monkeypatch.setattr("wgemma.cli.create._kept", kept)
    assert main(["create", "two", "-f", file]) == 0 and len(copied) == 2
    stores.own.model("two").verify()


def test_files_begin_at_the_modelfiles_folder(tmp_path: Path, blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gguf.open(blob) as gguf:
        write_parts(tmp_path / "sub", gguf, 3)
    assert main(["create", "mine", "-f", written(tmp_path, "FROM ./sub/model-00002-of-00003.gguf")]) == 0
    found = locate("mine")
    assert isinstance(found.model, tuple) and len(found.model) == 3
    with wgemma.load("mine", device="reference", context=64) as model, wgemma.load(blob, device="reference") as whole:
        assert (model.logits([5, 6]) == whole.logits([5, 6])).all()
    assert main(["show", "mine"]) == 0 and main(["verify", "mine"]) == 0


@pytest.mark.parametrize("form", ["gguf", "peft"])
def test_an_adapter_of_either_form_comes_along(tmp_path: Path, blob: Path, form: str) -> None:
    with Gguf.open(blob) as gguf:
        columns, rows = gguf.tensor("blk.0.attn_q.weight").shape
    made = adapter_maker.adapter(blk__0__attn_q=adapter_maker.pair(columns, rows))
    if form == "gguf":
        write_gguf_adapter(made, tmp_path / "lora.gguf")
    else:
        write_peft(made, tmp_path / "lora", base="x")
    file = written(tmp_path, f"FROM gemma4:tiny\nADAPTER ./lora{'.gguf' if form == 'gguf' else ''}\n")
    assert main(["create", "mine", "-f", file]) == 0
    assert len(locate("mine").adapters) == 1
    with wgemma.load("mine", device="reference", context=64) as model:
        assert list(model.adapters) == ["mine:latest"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM gemma4:tiny\nTEMPLATE x", "runs no templates"),
        ("FROM gemma4:nothing", "is not on this computer"),
        ("FROM ./nothing.gguf", "Line 1 of the Modelfile: FROM ./nothing.gguf does not exist."),
        ("FROM ./nothing", "FROM ./nothing does not exist."),
        ("FROM .", "FROM . is a folder. Name the .gguf file in it."),
        ("FROM ./lora", "FROM ./lora is a LoRA adapter. Name it as ADAPTER, and its model as FROM."),
        ("FROM ./weights", "FROM ./weights is in safetensors; wgemma builds upon GGUF files."),
        ("FROM weights/model.safetensors", "FROM weights/model.safetensors is in safetensors;"),
        ("FROM https://x.example/a.gguf", "is on the web. Download it and name the file,"),
        (
            "FROM gemma4:tiny\nFROM someone/mygemma:v1",
            "FROM gemma4:tiny is a model's name, beside which",
        ),
        (
            "FROM wgemma-tiny\nFROM gemma4:tiny",
            "FROM wgemma-tiny is a model's name, beside",
        ),
        ("FROM ./notes.gguf", "Line 1 of the Modelfile: "),
        ("FROM gemma4:tiny\nADAPTER ./notes.gguf", "Line 2 of the Modelfile: "),
        ("FROM gemma4:tiny\nADAPTER https://x.example/a.gguf", "Line 2 of the Modelfile: ADAPTER https"),
        (
            "FROM gemma4:tiny\nPARAMETER top_p 7",
            "Line 2 of the Modelfile: top_p is 7.0; it must be",
        ),
        (f"FROM {'x' * 300}", "is not a model name"),
        ("FROM llama-mini", "wgemma runs gemma4 only"),
        ("FROM gemma4:tiny\nADAPTER ./nothing.gguf", "nothing.gguf"),
    ],
)
def test_a_bad_modelfile_makes_nothing(
    tmp_path: Path, stores: Stores, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, file in (("weights", "model.safetensors"), ("lora", "adapter_config.json"), (".", "notes.gguf")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).write_bytes(b"notes")
    assert main(["create", "mine", "-f", written(tmp_path, text)]) == 1
    assert message in capsys.readouterr().err
    assert not stores.own.root.exists()


def test_what_does_not_fit_is_named_before_anything_is_copied(
    tmp_path: Path, stores: Stores, blob: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf_adapter(adapter_maker.adapter(blk__0__attn_q=adapter_maker.pair(65, 65)), tmp_path / "lora.gguf")
    (tmp_path / "wide.gguf").write_bytes(projector(256))
    shutil.copy(blob, tmp_path / "a.gguf")
    lora = f"{tmp_path}/lora.gguf does not fit"
    for text, told in (
        (
            "FROM ./a.gguf\nFROM ./wide.gguf",
            f"{tmp_path}/wide.gguf was made for a model 256 wide; {tmp_path}/a.gguf is",
        ),
        ("FROM ./a.gguf\nADAPTER lora.gguf", f"{lora} {tmp_path}/a.gguf: it changes a blk.0.attn_q.weight of"),
        ("FROM gemma4:tiny\nADAPTER lora.gguf", f"{lora} gemma4:tiny: it changes a blk.0.attn_q.weight of"),
    ):
        assert main(["create", "mine", "-f", written(tmp_path, text)]) == 1
        assert capsys.readouterr().err.startswith(f"wgemma: {told}")
        assert not stores.own.root.exists()


def test_a_model_that_cannot_be_named_leaves_no_copy(
    tmp_path: Path, stores: Stores, blob: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(blob, tmp_path / "a.gguf")
    (stores.own.root / "manifest.partial").mkdir(parents=True)  # in the manifest's way
    assert main(["create", "mine", "-f", written(tmp_path, "FROM ./a.gguf\n")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert list((stores.own.root / "blobs").iterdir()) == []


def test_a_missing_modelfile_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "mine", "-f", str(tmp_path / "Modelfile")]) == 1
    assert f"there is no {tmp_path}/Modelfile. Write one," in capsys.readouterr().err.replace("There", "there")


@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
def test_what_is_no_modelfile_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(100 << 20)
    for name, told in (("pipe", "is a device or a pipe"), ("large", "the limit is"), (".", "is a folder, not a file")):
        assert main(["create", "mine", "-f", str(tmp_path / name)]) == 1
        assert told in capsys.readouterr().err


def test_a_modelfile_may_come_by_standard_input(
    tmp_path: Path, blob: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(blob, tmp_path / "a.gguf")
    monkeypatch.chdir(tmp_path)
    for text, code in ((b"FROM ./a.gguf\nSYSTEM Be brief.", 0), (b"", 1), (b"#" * (5 << 20), 1)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert main(["create", "mine", "-f", "-"]) == code
    assert "This is too long for a Modelfile" in capsys.readouterr().err
    assert locate("mine").system == "Be brief."


@pytest.mark.parametrize("named", [(1,), (3,), (1, 2, 3), (3, 1), (2, 2)])
def test_all_parts_are_taken_whichever_are_named(tmp_path: Path, blob: Path, named: tuple[int, ...]) -> None:
    with Gguf.open(blob) as gguf:
        write_parts(tmp_path, gguf, 3)
    text = "".join(f"FROM ./model-0000{number}-of-00003.gguf\n" for number in named)
    assert main(["create", "mine", "-f", written(tmp_path, text)]) == 0
    found = locate("mine").model
    assert isinstance(found, tuple) and len(found) == 3


def test_json_tells_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "mine", "--json", "-f", written(tmp_path, "FROM gemma4:tiny")]) == 0
    events: list[Any] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-2:] == [{"status": "writing manifest"}, {"status": "success"}]
