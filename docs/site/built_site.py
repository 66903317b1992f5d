"""What is wrong with the files of a built site: links that lead nowhere, and parts that need a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
_URL_OF_STYLE = re.compile(r"url\(\s*['\"]?(?:https?:)?//|@import\s+['\"](?:https?:)?//")


class _Page(HTMLParser):
    """The links and anchors of a page, and what a browser loads to show it."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.add(found.get("href", ""))
        if tag in _LOADED and _LOADED[tag] in found:
            self.loaded.add(found[_LOADED[tag]])


def problems(folder):
    """Return a sentence for each problem of the site in a folder."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    styles = [
        path
        for path in sorted(folder.rglob("*.css"))
        if _URL_OF_STYLE.search(path.read_text(encoding="utf-8"))
    ]
    return [
        *(f"{path.relative_to(folder)} loads a font or style by the network" for path in styles),
        *(
            f"{path.relative_to(folder)} loads {url}"
            for path, page in pages.items()
            for url in sorted(page.loaded)
            if urlsplit(url).netloc
        ),
        *(
            f"{path.relative_to(folder)} links to {url}, which is not there"
            for path, page in pages.items()
            if path.name != "404.html"  # its links are those of the address that was asked for
            for url in sorted(page.links | page.loaded)
            if not leads_somewhere(url, path, pages)
        ),
    ]


def leads_somewhere(url, path, pages):
    """Return whether a link inside the site has a target."""
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors | {"__top"}


if __name__ == "__main__":
    import sys

    print("\n".join(problems(Path(sys.argv[1]).resolve())))
