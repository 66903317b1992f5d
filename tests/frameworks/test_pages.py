"""The pages of the frameworks: their snippets run, and the examples do what they say."""

import subprocess
import sys

import pytest

from docs.test_snippets import DOCS, FRAMEWORKS, PROJECT, SOURCE, run_page
from outlive.testing.patience import PATIENCE_S

KILLED = "booked Lisbon twice, searched once: done"
EXAMPLES = {
    "adk_agents.py": KILLED,
    "agent_framework_agents.py": KILLED,
    "claude_sessions.py": "3 messages, and a fork of 2: True",
    "llama_workflows.py": KILLED,
    "openai_agents.py": KILLED,
    "pydantic_agents.py": KILLED,
    "strands_agents.py": KILLED,
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_python_block_of_a_frameworks_page_runs_and_says_what_is_true(
    name, tmp_path, monkeypatch, request
):
    run_page(DOCS / name, tmp_path, monkeypatch, request)


@pytest.mark.parametrize("name, last", EXAMPLES.items())
def test_an_example_ends_as_it_should(name, last, tmp_path):
    ended = subprocess.run(
        [sys.executable, str(PROJECT / "examples" / name)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == last
