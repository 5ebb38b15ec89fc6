"""Paints the page's PNG icons from its icon.svg, in Chromium. The maskable one has no corners: systems cut their own.

Usage: .venv/bin/python tools/make_icons.py
"""

from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parent.parent / "src" / "wgemma" / "web" / "icons"


def main() -> None:
    drawing = (FOLDER / "icon.svg").read_text()
    square = drawing.replace('rx="112"', 'rx="0"')
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, size, svg in (
            ("icon-192", 192, drawing),
            ("icon-512", 512, drawing),
            ("icon-maskable-512", 512, square),
        ):
            page = browser.new_page(viewport={"width": size, "height": size})
            page.set_content(f"<style>body {{margin: 0}} svg {{display: block; width: {size}px}}</style>{svg}")
            page.screenshot(path=FOLDER / f"{name}.png", omit_background=True)
        browser.close()


if __name__ == "__main__":
    main()
