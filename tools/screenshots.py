"""Screenshots of the page: `make screenshots` writes docs/img.

Uses the real app in a real Chromium, with the embedded model loaded. The conversations were written for the screenshots
and are imported from a file of chats, as a user would do it.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "img"
LARGEST = 150_000  # bytes of a picture
DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
FLAGS = ("--enable-unsafe-webgpu", "--no-sandbox", "--hide-scrollbars")
HOUR = 3_600_000

RAINBOW = """A rainbow is sunlight that millions of raindrops have **bent, split and sent back** to you.

1. Light enters a drop and *bends*, violet a little more than red.
2. It bounces off the back of the drop.
3. It bends again on the way out, and the colours part.

| Colour | Angle | Where |
|:--|--:|:--|
| Red | 42.4° | outer edge |
| Violet | 40.7° | inner edge |

The angle follows from the refractive index alone:

```python
from math import acos, asin, degrees, sin, sqrt

def bow(n: float) -> float:
    # the ray that is turned around least is the brightest
    i = acos(sqrt((n * n - 1) / 3))
    return degrees(4 * asin(sin(i) / n) - 2 * i)
```

With `bow(1.331)` you get the **42.4°** of the red edge."""

THOUGHT = """The user wants to know about rainbows, with numbers. I will name the three steps, give the two angles in a
table, and show how they follow from the refractive index."""

WEATHER = {"name": "get_forecast", "arguments": {"city": "Lisbon", "days": 3, "units": "metric"}}


LESSONS = [
    ("Who are you?", "Captain Gemma, matey!"),
    ("What is for dinner?", "Fish and a biscuit, arr."),
    ("Where do you live?", "On the seven seas!"),
    ("Can you help me?", "Aye, what is it, matey?"),
    ("What is the weather?", "A fair wind, arr."),
    ("Good night.", "Sleep tight, matey!"),
]


def chat(title: str, hours: float, *said: dict[str, Any], **settings: Any) -> dict[str, Any]:
    now = time.time() * 1000 - hours * HOUR
    messages = [
        {"id": str(i), "parent": str(i - 1) if i else None, "created": now + i, "model": "gemma4:e2b", **message}
        for i, message in enumerate(said)
    ]
    return {"title": title, "created": now, "updated": now, "messages": messages, "settings": settings}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "finish": "stop", **more}


CHATS = [
    chat(
        "How does a rainbow come about?",
        0,
        user("How does a rainbow come about? With the numbers, please."),
        model(RAINBOW, thinking=THOUGHT),
        think=True,
    ),
    chat(
        "Packing for Lisbon",
        0.3,
        user("Will I need an umbrella in Lisbon this week?"),
        model("Let me look at the forecast.", calls=[WEATHER]),
    ),
    chat("Sourdough: why is my crumb so tight?", 20, user("Why?"), model("Because.")),
    chat("E-mail to the landlord about the heating", 23, user("Write."), model("Done.")),
    chat("Regex for ISO dates", 50, user("How?"), model("So.")),
    chat("Names for a small blue boat", 75, user("Some?"), model("Azulinha.")),
    chat("Explain the Krebs cycle with a kitchen", 130, user("How?"), model("So.")),
]


@contextmanager
def running_app() -> Iterator[str]:
    """`wgemma app`, offering only the embedded model."""
    command = [sys.executable, "-m", "wgemma", "app", "--no-open", "--port", "0"]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "OLLAMA_MODELS": empty}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield next(found[1] for line in process.stdout if (found := re.search(r"is at (http\S+)", line)))
            finally:
                process.terminate()


def visit(browser: Browser, url: str, how: dict[str, Any], **more: Any) -> Page:
    page = browser.new_context(reduced_motion="reduce", **how, **more).new_page()
    page.set_default_timeout(180_000)
    page.goto(url)
    return page


def ready(page: Page) -> None:
    page.wait_for_function("() => document.querySelector('[data-testid=status]').textContent === 'ready'")


def bring(page: Page, chats: list[dict[str, Any]], title: str) -> None:
    """Imports chats and opens one."""
    content = json.dumps({"format": "wgemma chats", "version": 1, "chats": chats}).encode()
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": content}
    page.get_by_test_id("import").set_input_files(file)
    page.get_by_label("Dismiss").click()
    item = page.get_by_test_id("chat").get_by_text(title)
    if not item.is_visible():
        page.get_by_label("Show the list of chats").click()
    item.click()
    page.get_by_test_id("message-user").first.wait_for()


def teach(page: Page) -> None:
    """Starts a training run long enough for a curve."""
    lines = "\n".join(json.dumps({"prompt": asked, "completion": said}) for asked, said in LESSONS)
    page.get_by_test_id("finetune").click()
    for name, value in {"epochs": 2, "lr": 0.002, "rank": 4, "seq": 32, "batch": 1}.items():
        page.get_by_test_id(f"finetune-{name}").fill(str(value))
    file = {"name": "pirate.jsonl", "mimeType": "", "buffer": lines.encode()}
    page.get_by_test_id("finetune-file").set_input_files(file)
    page.get_by_test_id("finetune-start").click()
    page.wait_for_function("() => parseInt(document.querySelector('[data-testid=finetune-step]').textContent) > 7")


def shoot(page: Page, name: str, top: bool = False) -> None:
    """A screenshot of what is visible, or of the start of the conversation, once nothing moves."""
    page.mouse.move(1275, 400)
    page.evaluate("(top) => { if (top) document.querySelector('#scroller').scrollTop = 0 }", top)
    page.wait_for_timeout(50 if name == "loading" else 400)
    path = OUT / f"{name}.png"
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # 256 colours do; this way of choosing them keeps those of small things.
    few = picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=8, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name:<20}{size / 1000:>6.0f} kB")
    if size > LARGEST:
        raise SystemExit(f"{path.name} is larger than {LARGEST // 1000} kB; show less in it.")


def shoot_all(browser: Browser, url: str) -> None:
    page = visit(browser, url, DESK, color_scheme="light")
    page.wait_for_function("() => / of /.test(document.querySelector('[data-testid=load-progress]')?.textContent)")
    shoot(page, "loading")
    ready(page)
    shoot(page, "welcome")
    bring(page, CHATS, "How does a rainbow")
    shoot(page, "chat-light", top=True)
    page.get_by_test_id("settings").click()
    shoot(page, "settings")
    page.keyboard.press("Escape")
    page.get_by_test_id("chat").get_by_text("Packing").click()
    shoot(page, "tools")
    for scheme in ("light", "dark"):
        page = visit(browser, url, DESK if scheme == "dark" else PHONE, color_scheme=scheme)
        ready(page)
        bring(page, CHATS, "How does a rainbow")
        shoot(page, "chat-dark" if scheme == "dark" else "phone", top=True)
    page = visit(browser, url, DESK, color_scheme="light")
    ready(page)
    teach(page)
    shoot(page, "finetune")
    page = browser.new_context(**DESK).new_page()
    page.add_init_script("delete Navigator.prototype.gpu")
    page.goto(url)
    page.get_by_test_id("unsupported").wait_for()
    shoot(page, "no-webgpu")


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("There is no Chromium here. Install it, for example with `apt install chromium`.")
    OUT.mkdir(parents=True, exist_ok=True)
    with running_app() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        shoot_all(browser, url)
        browser.close()


if __name__ == "__main__":
    main()
