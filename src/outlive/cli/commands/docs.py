"""The documentation that came with the package: which pages there are, and each of them as Markdown."""

from __future__ import annotations

import re
from pathlib import Path

from outlive.cli.command import argument, command, option
from outlive.cli.context import Call
from outlive.errors import BadArgument

_PACKAGE = Path(__file__).parents[2]
# In a wheel the pages are in the package; an editable install has them beside `src`.
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")


@command(
    "docs",
    argument("PAGE", required=False),
    option("--path", "is_path", is_flag=True, help="Print where the page is instead of its text."),
)
def docs(call: Call, page: str | None, is_path: bool) -> None:
    """Print a page of the documentation, or list all pages.

    The pages are Markdown files of this installation, of the same version as the program.
    """
    folder = _folder()
    if page is None:
        _list_pages(call, folder, is_path=is_path)
        return
    path = _find(folder, page)
    print(path if is_path else path.read_text("utf-8"), end="\n" if is_path else "")


def _folder() -> Path:
    for folder in _FOLDERS:
        if (folder / "index.md").is_file():
            return folder
    raise BadArgument("this installation has no documentation; install outlive from its wheel")


def _list_pages(call: Call, folder: Path, *, is_path: bool) -> None:
    if is_path:
        print(folder)
        return
    rows = [{"page": path.stem, "title": _title(path), "path": str(path)} for path in _pages(folder)]
    width = max(len(row["page"]) for row in rows)
    lines = [f"{row['page']:{width}}  {row['title']}" for row in rows]
    call.answer(rows, lambda: print("\n".join(lines)), brief=[row["page"] for row in rows])
    call.note(f"outlive docs PAGE prints one; the files are in {folder}")


def _pages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.md"))


def _title(path: Path) -> str:
    found = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else path.stem


def _find(folder: Path, page: str) -> Path:
    """Return the page with a name, which may be written as a link: `docs/encryption.md#rotating-keys`."""
    name = page.partition("#")[0].rpartition("/")[2].removesuffix(".md").lower()
    names = {path.stem.lower(): path for path in _pages(folder)}
    if name in names:
        return names[name]
    import difflib

    close = difflib.get_close_matches(name, list(names), 1)
    hint = f"did you mean {close[0]}?" if close else "outlive docs lists all pages"
    raise BadArgument(f"no page {page!r:.100}; {hint}")
