"""Where a page's models come from: web servers good and bad, the browser's storage, picked files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from face import Face

from gguf_parts import cut, part_name
from wgemma.files.gguf import Gguf


@pytest.fixture(scope="module")
def model(server: Any, micro: str) -> bytes:
    data: bytes = server.models["micro.gguf"].read_bytes()
    return data


@pytest.fixture(autouse=True)
def fresh(face: Face, server: Any) -> Iterator[None]:
    """Nothing is kept from one test to the next, and the server behaves again."""
    forget = """async () => {
      await globalThis.model?.close();
      globalThis.model = null;
      for (const {url} of await w.saved()) await w.forget(url);
    }"""
    face.run(forget)
    yield
    server.gone = False
    server.cuts.clear()
    face.run(forget)


def requests(server: Any, name: str) -> list[str]:
    """The Range of every request for a model."""
    return [span for path, span in server.asked if path == f"models/{name}"]


def test_a_model_is_kept_and_loads_without_the_server(face: Face, server: Any, model: bytes) -> None:
    server.models["kept.gguf"] = model
    first = face.load("/models/kept.gguf")
    assert [told["stage"] for told in first["stages"]] == ["start", "download", "check", "load", "ready"]
    (kept,) = [told for told in face.run("() => w.saved()") if told["name"] == "kept.gguf"]
    assert (kept["size"], kept["loaded"], kept["whole"]) == (len(model), len(model), True)
    server.gone = True
    again = face.load("/models/kept.gguf")
    assert again["info"] == first["info"] | {name: again["info"][name] for name in ("gpuBytes", "loading")}
    stages = [stage["name"] for stage in again["info"]["loading"]["stages"]]
    assert {"Python", "header", "GPU", "self-test", "weights", "vocabulary"} < set(stages)
    assert again["info"]["loading"]["total"] <= again["took"]


def test_a_download_that_was_cut_goes_on_where_it_stopped(face: Face, server: Any, model: bytes) -> None:
    server.models["cut.gguf"] = model
    server.cuts["cut.gguf"] = [300_001, 0, 200_003]
    told = face.load("/models/cut.gguf", sha256=hashlib.sha256(model).hexdigest())
    assert told["info"]["bytes"] == len(model)
    begun = [int(span[6:-1] or 0) for span in requests(server, "cut.gguf")[1:]]
    assert len(begun) == 3 and 0 < begun[0] == begun[1] < begun[2] < len(model)


def test_a_download_goes_on_after_the_page_was_left(face: Face, server: Any, model: bytes) -> None:
    server.models["left.gguf"] = model
    server.cuts["left.gguf"] = [400_000, *[0] * 9]
    failed = face.attempt("/models/left.gguf")
    assert failed["code"] == "network" and "of 1.3 MB are kept" in failed["message"]
    server.cuts.clear()
    face.reload()
    told = face.load("/models/left.gguf", sha256=hashlib.sha256(model).hexdigest())
    assert told["info"]["bytes"] == len(model)
    assert int(requests(server, "left.gguf")[-1][6:-1]) > 0


def test_a_download_goes_on_while_the_page_before_still_holds_its_file(
    face: Face, server: Any, model: bytes, tmp_path: Path
) -> None:
    """A reloaded page's former Worker does, for a moment."""
    server.models["held.gguf"] = model
    server.cuts["held.gguf"] = [400_000, *[0] * 9]
    face.attempt("/models/held.gguf")
    server.cuts.clear()
    server.files["holding.js"] = tmp_path / "holding.js"
    server.files["holding.js"].write_text(
        """const place = await (await navigator.storage.getDirectory()).getDirectoryHandle("wgemma");
        for await (const [name, entry] of place) {
          if (!name.endsWith(".gguf")) continue;
          const held = await entry.createSyncAccessHandle();
          setTimeout(() => (held.close(), close()), 1000);
          postMessage(name);
        }"""
    )
    held = """() => new Promise((resolve, reject) => {
      const worker = new Worker("/holding.js", { type: "module" });
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = reject;
    })"""
    assert face.run(held).endswith(".gguf")
    face.load("/models/held.gguf", sha256=hashlib.sha256(model).hexdigest())
    assert [told["whole"] for told in face.run("() => w.saved()")] == [True]


def test_a_file_that_changed_meanwhile_is_downloaded_anew(face: Face, server: Any, model: bytes) -> None:
    server.models["changed.gguf"] = model
    server.cuts["changed.gguf"] = [400_000, *[0] * 9]
    face.attempt("/models/changed.gguf")
    server.cuts.clear()
    server.models["changed.gguf"] = model + bytes(32)
    assert face.load("/models/changed.gguf")["info"]["bytes"] == len(model) + 32


def test_a_download_with_the_wrong_hash_is_refused_and_not_kept(face: Face, server: Any, model: bytes) -> None:
    server.models["wrong.gguf"] = model
    told = face.attempt("/models/wrong.gguf", sha256="0" * 64)
    assert told["code"] == "network" and "hash" in told["message"]
    assert face.run("() => w.saved()") == []


def test_a_model_can_be_streamed_without_being_kept(face: Face, server: Any, model: bytes) -> None:
    server.models["streamed.gguf"] = model
    server.cuts["streamed.gguf"] = [1, 70_001, 12]
    assert face.load("/models/streamed.gguf", save=False)["info"]["bytes"] == len(model)
    assert face.run("() => w.saved()") == []
    assert all(span.startswith("bytes=") for span in requests(server, "streamed.gguf"))


def test_a_picked_file_is_loaded(face: Face, micro: str) -> None:
    told = face.run(
        """async (url) => {
          const blob = await (await fetch(url)).blob();
          return loadModel(new File([blob], "picked.gguf"), {});
        }""",
        micro,
    )
    assert told["info"]["name"] == "picked.gguf" and told["info"]["vocabulary"] == 1024


BAD = {
    "page.gguf": (b"<!doctype html><title>Not found</title>" * 40, "not-gguf", "page.gguf"),
    "short.gguf": (None, "cut-off", "Is the download complete?"),
    "empty.gguf": (b"GG", "cut-off", "Is the download complete?"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_model_says_so(face: Face, server: Any, model: bytes, name: str) -> None:
    body, code, words = BAD[name]
    server.models[name] = model[:-1000] if body is None else body
    told = face.attempt(f"/models/{name}")
    assert told["code"] == code and words in told["message"]
    assert face.run("() => w.saved()") == []


def test_a_missing_model_and_a_lost_server_say_so(face: Face, server: Any) -> None:
    told = face.attempt("/models/nowhere.gguf")
    assert told["code"] == "network" and "404" in told["message"]
    server.gone = True
    told = face.attempt("/models/nowhere.gguf")
    assert told["code"] == "network" and "does not answer" in told["message"]


def test_a_quota_that_is_too_small_is_explained(face: Face, server: Any, model: bytes) -> None:
    server.models["large.gguf"] = model
    devtools = face.page.context.new_cdp_session(face.page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url, "quotaSize": 200_000})
    try:
        told = face.attempt("/models/large.gguf")
    finally:
        devtools.send("Storage.overrideQuotaForOrigin", {"origin": server.url})
    assert told["code"] == "quota" and "1.3 MB" in told["message"]
    assert face.load("/models/large.gguf")["info"]["bytes"] == len(model)


GIVE_UP = """async ([url, file, when]) => {
  const stop = new AbortController();
  const told = [];
  const onProgress = ({stage}) => { told.push(stage); if (stage === when) stop.abort(); };
  const source = file ? await (await fetch(url)).blob() : url;
  return {...await attempt(() => w.load(source, {signal: stop.signal, onProgress})), told};
}"""


def test_loading_can_be_given_up(face: Face, server: Any, model: bytes) -> None:
    server.models["slow.gguf"] = model
    server.cuts["slow.gguf"] = [1000, *[0] * 50]
    for file, when in ((False, "download"), (True, "start"), (True, "check")):
        told = face.run(GIVE_UP, ["/models/slow.gguf", file, when])
        server.cuts.clear()
        assert "abort" in told["message"] and "ready" not in told["told"]
    assert face.load("/models/slow.gguf")["info"]["bytes"] == len(model)
    assert len(face.page.workers) == 1  # one Python serves one model after another


def test_the_storage_answers_whatever_is_collected_meanwhile(browser: Any, server: Any, tmp_path: Path) -> None:
    """Chromium forgets an answer when the handle that was asked is gone."""
    server.files["collecting.js"] = tmp_path / "collecting.js"
    server.files["collecting.js"].write_text(
        """import { verdicts } from "./opfs.js";
        setInterval(gc, 0);
        for (let i = 0; i < 20; i++) await verdicts.write("{}");
        postMessage(await verdicts.read());"""
    )
    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    told = page.evaluate(
        """() => new Promise((resolve) => {
          const worker = new Worker("collecting.js", { type: "module" });
          worker.onmessage = ({ data }) => resolve(data);
          setTimeout(() => resolve("no answer"), 10000);
        })"""
    )
    page.close()
    assert told == "{}"


def test_what_cannot_be_a_source_says_so(face: Face) -> None:
    for source in (None, 5, "http://"):
        told = face.attempt(source)
        assert told["code"] == "settings" and "URL" in told["message"]


# -- models in parts


@pytest.fixture(scope="module")
def parts(model: bytes) -> dict[str, bytes]:
    return {part_name("cut", i, 3): data for i, data in enumerate(cut(Gguf.open(model), 3), 1)}


PICKED = """async (parts) => {
  const files = await Promise.all(parts.map(async (name) => {
    const answer = await fetch(`/models/${name}`, {headers: {Range: "bytes=0-"}});
    return new File([await answer.blob()], name);
  }));
  return loadModel(files, {});
}"""


def test_one_part_of_a_model_loads_them_all(face: Face, server: Any, model: bytes, parts: dict[str, bytes]) -> None:
    server.models |= parts
    expected = face.load("/models/micro.gguf")["info"]
    logits = face.floats("model.logits([5, 6, 7])")
    told = face.load(f"/models/{list(parts)[1]}")
    assert told["info"]["name"] == "cut.gguf" and told["info"]["parameters"] == expected["parameters"]
    assert told["info"]["bytes"] == sum(map(len, parts.values()))
    assert (face.floats("model.logits([5, 6, 7])") == logits).all()
    assert {kept["name"] for kept in face.run("() => w.saved()")} >= parts.keys()
    offered = face.run("async () => (await import('/ui/models.js')).offeredModels()")
    (entry,) = [entry for entry in offered if entry["name"] == "cut.gguf"]
    assert entry["url"].endswith(f"/models/{next(iter(parts))}") and entry["size"] == told["info"]["bytes"]
    server.gone = True
    face.load(f"/models/{list(parts)[2]}")
    assert (face.floats("model.logits([5, 6, 7])") == logits).all()


def test_picked_parts_load_in_any_order(face: Face, server: Any, model: bytes, parts: dict[str, bytes]) -> None:
    server.models |= parts
    names = list(parts)
    told = face.run(PICKED, [names[2], names[0], names[1]])
    assert told["info"]["name"] == "cut.gguf"
    lacking = face.run(PICKED, [names[2], names[0]])
    assert lacking["code"] == "not-gguf" and "3 parts, and part 2 is missing" in lacking["message"]
    single = face.run(PICKED, names[:1])
    assert single["code"] == "not-gguf" and "3 parts, and parts 2, 3 are missing" in single["message"]


def test_a_part_that_is_not_on_the_server_is_named(face: Face, server: Any, parts: dict[str, bytes]) -> None:
    server.models |= {name.replace("cut", "less"): data for name, data in list(parts.items())[:2]}
    failed = face.attempt("/models/less-00001-of-00003.gguf")
    assert failed["code"] == "network" and "less-00003-of-00003.gguf" in failed["message"]
