"""What MkDocs does not do by itself: pages of the API, pages from the root of the project, and the check of the result."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

import api_pages
import built_site
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

PROJECT = Path(__file__).resolve().parents[2]
# Pages of the site that are files of the root. Links between them and docs/ are changed accordingly.
ROOT_PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")


def on_config(config):
    """Take the address of the site from pyproject.toml, the one place that has it; leave out pages of absent parts."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_url = project["urls"]["Documentation"]
    config.extra["repository"] = project["urls"]["Repository"]
    api = [{title: f"api/{page}.md"} for page, (title, _) in api_pages.PAGES.items()]
    config.nav = without_absent_parts(config.nav, Path(config.docs_dir))
    (reference,) = [item["Reference"] for item in config.nav if "Reference" in item]
    reference[0] = {"API": [{"All pages": "api/index.md"}, *api]}
    return config


def without_absent_parts(nav, folder, *, optional=False):
    """Return the navigation without frameworks and tools that this checkout does not have a page of."""
    kept = []
    for item in nav:
        ((title, target),) = item.items()
        if isinstance(target, list):
            kept.append({title: without_absent_parts(target, folder, optional=title == "Frameworks")})
        elif not (optional or title == "Inspector") or (folder / target).exists():
            kept.append(item)
    return kept


def on_files(files, config):
    """Add the generated pages, and complain of a page that no reader would find."""
    for name, text in api_pages.pages().items():
        files.append(File.generated(config, name, content=text))
    for name, source in ROOT_PAGES.items():
        files.append(File.generated(config, name, content=(PROJECT / source).read_text(encoding="utf-8")))
    missing = sorted(pages_of(files) - set(targets(config.nav)))
    if missing:
        raise PluginError(f"not in the navigation: {', '.join(missing)}; add each to `nav` in mkdocs.yml")
    return files


def pages_of(files):
    return {file.src_uri for file in files.documentation_pages()}


def targets(nav):
    """Yield the pages of a navigation."""
    for item in nav:
        for target in item.values():
            if isinstance(target, list):
                yield from targets(target)
            else:
                yield target


def on_page_markdown(markdown, page, config, files):
    """Point links to files of the project at their page, or at the repository if they have none."""
    source = ROOT_PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri) or "."

    def changed(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        return match[1] + address(path, here, config.extra["repository"]) + match[3]

    return _LINK.sub(changed, markdown)


def address(path, here, repository):
    """Return how a page in the folder `here` of the site links to a file of the project."""
    pages = {source: name for name, source in ROOT_PAGES.items()} | {"README.md": "index.md"}
    if path in pages:
        return posixpath.relpath(pages[path], here)
    if path.startswith("docs/"):
        return posixpath.relpath(path.removeprefix("docs/"), here)
    return f"{repository}/blob/main/{path}"


def on_post_build(config):
    """Refuse a site with a broken link, or one that needs a network."""
    problems = built_site.problems(Path(config.site_dir))
    if problems:
        raise PluginError("\n".join(["the site is not whole:", *problems]))
