"""What web developers get: the page that docs/browser.md shows runs as it stands, and the types say what is there."""

import re
from pathlib import Path
from typing import Any

from face import Face

ROOT = Path(__file__).resolve().parent.parent.parent
WEB = ROOT / "src/wgemma/web"
BLOCK = re.compile(r"```(html|js)\n(.*?)```", re.DOTALL)


def test_the_example_of_the_documentation_answers(browser: Any, server: Any, micro: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/browser.md").read_text()
    blocks = dict(reversed(BLOCK.findall(text)))  # the first of each kind
    for name, kind in (("page.html", "html"), ("main.js", "js")):
        server.files[name] = tmp_path / name
        server.files[name].write_text(blocks[kind])
    server.models["gemma.gguf"] = server.models["micro.gguf"]
    page = browser.new_page()
    page.set_default_timeout(120_000)  # milliseconds: WebGPU in software, on a busy machine
    page.goto(f"{server.url}/page.html")
    page.click("button")  # waits until the model is there
    page.wait_for_function("() => document.querySelector('output').textContent.length > 3")
    page.close()


NAMES = """async () => {
  const module = await import("/wgemma.js");
  const names = Object.getOwnPropertyNames(module.Model.prototype).filter((name) => name !== "constructor");
  return {values: Object.keys(module).sort(), methods: names.sort()};
}"""
CODE = re.compile(r"^ \* {3}([a-z-]+) {2}", re.MULTILINE)  # as trouble.js lists them


def test_the_types_name_what_the_module_has(face: Face) -> None:
    types = (WEB / "wgemma.d.ts").read_text()
    found = face.run(NAMES)
    assert sorted(re.findall(r"^export (?:class|function) (\w+)", types, re.MULTILINE)) == found["values"]
    model = re.search(r"export class Model \{(.*?)\n\}", types, re.DOTALL)
    assert model and sorted(re.findall(r"^  (\w+)\(", model[1], re.MULTILINE)) == found["methods"]
    codes = re.search(r"export type ErrorCode =(.*?);", types, re.DOTALL)
    assert codes and re.findall(r'"([a-z-]+)"', codes[1]) == CODE.findall((WEB / "trouble.js").read_text())


def test_the_types_name_what_a_model_tells(face: Face, micro: str) -> None:
    types = face.run("async () => (await fetch('/wgemma.d.ts')).text()")  # it is served, too

    def fields(name: str) -> set[str]:
        body = re.search(rf"export interface {name} \{{(.*?)\n\}}", types, re.DOTALL)
        assert body
        return set(re.findall(r"^  (\w+)\??:", body[1], re.MULTILINE))

    told = face.load(micro)
    assert set(told["info"]) == fields("ModelInfo")
    assert set(told["stages"][0]) - {"at"} == fields("Progress")
    parts = face.chat([{"role": "user", "content": "Hello"}], maxTokens=3)["parts"]
    assert set().union(*parts) - {"at"} == fields("Part") - {"toolCall"}
