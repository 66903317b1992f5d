"""What the build adds to the package: a README whose links work on a package index, and the pages of docs/.

The addresses are those of `project.urls` in pyproject.toml, the one place that has them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from packaged import absolute_links, bundled


class PackagedReadme(MetadataHookInterface):
    """Takes the description of the package from README.md, with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, metadata["urls"])}


class BundledDocs(BuildHookInterface):
    """Puts the pages and their pictures into the wheel, for `outlive docs`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"].update(bundled(Path(self.root)))
