"""Make the pictures of docs/pictures.md anew, by the commands that stand there; run it from the top of the checkout.

The pages of `pebblesim watch` and of `pebblesim explore --story` are photographed, for docs/game.md and docs/story.md,
if playwright and a browser are installed (`pip install '.[browser]'`); the pages themselves are not kept. Pictures get
at most 256 colours, so that they stay small. Each carries a digest of what it shows: a test knows when it is out
of date.
"""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pebblesim.views import story

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

SHOTS = {
    "learn": ("#learn-5", ()),
    "watch": ("#watch-2400", ()),
    "compare": ("#race-900", ()),
    "play": ("#play-2", (0, 0, 4, 4, 8, 8, 5, 5, 11)),
}
"""Pictures of the page: where it is opened, and the vertices that are clicked on."""


DIGEST = "Drawn"
"""The name under which a picture carries the digest."""


def main() -> None:
    os.chdir(HERE.parent)
    page = HERE / "pictures" / "watch.html"
    for command in commands():
        digest = draw(command)
        if digest is not None:
            _make_small(Path(shlex.split(command)[-1]), digest)
    story.save(page.with_name("story.html"))
    photograph(page)
    for each in (page, page.with_name("story.html")):
        each.unlink()
    for name in (*SHOTS, "story"):
        _make_small(page.with_name(f"{name}.png"))


def commands() -> list[str]:
    """Return the commands of the page, each of which ends in the name of its picture."""
    return re.findall(
        r"^pebblesim (.* -o docs/pictures/\S+)$", (HERE / "pictures.md").read_text(encoding="utf-8"), re.M
    )


def draw(command: str) -> str | None:
    """Run a command that draws a picture; return a digest of what the picture shows, None for a page."""
    from typer.testing import CliRunner

    from pebblesim.cli.main import app

    digests = []
    save = Figure.savefig

    def saved(figure: Figure, *args: Any, **options: Any) -> None:
        digests.append(hashlib.sha256(repr(list(_shown(figure))).encode()).hexdigest()[:16])
        save(figure, *args, **options)

    Figure.savefig = saved  # type: ignore[method-assign]
    try:
        CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    finally:
        Figure.savefig = save  # type: ignore[method-assign]
    return digests[0] if digests else None


def _shown(figure: Figure) -> Iterator[Any]:
    """Yield what a picture shows, but not where its texts stand: that depends on fonts. Numbers have six digits."""
    for ax in figure.axes:
        for line in ax.lines:
            yield _rounded(line.get_xydata())
        for patch in ax.patches:
            yield _rounded(patch.get_patch_transform().transform(patch.get_path().vertices))
        for collection in ax.collections:
            yield _rounded(np.ma.filled(collection.get_offsets(), np.nan))
            yield [_rounded(path.vertices) for path in collection.get_paths()]
        for image in ax.images:
            yield _rounded(np.ma.filled(image.get_array(), 0))
        yield ax.get_title(), ax.get_xlabel(), ax.get_ylabel()
        yield [text.get_text() for text in ax.texts]
        if legend := ax.get_legend():
            yield [text.get_text() for text in legend.findobj(Text)]
    yield [text.get_text() for text in figure.texts]


def _rounded(numbers: Any) -> list[str]:
    return [f"{number:.6g}" for number in np.asarray(numbers, float).ravel()]


def _make_small(picture: Path, digest: str | None = None) -> None:
    about = PngInfo()
    if digest is not None:
        about.add_text(DIGEST, digest)
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True, pnginfo=about)
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
        tab = chromium.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        tab.goto(page.with_name("story.html").as_uri())
        tab.screenshot(path=page.with_name("story.png"))
        chromium.close()


if __name__ == "__main__":
    main()
