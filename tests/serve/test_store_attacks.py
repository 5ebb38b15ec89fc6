"""Attacks on the addresses that change the store, as other servers fell for them. Each names its row of the list."""

import hashlib
import io
import json
import os
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Answer, Api, serving
from fake_models import Garage
from gguf_writer import write_gguf
from registry_server import Registry
from registry_server import serving as registry_serving
from wgemma.files import web
from wgemma.files.stores import Stores
from wgemma.serve.settings import Settings

CHANGES = [("/api/pull", "POST"), ("/api/create", "POST"), ("/api/copy", "POST"), ("/api/delete", "DELETE")]
UPLOAD = ("/api/blobs/sha256:" + "0" * 64, "POST")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_serving() as server:
        yield server


@pytest.fixture
def store_api(registry: Registry) -> Iterator[Api]:
    with serving(Settings(registries=(registry.host,)), Garage()) as api:
        yield api


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def pulled(api: Api, registry: Registry, name: str = "acme/tiny:x", **fields: Any) -> Answer:
    return api.ask("/api/pull", {"model": f"{registry.host}/{name}", **fields})


def problem(answer: Answer) -> str:
    """The error, which stands in the last line if the answer had begun."""
    said: str = json.loads(answer.text.splitlines()[-1])["error"]
    assert "/" not in said and "0x" not in said and "Error" not in said
    return said


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def created(api: Api, data: bytes, **fields: Any) -> Answer:
    """Sends a file, and asks for a model of it."""
    assert api.ask(f"/api/blobs/{digest_of(data)}", data).status in (200, 201)
    return api.ask("/api/create", {"model": "made", "files": {"a.gguf": digest_of(data)}, "stream": False, **fields})


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../../../../../tmp/evil",
        "../../../evil",
        "sha256-" + "../" * 20 + "a",
        "sha256:" + "a" * 63 + "/",
        "sha256:" + "A" * 65,
        "",
        None,
        5,
    ],
)
def test_a_digest_of_a_registry_is_never_a_path(
    store_api: Api, registry: Registry, tmp_path: Path, digest: Any
) -> None:
    """CVE-2024-37032 ("Probllama") and CVE-2026-103663."""
    manifest = registry.add("acme/tiny:x", [("model", b"m" * 500)])
    for place in ("layer", "config"):
        entry = manifest["config"] if place == "config" else manifest["layers"][0]
        kept = dict(entry)
        entry["digest"] = digest
        registry.put("acme/tiny:x", manifest)
        problem(pulled(store_api, registry))
        entry |= kept
    assert not files(tmp_path)


def test_bytes_are_hashed_before_they_get_their_name(store_api: Api, registry: Registry, tmp_path: Path) -> None:
    """CVE-2024-37032: what a registry sends need not be what it announced."""
    manifest = registry.add("acme/tiny:x", [("model", b"m" * 500)])
    path = f"/v2/acme/tiny/blobs/{manifest['layers'][0]['digest']}"
    registry.blobs[path] = b"w" * 500
    problem(pulled(store_api, registry))
    assert not [path for path in files(tmp_path) if path.read_bytes() == b"w" * 500]


@pytest.mark.parametrize(
    "name",
    [
        "169.254.169.254/latest/meta-data",
        "127.0.0.1:1/a/b",
        "localhost/a/b",
        "evil.example/a/b:c",
        "registry.ollama.ai.evil.example/a/b",
        "REGISTRY/a/b",
    ],
)
def test_a_caller_does_not_choose_the_host(store_api: Api, name: str) -> None:
    """CVE-2026-5530: a pull reached any host."""
    for stream in (True, False):
        answer = store_api.ask("/api/pull", {"model": name, "stream": stream})
        assert answer.status == 403 and problem(answer)


@pytest.mark.parametrize(
    "name", ["registry.ollama.ai@127.0.0.1:1/a/b", "http://x@y/a/b", "a/b/c/d", "file:///etc/passwd", "a b", "..", "/"]
)
def test_what_is_no_name_is_no_address(store_api: Api, name: str) -> None:
    """CVE-2026-5530, by parsers that disagree."""
    assert store_api.ask("/api/pull", {"model": name}).status == 400


@pytest.mark.parametrize("place", ["http://169.254.169.254/latest", "https://10.0.0.1/x", "file:///etc/passwd"])
def test_a_registry_does_not_lead_into_the_network(
    store_api: Api, registry: Registry, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-5530, by a redirect."""
    asked: list[str] = []
    ask = web._response

    def noted(url: str, *how: Any) -> Any:
        asked.append(url)
        return ask(url, *how)

    monkeypatch.setattr(web, "_response", noted)
    manifest = registry.add("acme/tiny:x", [("model", b"m" * 500)])
    path = f"/v2/acme/tiny/blobs/{manifest['layers'][0]['digest']}"
    registry.redirects[path] = place
    problem(pulled(store_api, registry))
    assert f"http://{registry.host}{path}" in asked and place not in asked


def test_no_token_goes_where_a_registry_points() -> None:
    """CVE-2025-51471: the realm of a challenge was another host."""
    with socket.create_server(("127.0.0.1", 0)) as canary, socket.create_server(("127.0.0.1", 0)) as listener:
        realm = f"http://127.0.0.1:{canary.getsockname()[1]}/token"
        head = f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="{realm}",service="x"\r\nContent-Length: 0\r\n\r\n'

        def challenge() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(head.encode())

        threading.Thread(target=challenge, daemon=True).start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(Settings(registries=(host,)), Garage()) as api:
            assert "wants a login" in api.ask("/api/pull", {"model": f"{host}/acme/tiny:x"}).text
        canary.settimeout(0.05)
        with pytest.raises(TimeoutError):
            canary.accept()
        listener.shutdown(socket.SHUT_RDWR)


def test_only_our_own_store_is_deleted_from(store_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ollama 0.1.33: a pull deleted any file."""
    ollama = tmp_path / "theirs/manifests/registry.ollama.ai/library/precious/latest"
    ollama.parent.mkdir(parents=True)
    ollama.write_text("{}")
    outside = tmp_path / "outside"
    outside.write_text("x")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "theirs"))
    for name in ("precious", "../../outside", str(outside), "..", "a/../../../../outside", "%2e%2e/outside", TINY):
        assert store_api.ask("/api/delete", {"model": name}, method="DELETE").status in (400, 403, 404)
    assert ollama.exists() and outside.exists()


def test_a_manifest_in_our_store_names_no_file_outside_it(store_api: Api, tmp_path: Path) -> None:
    """The same, by a manifest whose digests are paths."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    manifest = Stores.find().own.root / "manifests/registry.ollama.ai/library/bad/latest"
    manifest.parent.mkdir(parents=True)
    entry = {"mediaType": "x", "digest": "sha256:../../outside", "size": 1}
    manifest.write_text(json.dumps({"config": entry, "layers": [entry]}))
    store_api.ask("/api/delete", {"model": "bad"}, method="DELETE")
    assert outside.exists()


def test_no_answer_tells_which_files_exist(store_api: Api, tmp_path: Path) -> None:
    """CVE-2024-39719 and CVE-2024-39722."""
    there, gone = tmp_path / "there", tmp_path / "gone0"
    there.write_bytes(b"GGUF")
    for path, method, body in (
        ("/api/create", "POST", lambda name: {"model": "a", "from": name}),
        ("/api/create", "POST", lambda name: {"model": "a", "files": {"m": name}}),
        ("/api/create", "POST", lambda name: {"model": "a", "from": TINY, "adapters": {"m": name}}),
        ("/api/create", "POST", lambda name: {"model": "a", "modelfile": f"FROM {name}"}),
        ("/api/create", "POST", lambda name: {"model": "a", "path": name}),
        ("/api/copy", "POST", lambda name: {"source": name, "destination": "a"}),
        ("/api/delete", "DELETE", lambda name: {"model": name}),
        ("/api/pull", "POST", lambda name: {"model": name}),
        ("/api/push", "POST", lambda name: {"model": name}),
        ("/api/show", "POST", lambda name: {"model": name}),
    ):
        told = []
        for file in (there, gone):
            answer = store_api.ask(path, body(str(file)), method=method)
            told.append((answer.status, answer.text.replace(str(file), "x")))
        assert told[0] == told[1] and told[0][0] in (400, 404), (path, told)


@pytest.mark.parametrize("data", [b"", b"G", b"GGUF", b"GGUF\x03\0\0\0", b"GGUF" + b"\xff" * 100, b"GGLA" * 20])
def test_a_file_of_a_few_bytes_is_refused(store_api: Api, data: bytes) -> None:
    """CVE-2024-39720: four bytes brought the server down."""
    answer = created(store_api, data)
    assert answer.status == 400 and problem(answer)
    assert store_api.ask("/health").status == 200


def test_claims_of_a_header_are_checked_against_the_file(store_api: Api) -> None:
    """CVE-2026-7482 ("Bleeding Llama"), CVE-2024-12055, CVE-2025-0312 and kin, CVE-2025-53630, CVE-2026-33298."""
    good = write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
    assert created(store_api, good).status == 200
    for start in range(8, len(good) - 8, 8):
        data = good[:start] + b"\xff" * 7 + b"\x7f" + good[start + 8 :]
        answer = created(store_api, data, model="hurt")
        assert answer.status in (200, 400), (start, answer.text)
    for cut in range(0, len(good), 16):
        assert created(store_api, good[:cut], model="cut").status == 400


def test_a_device_or_a_pipe_is_no_file(store_api: Api) -> None:
    """CVE-2024-39721: a model made of /dev/random took for ever."""
    for name in ("/dev/random", "/dev/zero", "/proc/self/mem"):
        for body in ({"from": name}, {"files": {"m": name}}, {"files": {name: "sha256:" + "0" * 64}}):
            assert store_api.ask("/api/create", {"model": "a", "stream": False, **body}).status == 400
    blobs = Stores.find().own.root / "blobs"
    blobs.mkdir(parents=True)
    os.mkfifo(blobs / ("sha256-" + "1" * 64))
    (blobs / ("sha256-" + "2" * 64)).symlink_to("/dev/zero")
    for digit in "12":
        digest = "sha256:" + digit * 64
        assert store_api.ask(f"/api/blobs/{digest}", method="HEAD").status == 404
        answer = store_api.ask("/api/create", {"model": "a", "files": {"m": digest}, "stream": False})
        assert answer.status == 400 and problem(answer)


def test_an_archive_is_not_unpacked(store_api: Api, tmp_path: Path) -> None:
    """CVE-2024-45436: a member of a zip left its folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../../escaped", "x")
        archive.writestr("config.json", "{}")
    assert created(store_api, packed.getvalue()).status == 400
    assert not [path for path in files(tmp_path) if path.name in ("escaped", "config.json")]


def test_nothing_is_pushed_or_updated(store_api: Api) -> None:
    """CVE-2026-7482 left by a push; CVE-2026-42248 came by an update."""
    for path in ("/api/push", "/api/update", "/api/experimental/update", "/api/signin"):
        assert store_api.ask(path, {"model": TINY}).status == 404


def test_who_has_no_key_changes_nothing(tmp_path: Path) -> None:
    """CVE-2025-63389: no authentication in front of the models."""
    with serving(Settings(key="secret"), Garage()) as api:
        for path, method in [*CHANGES, UPLOAD, (UPLOAD[0], "HEAD")]:
            for headers in ({}, {"Authorization": "Bearer guess"}):
                assert api.ask(path, {"model": "a"}, method=method, headers=headers).status == 401
    assert not files(tmp_path)


def test_no_page_changes_anything(store_api: Api, tmp_path: Path) -> None:
    """CVE-2024-28224 (DNS rebinding), and requests that pages send without being asked."""
    for path, method in [*CHANGES, UPLOAD]:
        for headers in (
            {"Host": "evil.example"},
            {"Host": "evil.local:11434"},
            {"Host": "evil.internal"},
            {"Origin": "https://evil.example"},
            {"Origin": "null", "Content-Type": "text/plain"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert store_api.ask(path, {"model": "a"}, method=method, headers=headers).status == 403
        own = {"Origin": f"http://127.0.0.1:{store_api.port}", "Content-Type": "text/plain"}
        if method == "POST":
            assert store_api.ask(path, {"model": "a"}, headers=own).status == 415
    assert not files(tmp_path)


def test_templates_are_not_kept(store_api: Api) -> None:
    """CVE-2024-34359 ("Llama Drama"), CVE-2026-5760: a model's template ran as a program."""
    data = write_gguf(
        {
            "general.architecture": "gemma4",
            "tokenizer.chat_template": "{{ cycler.__init__.__globals__.os.system('id') }}",
        },
        {"x": ("F32", (32,), None)},
    )
    assert created(store_api, data).status == 200
    assert created(store_api, data, template="{{ 7*7 }}").status == 400


def test_a_model_has_few_licenses(store_api: Api, tmp_path: Path) -> None:
    """Each is a file."""
    data = write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
    before = len(files(tmp_path))
    assert created(store_api, data, license=[str(i) for i in range(5000)]).status == 400
    assert len(files(tmp_path)) == before + 1


def test_a_model_that_could_not_be_read_again_is_not_made(store_api: Api) -> None:
    data = write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)})
    assert "MiB" in created(store_api, data, system="x" * (5 << 20)).json["error"]
    assert store_api.ask("/api/show", {"model": "made"}).status == 404
