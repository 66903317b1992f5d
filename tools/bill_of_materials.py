"""A software bill of materials in CycloneDX: what `pip install 'outlive[EXTRA]'` installs, for every extra.

pip resolves the extras of the wheel under the pins of the project, without installing anything; its report has the
versions, the licenses, the hashes and the requirements. Where a package was fetched from is not written.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SPEC = "1.6"
# Extras of developers of outlive: no user installs them.
OF_DEVELOPERS = ("test", "frameworks", "lint", "coverage", "docs", "release", "bench")
# Extras whose pins are those of constraints-frameworks.txt.
OF_FRAMEWORKS = (
    "openai-agents",
    "pydantic-ai",
    "claude",
    "strands",
    "agent-framework",
    "adk",
    "llama-index",
    "mcp",
)

Report = dict[str, Any]
Environment = Callable[[str], dict[str, str]]


def write(wheel: Path, path: Path, environment: Environment) -> Path:
    """Write the bill of a wheel; `environment` makes the environment of pip for a file of pins."""
    extras = extras_of(wheel)
    groups = {
        "constraints.txt": [name for name in extras if name not in OF_FRAMEWORKS],
        "constraints-frameworks.txt": [name for name in extras if name in OF_FRAMEWORKS],
    }
    reports = [
        resolve(f"{wheel}[{','.join(names)}]", environment(pins)) for pins, names in groups.items() if names
    ]
    bill = bill_of(reports, extras)
    path.write_text(json.dumps(bill, indent=1) + "\n", "utf-8")
    return path


def count(path: Path) -> int:
    """Return how many packages a bill names."""
    return len(json.loads(path.read_text("utf-8"))["components"])


def extras_of(wheel: Path) -> list[str]:
    """Return the extras that are for users."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [name for name in metadata.get_all("Provides-Extra", []) if name not in OF_DEVELOPERS]


def resolve(requirement: str, environment: dict[str, str]) -> Report:
    """Return the report of pip on what a requirement installs."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--dry-run",
        ]
        subprocess.run(
            [*command, "--ignore-installed", "--report", str(report), requirement],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        found: Report = json.loads(report.read_text("utf-8"))
        return found


def bill_of(reports: Iterable[Report], extras: Iterable[str]) -> dict[str, Any]:
    """Return the bill of one or more reports on the extras of outlive."""
    installed = [
        item["metadata"] | {"_hashes": _hashes(item)} for report in reports for item in report["install"]
    ]
    (own, *_) = [metadata for metadata in installed if canonicalize_name(metadata["name"]) == "outlive"]
    packages = {
        _purl(metadata): metadata
        for metadata in installed
        if canonicalize_name(metadata["name"]) != "outlive"
    }
    by_name: dict[str, list[str]] = {}
    for purl, metadata in packages.items():
        by_name.setdefault(canonicalize_name(metadata["name"]), []).append(purl)
    root = {**_component(own), "type": "library"}
    graph = [
        {
            "ref": _purl(metadata),
            "dependsOn": _requirements(metadata, by_name, extras if metadata is own else ()),
        }
        for metadata in (own, *packages.values())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "component": root,
            "properties": [{"name": "outlive:extra", "value": extra} for extra in extras],
        },
        "components": [_component(packages[purl]) for purl in sorted(packages)],
        "dependencies": sorted(graph, key=lambda node: str(node["ref"])),
    }


def _purl(metadata: dict[str, Any]) -> str:
    return f"pkg:pypi/{canonicalize_name(metadata['name'])}@{metadata['version']}"


def _component(metadata: dict[str, Any]) -> dict[str, Any]:
    component = {
        "type": "library",
        "bom-ref": _purl(metadata),
        "name": metadata["name"],
        "version": metadata["version"],
        "purl": _purl(metadata),
    }
    if metadata.get("license_expression"):
        component["licenses"] = [{"expression": metadata["license_expression"]}]
    elif name := _license_name(metadata):
        component["licenses"] = [{"license": {"name": name}}]
    if metadata["_hashes"]:
        component["hashes"] = metadata["_hashes"]
    return component


def _license_name(metadata: dict[str, Any]) -> str | None:
    classified = [
        text.rpartition(" :: ")[2] for text in metadata.get("classifier", ()) if text.startswith("License ::")
    ]
    text = str(metadata.get("license") or "").strip()
    is_name = bool(text) and len(text) < 60 and "\n" not in text
    return text if is_name else " or ".join(classified) or None


def _hashes(item: Report) -> list[dict[str, str]]:
    sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    return [{"alg": "SHA-256", "content": sha256}] if sha256 and re.fullmatch("[0-9a-f]{64}", sha256) else []


def _requirements(
    metadata: dict[str, Any], by_name: dict[str, list[str]], extras: Iterable[str]
) -> list[str]:
    """Return the packages that another one requires here, among those that are installed."""
    found: set[str] = set()
    for line in metadata.get("requires_dist", ()):
        requirement = Requirement(line)
        contexts = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(context) for context in contexts):
            for purl in by_name.get(canonicalize_name(requirement.name), ()):
                if requirement.specifier.contains(purl.rpartition("@")[2], prereleases=True):
                    found.add(purl)
    return sorted(found)
