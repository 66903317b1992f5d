"""What `./dev release` refuses, what it says, and what it writes; the whole of it runs in .ci/run."""

import importlib.util
import json
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
URLS = {"Documentation": "https://docs.example/", "Repository": "https://code.example/outlive"}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load(PROJECT / "tools" / "release.py")
bill_of_materials = sys.modules["bill_of_materials"]
packaged = load(PROJECT / "tools" / "packaged.py")


@pytest.fixture
def root(tmp_path):
    """A project in miniature whose files agree on version 1.2.0."""
    (tmp_path / "src" / "outlive").mkdir(parents=True)
    (tmp_path / "tests" / "fixtures" / "1.2.0").mkdir(parents=True)
    (tmp_path / "tests" / "fixtures" / "1.2.0" / "expected.json").write_text("{}")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "outlive"\nversion = "1.2.0"\n[project.urls]\nRepository = "https://code.test/outlive"\n'
    )
    (tmp_path / "src" / "outlive" / "__init__.py").write_text('"""Doc."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.0 (2027-01-31)\n\n- New.\n\n## 1.1.0 (2026-12-01)\n"
    )
    return tmp_path


def check(root):
    version = release.declared_version(root)
    date = release.check_changelog(root, version)
    release.check_frozen_stores(root, version)
    return release.open_points(root, date)


def test_files_that_agree_leave_nothing_to_do(root):
    assert check(root) == []


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "path, old, new, complaint",
    [
        ("src/outlive/__init__.py", "1.2.0", "1.2.1", "pyproject.toml has version 1.2.0, and .* has 1.2.1"),
        ("src/outlive/__init__.py", "__version__", "version", "has None"),
        ("CHANGELOG.md", "## 1.2.0", "## 1.3.0", "the newest version in CHANGELOG.md is 1.3.0"),
        ("CHANGELOG.md", "(2027-01-31)", "(soon)", r"CHANGELOG.md says \(soon\) of 1.2.0"),
        ("CHANGELOG.md", "## ", "### ", "CHANGELOG.md has no heading"),
    ],
)
def test_files_that_disagree_are_refused(root, path, old, new, complaint):
    edit(root / path, old, new)
    with pytest.raises(release.Refused, match=complaint):
        check(root)


def test_a_version_without_frozen_stores_is_refused(root):
    shutil.rmtree(root / "tests")
    with pytest.raises(release.Refused, match="OUTLIVE_RENEW_FIXTURES=1"):
        check(root)


def test_what_is_left_to_a_person_is_named(root):
    edit(root / "CHANGELOG.md", "2027-01-31", "unreleased")
    edit(root / "pyproject.toml", "code.test", "outlive.example")
    assert [point.split()[0] for point in check(root)] == ["write", "set"]


def test_this_project_agrees_with_itself():
    check(PROJECT)


def archives(folder, *, without=(), more=(), readme="[docs](https://docs.example/)"):
    """Write a wheel and an sdist with everything that is needed, but for some files."""
    with zipfile.ZipFile(folder / "w.whl", "w") as wheel:
        for name in [*release._IN_WHEEL, *more]:
            if name not in without:
                wheel.writestr(name, "")
        wheel.writestr("outlive-1.2.0.dist-info/METADATA", f"Name: outlive\n\n{readme}\n")
    empty = folder / "empty"
    empty.touch()
    with tarfile.open(folder / "s.tar.gz", "w:gz") as sdist:
        for name in release._IN_SDIST:
            if name not in without:
                sdist.add(empty, f"outlive-1.2.0/{name}")
    return folder / "s.tar.gz", folder / "w.whl"


def test_whole_archives_pass(tmp_path):
    release.check_contents(*archives(tmp_path))


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"without": ["outlive/py.typed"]}, "the wheel lacks outlive/py.typed"),
        ({"without": ["LICENSE"]}, "the sdist lacks LICENSE"),
        ({"more": ["tests/test_x.py"]}, "the wheel has more than the package: tests"),
        ({"readme": "[docs](docs/index.md)"}, "links that work in the repository only: docs/index.md"),
        ({"readme": "![picture](docs/images/run.svg)"}, "repository only: docs/images/run.svg"),
        ({"readme": "[below](#costs)"}, "repository only: #costs"),
    ],
)
def test_archives_that_are_not_whole_are_refused(tmp_path, options, complaint):
    with pytest.raises(release.Refused, match=complaint):
        release.check_contents(*archives(tmp_path, **options))


def test_a_command_that_fails_is_refused_with_what_it_printed():
    with pytest.raises(release.Refused, match="what went wrong"):
        release.call(sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)")


def test_pythons_are_those_that_start(monkeypatch):
    assert release.starts(sys.executable, sys.version_info[:2])
    assert not release.starts(sys.executable, (3, 10))
    assert not release.starts("/nowhere/python", (3, 11))
    monkeypatch.setattr(release, "starts", lambda candidate, version: False)
    with pytest.raises(release.Refused, match="no Python"):
        release.pythons_at_hand()


def test_without_dry_run_it_only_says_what_to_do(capsys):
    assert release.main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("This program uploads nothing.")
    assert "tag the commit v" in printed


def package(name, version, requires=(), **fields):
    return {
        "metadata": {"name": name, "version": version, "requires_dist": list(requires), **fields},
        "download_info": {"url": "file:///secret/place", "archive_info": {"hashes": {"sha256": "ab" * 32}}},
    }


def test_a_bill_of_materials_names_versions_licenses_hashes_and_requirements():
    own = package(
        "outlive", "1.2.0", ["ormsgpack>=1", 'hiredis>=3; extra == "redis"', 'pytest; extra == "test"']
    )
    first = {
        "install": [
            own,
            package("ormsgpack", "1.13.1", license_expression="Apache-2.0 OR MIT"),
            package("hiredis", "3.5.0", license="MIT"),
        ]
    }
    second = {
        "install": [
            own,
            package("ormsgpack", "1.12.0", classifier=["License :: OSI Approved :: MIT License"]),
        ]
    }
    bill = bill_of_materials.bill_of([first, second], ["redis"])
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "1.6",
        "outlive",
    )
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    assert [(one["purl"], one["licenses"]) for one in bill["components"]] == [
        ("pkg:pypi/hiredis@3.5.0", [{"license": {"name": "MIT"}}]),
        ("pkg:pypi/ormsgpack@1.12.0", [{"license": {"name": "MIT License"}}]),
        ("pkg:pypi/ormsgpack@1.13.1", [{"expression": "Apache-2.0 OR MIT"}]),
    ]
    assert bill["components"][0]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    (own_node,) = [node for node in bill["dependencies"] if node["ref"] == "pkg:pypi/outlive@1.2.0"]
    assert own_node["dependsOn"] == [one["purl"] for one in bill["components"]]
    assert "/secret/place" not in json.dumps(bill)


# The README of the package ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link, address",
    [
        ("[a](docs/runs.md#steps)", "[a](https://docs.example/runs.html#steps)"),
        ("![a](docs/images/run.svg)", "![a](https://docs.example/images/run.svg)"),
        ("[a](CHANGELOG.md)", "[a](https://docs.example/changelog.html)"),
        ("[a](examples/approval.py)", "[a](https://code.example/outlive/blob/main/examples/approval.py)"),
        ("[a](#costs)", "[a](https://code.example/outlive#costs)"),
        ("[a](https://other.example/x)", "[a](https://other.example/x)"),
        ("```python\nx[0](docs/y.md)\n```", "```python\nx[0](docs/y.md)\n```"),
        (
            '<img alt="x" src="docs/images/run.svg">',
            '<img alt="x" src="https://docs.example/images/run.svg">',
        ),
    ],
)
def test_links_of_the_readme_become_absolute(link, address):
    assert packaged.absolute_links(link, URLS) == address


def test_every_link_of_our_readme_is_absolute_in_the_package_and_its_page_exists():
    text = packaged.absolute_links((PROJECT / "README.md").read_text(), URLS)
    assert release.relative_links(text) == []
    pages = re.findall(r"\(https://docs\.example/([\w/-]+)\.html", text)
    assert len(pages) > 20
    roots = {page.removesuffix(".html"): name for name, page in packaged.ROOT_PAGES.items()}
    assert not [page for page in pages if not (PROJECT / roots.get(page, f"docs/{page}.md")).exists()]


def test_the_pages_are_bundled():
    bundled = set(packaged.bundled(PROJECT).values())
    assert {"outlive/docs/index.md", "outlive/docs/changelog.md", "outlive/docs/images/run.svg"} <= bundled
    assert not [place for place in bundled if place.endswith(".py")]
