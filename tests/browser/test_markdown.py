"""Markdown in the page: what a model writes is hostile, and is drawn while it is being written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

SAMPLE = """# Title

A paragraph with **bold *and italic*** words, `code`, a [link](https://example.org/a_(b)),
~~gone~~, snake_case and https://example.org/x.

- one
  - nested **two**
- [x] done
- three

1. first

   ```python
   def f(x):
       return "a" # why
   ```
2. second
> quote
> - in it
lazy

| a | b |
|:--|--:|
| 1 | `x\\|y` |
| 2 |

---
$$
x^2
$$
内容**重要：**内容
```
open fence
"""

DRAW = """async ({text, pieces}) => {
  const {MarkdownView} = await import("/ui/markdown_view.js");
  const root = document.createElement("div");
  document.body.replaceChildren(root);
  const view = new MarkdownView(root);
  if (pieces) { for (const piece of pieces) { view.write(piece); view.cancel(); view.draw(); } view.end(); }
  else view.show(text);
  return {html: root.innerHTML, text: root.innerText};
}"""


@pytest.fixture(scope="module")
def page(browser: Any, server: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    yield page
    page.close()


def draw(page: Any, text: str) -> dict[str, Any]:
    return page.evaluate(DRAW, {"text": text})


def test_what_models_write_becomes_what_they_mean(page):
    html = draw(page, SAMPLE)["html"]
    for piece in (
        "<h3>Title</h3>",
        "<strong>bold <em>and italic</em></strong>",
        "<code>code</code>",
        '<a href="https://example.org/a_(b)" target="_blank" rel="noopener noreferrer nofollow"',
        '<span class="target"> example.org</span>',
        "<del>gone</del>",
        "snake_case",
        "<li><p>one</p><ul><li><p>nested <strong>two</strong></p></li></ul></li>",
        '<li class="task done"><p>done</p></li>',
        '<span class="language">python</span>',
        '<span class="hl-word">def</span> f(x):\n    <span class="hl-word">return</span>',
        "<blockquote><p>quote</p><ul><li><p>in it\nlazy</p></li></ul></blockquote>",
        '<th scope="col">a</th><th class="right" scope="col">b</th>',
        '<td class="right"><code>x|y</code></td>',
        "<hr>",
        '<div class="math">x^2</div>',
        "内容<strong>重要：</strong>内容",
        "open fence",
    ):
        assert piece in html, piece


@pytest.mark.parametrize("size", [1, 3, 17])
def test_drawn_piece_by_piece_it_is_the_same(page, size):
    whole = draw(page, SAMPLE)["html"]
    pieces = [SAMPLE[i : i + size] for i in range(0, len(SAMPLE), size)]
    assert page.evaluate(DRAW, {"pieces": pieces})["html"] == whole


HOSTILE = """<script>window.hurt = 1</script> <img src=x onerror="window.hurt = 1"> <b onclick=x>b</b>
[a](javascript:window.hurt=1) [b](JaVaScRiPt:x) [c](data:text/html,<script>x</script>) [d](vbscript:x)
[e](//evil.example)
![f](https://evil.example/pixel.png) <javascript:alert(1)> [g](java\tscript:x) [h](&#106;avascript:x)
[https://bank.example](https://evil.example/) [i](https://bank.example@evil.example) ![j](javascript:x)
<iframe src="https://evil.example"></iframe> \u202etxet\u202c \x1b[31m \x00

```html" onclick="x
<script>window.hurt = 1</script>
```
| <script>x</script> | [k](javascript:x) |
|--|--|
| <img src=y> | y |
"""


def test_nothing_in_an_answer_becomes_a_program_or_is_fetched(page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    drawn = draw(page, HOSTILE)
    page.wait_for_timeout(50)
    assert not [url for url in asked if "evil" in url]
    found = page.evaluate(
        """() => ({
          hurt: window.hurt,
          tags: [...new Set([...document.body.querySelectorAll("*")].map((e) => e.tagName))],
          links: [...document.querySelectorAll("a")].map((a) => [a.href, a.innerText, a.rel]),
          attributes: [...new Set([...document.body.querySelectorAll("*")].flatMap((e) => e.getAttributeNames()))],
        })"""
    )
    assert found["hurt"] is None
    assert not {"SCRIPT", "IMG", "IFRAME", "B", "STYLE", "OBJECT"} & set(found["tags"])
    assert not [name for name in found["attributes"] if name.startswith("on") or name in ("src", "style", "srcset")]
    assert all(href.startswith(("https://", "http://")) for href, *_ in found["links"])
    assert all("noopener" in rel for *_, rel in found["links"])
    shown = {href: text for href, text, _ in found["links"]}
    assert "evil.example" in shown["https://evil.example/"]  # a text that names another place does not hide it
    assert "evil.example" in shown["https://bank.example@evil.example/"]
    assert "\u202e" not in drawn["text"]
    assert "\\u202e" in drawn["text"]
    assert "\\u001b[31m" in drawn["text"]


DEPTH = """() => {
  const depth = (element) => (element ? 1 + depth(element.parentElement) : 0);
  return Math.max(...[...document.querySelectorAll("*:not(:has(*))")].slice(0, 10000).map(depth));
}"""
MB = 1 << 20
BOMBS = {
    "backticks": "`" * MB,
    "backtick runs": " ".join("`" * n for n in range(1, 1400)),
    "stars": "*" * MB,
    "openers": "*a **b " * (MB // 20),
    "nested": "**a " * 20_000 + "b** " * 20_000,
    "brackets": "[" * MB,
    "links": "[a](b" * (MB // 5),
    "angles": "<" * MB,
    "quotes": ">" * MB,
    "items": "- " * (MB // 2),
    "deep lists": "\n".join(" " * n + "- a" for n in range(1400)),
    "bars": "|" * MB,
    "lines": "\n" * MB,
    "math": "\\(" * (MB // 2),
    "addresses": ("http://a" + ")" * 2000 + " ") * 500,
    "comments": "```c\n" + "/*" * 20_000 + "\n```",
    "quoted": "```js\n" + '"' + '\\"' * 20_000 + "\n```",
}


SHOW = """async () => {
  const {MarkdownView} = await import("/ui/markdown_view.js");
  const root = document.createElement("div");
  document.body.replaceChildren(root);
  new MarkdownView(root).show(text);
}"""


def processor_time(devtools: Any) -> float:
    """Seconds the page's thread has computed so far; on a busy machine they are no more than on an idle one."""
    told = devtools.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in told if metric["name"] == "ThreadTime")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_less_than_a_second(page, name):
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate("(bomb) => { globalThis.text = bomb }", BOMBS[name])
    before = processor_time(devtools)
    page.evaluate(SHOW)
    spent = processor_time(devtools) - before
    devtools.detach()
    assert spent < 1
    assert page.evaluate(DEPTH) < 100


GROW = """async (unit) => {
  const {MarkdownView} = await import("/ui/markdown_view.js");
  const root = document.createElement("div");
  document.body.replaceChildren(root);
  const view = new MarkdownView(root);
  const times = [];
  for (let i = 0; i < 10000; i++) {
    view.write(unit[i % unit.length]);
    view.cancel();
    if (i % (i < 9000 ? 100 : 4)) continue; // at the end, where it is dearest, four tokens to a frame
    const began = performance.now();
    view.draw();
    times.push(performance.now() - began);
  }
  view.end();
  const last = times.slice(-250).sort((a, b) => a - b);
  return {median: last[125], worst: last[249]};
}"""


@pytest.mark.parametrize(
    "unit",
    [
        ["Some ", "**bold** ", "words ", "in ", "a ", "row.", "\n\n"],
        ["- ", "an ", "item ", "of ", "`one` ", "list", "\n"],
        ["one ", "endless ", "paragraph, ", "with *marks* "],
        ["```c\n", *["int x = 1;\n"] * 9998, "```"],
        ["|a|b|\n", "|-|-|\n", *["| ", "a ", "| ", "b ", "|\n"] * 2000],
    ],
    ids=["paragraphs", "list", "paragraph", "code", "table"],
)
def test_ten_thousand_tokens_stay_smooth(page, unit):
    spent = page.evaluate(GROW, unit)
    print(json.dumps(spent))
    assert spent["median"] < 16


def test_a_selection_survives_what_is_written_after_it(page):
    kept = page.evaluate(
        """async () => {
          const {MarkdownView} = await import("/ui/markdown_view.js");
          const root = document.createElement("div");
          document.body.replaceChildren(root);
          const view = new MarkdownView(root);
          const put = (text) => { view.write(text); view.cancel(); view.draw(); };
          put("The **first** words ");
          getSelection().selectAllChildren(root.querySelector("strong"));
          put("and more\\n\\nof them\\n\\n- a");
          return getSelection().toString();
        }"""
    )
    assert kept == "first"
