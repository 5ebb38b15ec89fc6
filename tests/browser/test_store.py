"""Chats in the browser's database."""

from typing import Any

WRITE = """async (number) => {
  const { openStore } = await import("/ui/store.js");
  const store = await openStore();
  for (let i = 0; i <= number; i++) store.put({chats: [{id: "x", i}]}).catch(() => {});
  setTimeout(() => location.reload());
}"""
READ = """async () => {
  const { openStore } = await import("/ui/store.js");
  return (await (await openStore()).get("chats", "x")).i;
}"""


def test_what_was_written_just_before_a_reload_is_kept(browser: Any, server: Any) -> None:
    """A browser drops writes that wait for others, unless they are committed."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/empty.html")
    for number in (20, 21, 22):
        with page.expect_navigation():
            page.evaluate(WRITE, number)
        assert page.evaluate(READ) == number
    context.close()
