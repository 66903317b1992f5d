"""Build a release and check it: `./dev release --dry-run`. Nothing is uploaded, ever.

Its steps: version, changelog and frozen stores agree; sdist and wheel are built from them; their metadata and
contents are whole; the wheel works in an empty environment of the lowest and of the highest Python at hand; a
bill of materials names what each extra installs. Everything is left in build/release.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import bill_of_materials

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "release"
UNRELEASED = "unreleased"
_HEADING = re.compile(r"^## (\d\S*) \((.+)\)$", re.MULTILINE)
_PLACEHOLDER = ".example/"
_IN_WHEEL = (
    "outlive/py.typed",
    "outlive/docs/index.md",
    "outlive/docs/changelog.md",
    "outlive/backends/postgres/schema.sql",
)
_IN_SDIST = (
    "README.md",
    "LICENSE",
    "SECURITY.md",
    "CHANGELOG.md",
    "hatch_build.py",
    "docs/index.md",
    "tests/conftest.py",
)


class Refused(Exception):
    """Something is not ready for a release; the message says what to do."""


# What the files say -------------------------------------------------------------------------------


def declared_version(root: Path) -> str:
    """Return the version in pyproject.toml. Raises Refused if the package says another one."""
    version = str(project_of(root)["version"])
    tree = ast.parse((root / "src" / "outlive" / "__init__.py").read_text("utf-8"))
    names = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    packaged = ast.literal_eval(names[0].value) if names else None
    if packaged != version:
        raise Refused(
            f"pyproject.toml has version {version}, and src/outlive/__init__.py has {packaged}: write one of them"
        )
    return version


def project_of(root: Path) -> dict[str, object]:
    """Return the table `project` of pyproject.toml."""
    project: dict[str, object] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def check_changelog(root: Path, version: str) -> str:
    """Return when the changelog says that the version was released. Raises Refused if its newest one is another."""
    headings = _HEADING.findall((root / "CHANGELOG.md").read_text("utf-8"))
    if not headings:
        raise Refused("CHANGELOG.md has no heading such as `## 1.2.0 (2027-01-31)`")
    newest, date = headings[0]
    if newest != version:
        raise Refused(f"the newest version in CHANGELOG.md is {newest}, and pyproject.toml has {version}")
    if date != UNRELEASED and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise Refused(
            f"CHANGELOG.md says ({date}) of {version}: write ({UNRELEASED}) or a date such as (2027-01-31)"
        )
    return str(date)


def check_frozen_stores(root: Path, version: str) -> None:
    """Refuse a version whose stores later versions could not be tested with."""
    if not (root / "tests" / "fixtures" / version / "expected.json").exists():
        raise Refused(
            f"tests/fixtures/{version} does not exist: write it with OUTLIVE_RENEW_FIXTURES=1 ./dev test tests/fixtures -n 0"
        )


def open_points(root: Path, date: str) -> list[str]:
    """Return what a person still has to do before this is a release."""
    points = []
    if date == UNRELEASED:
        points.append("write the date into CHANGELOG.md")
    urls = project_of(root)["urls"]
    assert isinstance(urls, dict)
    if any(_PLACEHOLDER in str(url) for url in urls.values()):
        points.append("set project.urls in pyproject.toml to the real addresses")
    return points


# Building -----------------------------------------------------------------------------------------


def build(output: Path) -> tuple[Path, Path]:
    """Build sdist and wheel; the wheel is built from the sdist, as an index would do it."""
    shutil.rmtree(output, ignore_errors=True)
    call(
        sys.executable,
        "-m",
        "build",
        "--quiet",
        "--outdir",
        str(output),
        str(ROOT),
        env=pinned("constraints.txt"),
    )
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Refuse archives without something that a user needs, and a wheel with something else than the package."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = archive.namelist()
        (metadata,) = (
            archive.read(name).decode() for name in in_wheel if name.endswith(".dist-info/METADATA")
        )
    with tarfile.open(sdist) as archive:
        in_sdist = [name.partition("/")[2] for name in archive.getnames()]
    for what, names, needed in (("wheel", in_wheel, _IN_WHEEL), ("sdist", in_sdist, _IN_SDIST)):
        if missing := sorted(set(needed) - set(names)):
            raise Refused(f"the {what} lacks {', '.join(missing)}")
    if strangers := sorted(
        {name.split("/")[0] for name in in_wheel if not name.startswith(("outlive/", "outlive-"))}
    ):
        raise Refused(f"the wheel has more than the package: {', '.join(strangers)}")
    if relative := relative_links(metadata):
        raise Refused(
            f"the README of the wheel has links that work in the repository only: {', '.join(relative)}"
        )


def relative_links(text: str) -> list[str]:
    """Return the links of a page, outside of code, that name no address."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", prose)
    return sorted({first or second for first, second in targets if not re.match(r"[a-z]+:", first or second)})


# Trying -------------------------------------------------------------------------------------------


def pythons_at_hand(lowest: tuple[int, int] = (3, 11), newest: tuple[int, int] = (3, 14)) -> list[Path]:
    """Return the lowest and the highest Python that start here, of those that the package is for."""
    found: dict[tuple[int, int], Path] = {}
    for minor in range(lowest[1], newest[1] + 1):
        name = f"python3.{minor}"
        candidates = [
            shutil.which(name),
            *sorted(
                map(str, Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/{name}"))
            ),  # beside this one
        ]
        for candidate in filter(None, candidates):
            if starts(candidate, (3, minor)):
                found[3, minor] = Path(candidate)
                break
    if not found:
        raise Refused("found no Python that the package is for")
    return [found[version] for version in sorted({min(found), max(found)})]


def starts(candidate: str, version: tuple[int, int]) -> bool:
    """Tell whether a program is that Python: a version manager may have a stand-in that refuses to start."""
    ask = "import sys, venv; print(sys.version_info[:2])"
    try:
        answer = subprocess.run([candidate, "-I", "-c", ask], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == str(version)


def try_wheel(python: Path, wheel: Path) -> None:
    """Install the wheel into an empty environment, and use it there: bare first, then with its command line."""
    with tempfile.TemporaryDirectory(prefix="outlive-release-") as folder:
        environment = Path(folder) / "environment"
        call(str(python), "-I", "-m", "venv", str(environment))
        inside = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
        for extras in ("", "[cli,crypto]"):
            install = (str(inside), "-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
            call(*install, f"{wheel}{extras}", env=pinned("constraints.txt"))
            smoke = [str(inside), "-I", str(ROOT / "tools" / "smoke.py"), *(["--with-cli"] if extras else [])]
            with tempfile.TemporaryDirectory(dir=folder) as empty:
                call(*smoke, cwd=Path(empty))


def pinned(name: str) -> dict[str, str]:
    """Return an environment in which pip keeps to the pins of the project."""
    pins = str(ROOT / name)
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PIP_TARGET", "PIP_PREFIX")
    }
    return {**kept, "PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins, "PIP_NO_BINARY": "claude-agent-sdk"}


def call(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command. Raises Refused with what it printed if it fails."""
    done = subprocess.run(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise Refused(f"{' '.join(command)} failed:\n{done.stdout}")


# The program --------------------------------------------------------------------------------------


def say(sentence: str) -> None:
    print(f"release: {sentence}", file=sys.stderr, flush=True)


def check_release(root: Path = ROOT) -> list[str]:
    """Do everything that can be done without publishing; return what is left to a person."""
    version = declared_version(root)
    date = check_changelog(root, version)
    check_frozen_stores(root, version)
    say(f"version, changelog and frozen stores agree on {version} ({date})")
    sdist, wheel = build(OUTPUT)
    say(f"built {sdist.name} and {wheel.name}")
    call(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    check_contents(sdist, wheel)
    say("metadata and contents are whole")
    for python in pythons_at_hand():
        try_wheel(python, wheel)
        say(f"the wheel works in an empty environment of {python.name}")
    bill = bill_of_materials.write(wheel, OUTPUT / f"outlive-{version}.cdx.json", pinned)
    say(f"{bill.name} names {bill_of_materials.count(bill)} packages")
    return open_points(root, date)


def by_hand(version: str) -> Iterable[str]:
    """Yield what a person does after a dry run without an open point."""
    yield "run OUTLIVE_CI_ALL=1 .ci/run, and ./dev test --long"
    yield "run ./dev release --dry-run; it must leave no open point"
    yield f"commit, and tag the commit v{version}"
    yield "build the site with ./dev docs and publish build/docs"
    yield "upload the sdist and the wheel of build/release with twine, and attach the bill of materials to the release"
    yield "raise the version in pyproject.toml and src/outlive/__init__.py, and begin its section in CHANGELOG.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev release", description="Check a release. Nothing is uploaded."
    )
    parser.add_argument("--dry-run", action="store_true", help="build and check everything")
    options = parser.parse_args(arguments)
    try:
        if not options.dry_run:
            print("This program uploads nothing. To release, do by hand:")
            for number, step in enumerate(by_hand(declared_version(ROOT)), 1):
                print(f"{number}. {step}")
            return 0
        points = check_release()
    except Refused as refusal:
        say(str(refusal))
        return 1
    for point in points:
        say(f"left to do: {point}")
    say(f"checked; everything is in {OUTPUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
