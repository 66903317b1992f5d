"""Takes the pictures of the inspector for the docs: `python docs/pictures/make.py`. Needs the test extra and Chromium.

With a folder, it takes every page in both schemes and both widths there, to look at after a change of the design.
The fonts Inter and JetBrains Mono are used where they are installed (Debian: fonts-inter, fonts-jetbrains-mono).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import outlive
from rig.browser import browser, served
from rig.inspected import fill_trip

PAGES = {
    "now": "/", "threads": "/threads", "thread": "/thread?id=trip-42", "diff": "/thread?id=trip-42&view=diff",
    "state": "/thread?id=trip-42&view=state", "runs": "/runs?all=1", "run": "/run?id=refund-7", "store": "/store?keep_last=1",
    "search": "/search?q=ferry&states=1", "answer": "/ask/answer?run=refund-7&name=approve%3F&thread=refund", "edit": "/ask/edit?id=trip-42&path=notes",
}  # fmt: skip
SIZES = {"wide": (1280, 800), "narrow": (400, 800)}
SHOWN = ("now-light-wide", "thread-dark-wide", "diff-light-wide", "run-light-wide", "thread-dark-narrow")


def main(folder: Path, names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as place, outlive.open(Path(place) / "agent.db") as store:
        fill_trip(store)
        with served(store, write=True) as address, browser() as chromium:
            for scheme in ("light", "dark"):
                for size, (width, height) in SIZES.items():
                    context = chromium.new_context(
                        viewport={"width": width, "height": height}, color_scheme=scheme
                    )
                    page = context.new_page()
                    for name, path in PAGES.items():
                        picture = f"{name}-{scheme}-{size}"
                        if not names or picture in names:
                            page.goto(address + path)
                            if path.startswith("/thread?"):
                                page.locator(".windowed").wait_for()
                            page.screenshot(path=folder / f"{picture}.png")
                    context.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2:])
    else:
        main(Path(__file__).parent, SHOWN)
