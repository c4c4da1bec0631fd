"""Make the pictures of docs/pictures.md anew, by the commands that stand there; run it from the top of the checkout.

The page of `pebblesim watch` is photographed, for docs/game.md, too, if playwright and a browser are installed
(`pip install '.[browser]'`); the page itself is not kept. Pictures get at most 256 colours, so that they stay small.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

SHOTS = {
    "learn": ("#learn-5", ()),
    "watch": ("#watch-2400", ()),
    "compare": ("#race-900", ()),
    "play": ("#play-2", (0, 0, 4, 4, 8, 8, 5, 5, 11)),
}
"""Pictures of the page: where it is opened, and the vertices that are clicked on."""


def main() -> None:
    text = (HERE / "pictures.md").read_text(encoding="utf-8")
    for command in re.findall(r"^pebblesim (.*)$", text, re.MULTILINE):
        subprocess.run([sys.executable, "-m", "pebblesim", *shlex.split(command)], cwd=HERE.parent, check=True)
    page = HERE / "pictures" / "watch.html"
    photograph(page)
    page.unlink()
    for picture in sorted((HERE / "pictures").glob("*.png")):
        with Image.open(picture) as image:
            small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(picture, optimize=True)
        print(f"{picture.stat().st_size:9,} bytes  {picture.name}")


def photograph(page: Path) -> None:
    """Pictures of the page, in each of its modes."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("no pictures of the page: playwright or a browser is not installed")
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (place, clicks) in SHOTS.items():
            tab = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
            tab.goto(f"{page.as_uri()}{place}")
            for vertex in clicks:
                tab.evaluate("(vertex) => page.boards[0].pick({ vertex })", vertex)
            tab.wait_for_timeout(500)
            tab.screenshot(path=page.with_name(f"{name}.png"))
        chromium.close()


if __name__ == "__main__":
    main()
