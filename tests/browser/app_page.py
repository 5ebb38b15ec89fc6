"""The page people chat with as the tests use it: spoken to by the names of its parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def without_engine(place: Any) -> None:
    """In that page or context a script takes the engine's part."""
    place.route("**/wgemma.js", lambda route: route.fulfill(body=SCRIPT, content_type="text/javascript"))


@contextmanager
def visits(browser: Any, url: str) -> Iterator[Callable[..., App]]:
    """Opens the page in a browser that knows nothing yet; `script=False` leaves the engine in it."""
    contexts = []

    def visit(script: bool = True, models: Any = MODELS, init: str = "", **how: Any) -> App:
        context = browser.new_context(service_workers="block", **{"viewport": {"width": 1280, "height": 800}, **how})
        contexts.append(context)
        context.route("**/models.json", lambda route: route.fulfill(json=models))
        if script:
            without_engine(context)
        if init:
            context.add_init_script(init)
        page = context.new_page()
        page.set_default_timeout(10_000)
        return App(page, url)

    yield visit
    for context in contexts:
        context.close()
