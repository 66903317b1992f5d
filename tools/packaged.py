"""What the build makes of the project's pages: a README whose links work on a package index, and pages for the wheel."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

# Pages of the site that are files of the root.
ROOT_PAGES = {
    "CHANGELOG.md": "changelog.html",
    "CONTRIBUTING.md": "contributing.html",
    "SECURITY.md": "security.html",
}
_LINK = re.compile(r"(!?\[[^\]]*\]\(|<img [^>]*src=\")(?![a-z]+:)([^)\s\"]+)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def absolute_links(text: str, urls: dict[str, str]) -> str:
    """Return a page of the root with absolute links; code stays as it is."""
    parts = _FENCE.split(text)
    return "".join(part if _FENCE.fullmatch(part) else _rewritten(part, urls) for part in parts)


def _rewritten(text: str, urls: dict[str, str]) -> str:
    return _LINK.sub(lambda link: link[1] + absolute(link[2], urls), text)


def absolute(target: str, urls: dict[str, str]) -> str:
    """Return the address of a file of the project: a page of the site, else a file of the repository."""
    site, repository = urls["Documentation"].rstrip("/"), urls["Repository"].rstrip("/")
    path, mark, anchor = target.partition("#")
    path = posixpath.normpath(path) if path else ""
    if not path:
        return f"{repository}{mark}{anchor}"
    if path in ROOT_PAGES:
        return f"{site}/{ROOT_PAGES[path]}{mark}{anchor}"
    if path.startswith("docs/"):
        page = path.removeprefix("docs/")
        return f"{site}/{page.removesuffix('.md') + '.html' if page.endswith('.md') else page}{mark}{anchor}"
    return f"{repository}/blob/main/{path}{mark}{anchor}"


def bundled(root: Path) -> dict[str, str]:
    """Return file of the project → its place in the wheel."""
    pages = [*(root / "docs").glob("*.md"), *(root / "docs" / "images").glob("*.svg")]
    files = {str(path): f"outlive/docs/{path.relative_to(root / 'docs').as_posix()}" for path in pages}
    names = {name: page.replace(".html", ".md") for name, page in ROOT_PAGES.items()}
    return files | {
        str(root / name): f"outlive/docs/{page}" for name, page in names.items() if (root / name).exists()
    }
