"""docs/versions.md names the versions that the tests install, and the lowest are those that pyproject.toml allows."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = DECLARED["project"]["optional-dependencies"]
OF_DEVELOPERS = ("test", "frameworks", "lint", "coverage", "docs", "release", "bench")
# Frameworks and what serves them: they allow few versions of what they share.
ADAPTERS = (
    "openai-agents",
    "pydantic-ai",
    "claude",
    "strands",
    "agent-framework",
    "adk",
    "llama-index",
    "mcp",
)
PAGE = (PROJECT / "docs" / "versions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.-]+)` \| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)


def parse(lines):
    return [Requirement(line) for line in lines if not line.startswith("outlive[")]


def pins_of(name):
    """Return package → the versions that a constraints file pins it to, which may differ by marker."""
    pins = {}
    for line in (PROJECT / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", line
            assert requirement.url is None, line
            pins.setdefault(canonicalize_name(requirement.name), []).append(Version(pin.version))
    return pins


def lower_bounds():
    """Yield (package, version) of every lower bound in pyproject.toml."""
    everywhere = [*DECLARED["project"]["dependencies"], *DECLARED["build-system"]["requires"]]
    for requirement in parse([*everywhere, *(line for lines in EXTRAS.values() for line in lines)]):
        for part in requirement.specifier:
            assert part.operator in (">=", "<"), f"{requirement}: neither a lower bound nor a limit"
            if part.operator == ">=":
                yield canonicalize_name(requirement.name), Version(part.version)


NEWEST, LOWEST = pins_of("constraints.txt"), pins_of("constraints-lowest.txt")
FRAMEWORKS = pins_of("constraints-frameworks.txt")
# One version of each is tried: two of them agree on little else.
TRIED_ONCE = {canonicalize_name(one.name) for name in ADAPTERS for one in parse(EXTRAS[name])}
for name in TRIED_ONCE:
    NEWEST[name] = LOWEST[name] = FRAMEWORKS[name]


@pytest.mark.parametrize("package, bound", sorted(set(lower_bounds())), ids=str)
def test_every_lower_bound_is_the_version_that_the_lowest_run_installs(package, bound):
    assert LOWEST[package] == [bound]
    assert all(bound <= newest for newest in NEWEST[package])


def test_what_a_user_installs_has_a_lower_bound():
    of_users = [line for name, lines in EXTRAS.items() if name not in OF_DEVELOPERS for line in lines]
    declared = parse([*DECLARED["project"]["dependencies"], *of_users])
    assert not [str(one) for one in declared if ">=" not in str(one.specifier)]


def test_what_is_installed_is_what_is_pinned():
    """Also what comes in by other packages: the same versions are installed on another day."""
    folder = Path(sys.prefix)
    if folder.parent.name != ".venv":
        pytest.skip(f"{folder} is no environment of ./dev")
    pins = {"lowest": LOWEST, "frameworks": FRAMEWORKS}.get(folder.name.split("-")[0], NEWEST)
    installed = {canonicalize_name(one.name): Version(one.version) for one in distributions()}
    others = {name: version for name, version in installed.items() if version not in pins.get(name, ())}
    assert others.keys() <= {"outlive", "pip", "setuptools"}, others


def test_the_table_names_what_users_install_and_what_tests_combine_with_it():
    of_users = [line for name, lines in EXTRAS.items() if name not in OF_DEVELOPERS for line in lines]
    declared = {one.name for one in parse([*DECLARED["project"]["dependencies"], *of_users])}
    assert declared <= {package for package, *_ in ROWS}
    assert {package for package, *_ in ROWS} <= declared | {one.name for one in parse(EXTRAS["test"])}
    assert len(ROWS) == len({package for package, *_ in ROWS})


@pytest.mark.parametrize("package, reason, lowest, newest", ROWS, ids=str)
def test_the_table_is_of_the_versions_that_are_installed(package, reason, lowest, newest):
    name = canonicalize_name(package)
    assert [Version(lowest)] == LOWEST[name]
    assert Version(newest) == max(NEWEST[name])
