"""The published figures are those that were measured: pages and plots are what `bench/results.json` gives."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BENCH = PROJECT / "bench"
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
_RENDER = """
import json, report, results
made = report.Report(results.Results.load())
print(json.dumps({"pages": made.pages(), "plots": made.plots()}))
"""
_PART = """
import sys
from pathlib import Path
from results import Result, Results
from table import Row, Versus

path = Path(sys.argv[1])
names = ("save", "load")
results = Results()
row = Row("a save", "1.00x", "<= 2x", True, Versus("a save", "1 ms", "2 ms"))
results.figures = {"load": Result("2026-01-01", [0.5, 0.6], [row]), "gone": Result("2025-01-01", [1.0], [row])}
results.save(names, path)
later = Results.load(path)
later.figures["save"] = Result("2026-02-02", [2.0, 2.0], [Row("a load", "0.9x")])
later.save(names, path)
final = Results.load(path)
assert list(final.figures) == ["save", "load"]
assert final.figures["load"] == results.figures["load"]
"""


def in_bench(code, *arguments):
    """Run code beside the benchmarks, whose modules have names that tests use too."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=BENCH, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def rendered():
    return json.loads(in_bench(_RENDER))


def test_the_pages_show_what_was_measured(rendered):
    for page, block in rendered["pages"].items():
        text = (PROJECT / page).read_text(encoding="utf-8")
        published = text.partition(START)[2].partition(END)[0].strip()
        assert published == block.strip(), f"{page}: ./dev bench --render publishes bench/results.json"


def test_the_plots_show_what_was_measured(rendered):
    folder = PROJECT / "docs" / "plots"
    published = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
    assert published == rendered["plots"], "./dev bench --render draws bench/results.json"


def test_a_plot_is_small_and_well_formed(rendered):
    for name, svg in rendered["plots"].items():
        ET.fromstring(svg)
        assert len(svg) < 20_000, name


def test_a_figure_that_is_measured_alone_leaves_the_others(tmp_path):
    in_bench(_PART, str(tmp_path / "results.json"))
