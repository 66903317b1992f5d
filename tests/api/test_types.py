"""What type checkers and editors know of the API is what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_a_type_checker_knows_states_results_and_options():
    """An unused `type: ignore` is an error too: so each wrong line of the file is noticed."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "tests/api/typed_usage.py"]
    checked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)
