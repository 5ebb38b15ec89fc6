"""Requests that change the store, by Ollama's own client: pull, create, copy, delete and blobs."""

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ollama import Client, ResponseError

from api_server import TINY, Api, serving
from registry_server import Registry
from registry_server import serving as registry_serving
from wgemma.cli import main
from wgemma.files import hub
from wgemma.files.locate import locate
from wgemma.files.names import Name
from wgemma.files.stores import Stores
from wgemma.serve.settings import Settings

ASK = [{"role": "user", "content": "What is 2+3?"}]


@pytest.fixture(scope="module")
def file() -> Path:
    """The embedded model's."""
    found = locate(TINY).model
    assert isinstance(found, Path)
    return found


@pytest.fixture(scope="module")
def registry(file: Path) -> Iterator[Registry]:
    with registry_serving() as server:
        server.add("acme/tiny:x", [("model", file.read_bytes())])
        yield server


@pytest.fixture
def store_api(registry: Registry) -> Iterator[Api]:
    with serving(Settings(registries=(registry.host,))) as api:
        yield api


@pytest.fixture
def client(store_api: Api) -> Client:
    return Client(host=store_api.url)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_model_is_pulled_used_copied_and_deleted(client: Client, registry: Registry) -> None:
    name = f"{registry.host}/acme/tiny:x"
    told = list(client.pull(name, stream=True))
    assert told[0].status == "pulling manifest" and told[-1].status == "success"
    assert any(event.total and event.completed == event.total for event in told)
    assert client.pull(name).status == "success"
    assert client.chat(name, ASK).message.content == "2 + 3 = 5"
    assert client.copy(name, "mine").status == "success"
    assert client.chat("mine", ASK).message.content == "2 + 3 = 5"
    assert {model.model for model in client.list().models} >= {"mine:latest", TINY}
    for one in (name, "mine"):
        assert client.delete(one).status == "success"
        with pytest.raises(ResponseError, match="not found") as problem:
            client.chat(one, ASK)
        assert problem.value.status_code == 404
    assert Stores.find().own.models() == []


def test_a_model_is_created_from_a_blob_and_from_another(client: Client, store_api: Api, file: Path) -> None:
    digest = client.create_blob(file)
    assert store_api.ask(f"/api/blobs/{digest}", method="HEAD").status == 200
    assert client.create("mine", files={"model.gguf": digest}).status == "success"
    assert client.chat("mine", ASK).message.content == "2 + 3 = 5"
    told = list(client.create("mine", from_="mine", parameters={"num_predict": 2}, stream=True))
    assert told[-1].status == "success"
    again = client.chat("mine", ASK)  # the loaded one went, for it was another
    assert again.eval_count == 2 and again.done_reason == "length"


def test_a_model_to_build_upon_is_pulled_first(client: Client, registry: Registry) -> None:
    base = f"{registry.host}/acme/tiny:x"
    told = list(client.create("mine", from_=base, parameters={"num_predict": 2}, stream=True))
    assert told[0].status == "pulling manifest" and any(event.completed for event in told)
    assert [event.status for event in told].count("success") == 1 and told[-1].status == "success"
    assert client.chat("mine", ASK).eval_count == 2
    assert {str(name) for name in Stores.find().own.names()} == {base, "mine:latest"}
    with pytest.raises(ResponseError, match="has no such model") as problem:
        client.create("other", from_=f"{registry.host}/acme/nothing:x")
    assert problem.value.status_code == 404


def test_create_takes_the_template_that_show_tells(client: Client) -> None:
    shown = client.show(TINY)
    assert client.create("again", from_=TINY, template=shown.template, system="Be brief.").status == "success"
    assert client.show("again").template == shown.template == "{{ .Prompt }}"


def test_a_blob_must_be_what_it_says(store_api: Api, client: Client) -> None:
    data = b"x" * 300_000
    wrong = digest_of(b"y")
    answer = store_api.ask(f"/api/blobs/{wrong}", data, headers={"Content-Type": "application/octet-stream"})
    assert (answer.status, "digest" in answer.json["error"]) == (400, True)
    assert store_api.ask(f"/api/blobs/{wrong}", method="HEAD").status == 404
    own = Stores.find().own.root
    assert not [path for path in own.rglob("*") if path.is_file() and path.stat().st_size]
    assert store_api.ask(f"/api/blobs/{digest_of(data)}", data).status == 201


@pytest.mark.parametrize("digest", ["sha256:12", "sha256:../../../../etc/passwd", "sha256:" + "g" * 64, "x"])
def test_a_digest_is_never_a_path(store_api: Api, digest: str) -> None:
    for method in ("HEAD", "POST"):
        answer = store_api.ask(f"/api/blobs/{digest}", b"x", method=method)
        assert answer.status in (400, 404)
    answer = store_api.ask("/api/create", {"model": "a", "files": {"m": digest}})
    assert (answer.status, answer.json["error"][:8]) == (400, "A digest")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("pull", {"model": "127.0.0.1:1/a/b"}, 403),
        ("pull", {"model": "evil.example/a/b:c", "stream": False}, 403),
        ("pull", {"model": "../../etc"}, 400),
        ("pull", {}, 400),
        ("copy", {"source": "nobody", "destination": "a"}, 404),
        ("copy", {"source": "nobody", "destination": TINY}, 403),
        ("create", {"model": TINY, "from": TINY}, 403),
        ("create", {"model": "a"}, 400),
        ("create", {"model": "a", "from": "127.0.0.1:1/a/b"}, 403),
        ("create", {"model": "a", "from": "../../etc"}, 400),
        ("create", {"model": "a", "from": "b", "template": "{{ .System }}"}, 400),
        ("create", {"model": "a", "from": "b", "parameters": {"nothing": 1}}, 400),
        ("create", {"model": "a", "from": TINY, "parameters": {"temperature": -1}}, 400),
        ("create", {"model": "a", "files": {"m": digest_of(b"none")}, "stream": False}, 400),
    ],
)
def test_what_cannot_be_done_is_told_without_a_path(
    store_api: Api, path: str, body: dict[str, object], status: int
) -> None:
    answer = store_api.ask(f"/api/{path}", body)
    assert answer.status == status
    assert "/" not in answer.json["error"].replace("{{", "")


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_registry_does_not_have_is_told_in_full(
    client: Client, registry: Registry, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(hub, "ADDRESS", f"http://{registry.host}")
    registry.add_repository("acme/gemma", {"g-Q4_K_M.gguf": b"x", "g-Q8_0.gguf": b"y"})
    for name, why in (
        (f"{registry.host}/acme/tiny:y", f"{registry.host} has no such model."),
        ("hf.co/acme/nothing", "acme/nothing is not on Hugging Face."),
        ("hf.co/acme/gemma:Q3_K_M", "acme/gemma has no Q3_K_M. It has Q4_K_M, Q8_0."),
    ):
        with pytest.raises(ResponseError, match=re.escape(why)) as problem:
            list(client.pull(name, stream=stream))
        assert stream or problem.value.status_code == 404


def test_deleting_what_is_not_ours(store_api: Api) -> None:
    assert store_api.ask("/api/delete", {"model": "nobody"}, method="DELETE").status == 404
    assert store_api.ask("/api/delete", {"model": TINY}, method="DELETE").status == 403
    assert json.loads(store_api.ask("/api/tags").body)["models"][0]["name"] == TINY


def chatted(client: Client, model: str = "mine") -> tuple[int, int]:
    """How many tokens an answer has, and how long the model's context is."""
    tokens = client.chat(model, ASK).eval_count or 0
    (running,) = (one for one in client.ps().models if one.model == f"{model}:latest")
    return tokens, running.context_length or 0


def test_what_the_command_line_changes_counts_at_once(client: Client, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    for tokens in (2, 3):
        modelfile.write_text(f"FROM {TINY}\nPARAMETER num_predict {tokens}\nPARAMETER num_ctx {64 * tokens}\n")
        assert main(["create", "mine", "-f", str(modelfile)]) == 0
        assert chatted(client) == (tokens, 64 * tokens)
    modelfile.write_text(f"FROM {TINY}\nPARAMETER num_predict 1\n")
    assert main(["create", "other", "-f", str(modelfile)]) == 0 and main(["cp", "other", "mine"]) == 0
    assert chatted(client)[0] == 1


def test_a_model_of_the_command_line_is_the_one_in_the_store(tmp_path: Path, file: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {TINY}\nPARAMETER num_predict 2\n")
    assert main(["create", "mine", "-f", str(modelfile)]) == 0
    with serving(Settings(extra=("mine",))) as api:
        client = Client(host=api.url)
        assert chatted(client)[0] == 2
        modelfile.write_text(f"FROM {TINY}\nPARAMETER num_predict 1\n")
        assert main(["create", "mine", "-f", str(modelfile)]) == 0
        assert chatted(client)[0] == 1
        assert main(["rm", "mine"]) == 0
        with pytest.raises(ResponseError, match="not found"):
            client.chat("mine", ASK)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "pull", {"model": "given"}),
        ("POST", "create", {"model": "given:latest", "from": TINY}),
        ("POST", "create", {"model": "mine", "from": "given"}),
        ("POST", "copy", {"source": "given", "destination": "mine"}),
        ("POST", "copy", {"source": TINY, "destination": "given"}),
        ("DELETE", "delete", {"model": "given"}),
    ],
)
def test_a_file_of_the_command_line_is_never_taken_for_a_stored_model(
    method: str, path: str, body: object, tmp_path: Path, file: Path
) -> None:
    (tmp_path / "given.gguf").symlink_to(file)
    with serving(Settings(extra=(str(tmp_path / "given.gguf"),))) as api:
        answer = api.ask(f"/api/{path}", body, method=method)
    assert answer.status == 403 and "is a file that this server was given, and in no store." in answer.json["error"]
    assert Stores.find().own.names() == []


def test_null_is_as_if_not_given(client: Client, store_api: Api) -> None:
    body = {"model": "mine", "from": TINY, "parameters": {"stop": None, "num_predict": 2}, "stream": False}
    assert store_api.ask("/api/create", body).status == 200
    assert chatted(client)[0] == 2


def test_a_model_that_is_deleted_while_it_is_loaded(
    client: Client, store_api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nPARAMETER num_predict 2\n")
    assert main(["create", "mine", "-f", str(tmp_path / "Modelfile")]) == 0
    assert chatted(client)[0] == 2
    assert main(["rm", "mine"]) == 0
    (running,) = client.ps().models
    assert running.model == "mine:latest" and running.size_vram
    capsys.readouterr()
    assert main(["stop", "mine", "--host", store_api.url]) == 0
    assert client.ps().models == []
    assert main(["stop", "mine", "--host", store_api.url]) == 1
    out, err = capsys.readouterr()
    assert out == "wgemma no longer has mine in memory.\n" and "model 'mine' not found" in err


def test_a_deleted_model_leaves_when_somebody_asks_for_it(client: Client, store_api: Api, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nPARAMETER num_predict 2\n")
    assert main(["create", "mine", "-f", str(tmp_path / "Modelfile")]) == 0
    assert chatted(client)[0] == 2
    with pytest.raises(ResponseError, match="not found"):
        client.chat("mine+no-adapter", ASK)
    assert len(client.ps().models) == 1
    assert main(["rm", "mine"]) == 0
    with pytest.raises(ResponseError, match="model 'mine' not found"):
        client.chat("mine", ASK)
    store_api.wait(lambda: client.ps().models == [])


MAKE, NONE = {"model": "made", "stream": False}, digest_of(b"none")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("POST", "pull", None, 400, "The body is missing; it must be a JSON object."),
        ("DELETE", "delete", None, 400, "The body is missing; it must be a JSON object."),
        ("POST", "create", [], 400, "The body must be a JSON object."),
        ("POST", "pull", {}, 400, "model is missing."),
        ("POST", "show", {}, 400, "model is missing."),
        ("POST", "pull", {"model": 5}, 400, "model is 5; it must be a string."),
        ("POST", "copy", {"source": "a"}, 400, "destination is missing."),
        ("POST", "pull", {"model": TINY}, 403, "wgemma-tiny comes with wgemma: there is nothing to pull. `wgemma run`"),
        ("POST", "pull", {"model": "evil.example/a/b"}, 403, "Models may not be pulled from evil.example; `wgemma"),
        ("DELETE", "delete", {"model": TINY}, 403, "wgemma-tiny comes with wgemma: it cannot be deleted."),
        ("DELETE", "delete", {"name": "gemma4:tiny"}, 403, "gemma4:tiny is in Ollama's store, which wgemma only"),
        ("DELETE", "delete", {"name": "nobody"}, 404, "model 'nobody' not found"),
        ("POST", "copy", {"source": "gemma4:tiny", "destination": TINY}, 403, "wgemma-tiny comes with wgemma: choose"),
        ("POST", "create", MAKE, 400, "made:latest: name either a model to build upon or files, one of the two."),
        ("POST", "create", {**MAKE, "from": 7}, 400, "from must be a string."),
        ("POST", "create", {**MAKE, "from": TINY, "messages": [{"role": "x"}]}, 400, "messages[0] must have a role"),
        ("POST", "create", {**MAKE, "from": TINY, "parameters": {"top_k": True}}, 400, "top_k is true; it must be"),
        ("POST", "create", {**MAKE, "files": ["x"]}, 400, "files must be an object of names and digests."),
        ("POST", "create", {**MAKE, "files": {"a.gguf": NONE}}, 400, "a.gguf: at byte 0: this is not a GGUF file"),
        ("POST", "create", {**MAKE, "from": TINY, "adapters": {"lora": NONE}}, 400, "lora: at byte 0: this is not"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    store_api: Api,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: object,
    status: int,
    sentence: str,
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    store_api.ask(f"/api/blobs/{NONE}", b"none")
    answer = store_api.ask(f"/api/{path}", body, method=method)
    assert (answer.status, answer.json["error"][: len(sentence)]) == (status, sentence)
    assert str(data) not in answer.text and str(Stores.find().own.root) not in answer.text
    assert Stores.find().own.models() == []


def test_a_model_copied_onto_itself_stays(client: Client) -> None:
    client.copy(TINY, "mine")
    assert client.copy("mine", "mine").status == "success"
    assert client.chat("mine", ASK).message.content == "2 + 3 = 5"


def test_more_bytes_than_announced_are_no_part_of_a_blob(store_api: Api) -> None:
    data = b"0123456789" * 1000
    head = f"POST /api/blobs/{digest_of(data)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data) - 5}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", store_api.port), timeout=10) as connection:
        connection.sendall(head.encode() + data)
        assert connection.recv(12) == b"HTTP/1.1 400"
    assert store_api.ask(f"/api/blobs/{digest_of(data)}", method="HEAD").status == 404
    assert store_api.ask(f"/api/blobs/{digest_of(data)}", data).status == 201


def test_a_damaged_model_is_told_as_such_and_can_be_deleted(store_api: Api) -> None:
    for damage in (b"{", b"{}"):
        assert store_api.ask("/api/copy", {"source": TINY, "destination": "mine"}).status == 200
        Stores.find().own.manifest(Name.parse("mine")).write_bytes(damage)
        for path, body in (
            ("copy", {"source": "mine", "destination": "other"}),
            ("create", {"model": "other", "from": "mine", "stream": False}),
        ):
            answer = store_api.ask(f"/api/{path}", body)
            assert answer.status == 502 and answer.json["error"].startswith("The model's manifest is damaged, or of")
        assert store_api.ask("/api/chat", {"model": "mine", "messages": ASK}).status == 500
        assert store_api.ask("/api/delete", {"model": "mine"}, method="DELETE").status == 200
        assert Stores.find().own.names() == []
