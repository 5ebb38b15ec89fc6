"""The page people chat with as the tests use it: spoken to by the names of its parts."""

from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("scripted_wgemma.js").read_text(encoding="utf-8")
FACTS = {"quantisation": "Q4_K_M", "parameters": 5_123_178_051, "capabilities": ["completion", "vision", "audio"]}
MODELS = [
    {"name": "tiny", "url": "models/tiny.gguf", "size": 15_000_000, "digest": "a" * 64, "embedded": True, **FACTS},
    {"name": "gemma4:e2b", "url": "models/e2b.gguf", "size": 7_162_394_016, "digest": "b" * 64, **FACTS}
    | {"settings": {"temperature": 0.7, "topK": 20}, "system": "You are a pirate."},
]


class App:
    """The open page, spoken to by the names of its parts."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))

    def __getitem__(self, name: str) -> Any:
        return self.page.get_by_test_id(name)

    def open(self) -> "App":
        self.page.goto(self.url)
        return self.ready()

    def ready(self, timeout: float = 10_000) -> "App":
        self.page.wait_for_function(
            "() => document.querySelector('[data-testid=status]').textContent === 'ready'", timeout=timeout
        )
        return self

    def script(self, *answers: list[Any]) -> None:
        self.page.evaluate("(answers) => { scripted.answers = answers }", list(answers))

    def say(self, text: str) -> None:
        self["prompt"].fill(text)
        self["prompt"].press("Enter")

    def ask(self, text: str) -> str:
        self.say(text)
        return self.answered()

    def answered(self) -> str:
        self.ready()
        return self["message-model"].last.inner_text()

    def asked(self) -> list[dict[str, Any]]:
        return self.page.evaluate("() => scripted.asked")

    def text(self, name: str) -> str:
        return str(self[name].inner_text())
