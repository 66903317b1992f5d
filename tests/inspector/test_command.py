"""The command `outlive ui`: its address, its token, what it refuses, and that looking creates nothing."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.program import fresh


@pytest.fixture
def started(tmp_path):
    """Start `outlive ui` on a store; yield its address."""
    with outlive.open(tmp_path / "agent.db") as store:
        store.thread("trip-42").save({"secret": "sk-very-secret"})
    line = [sys.executable, "-m", "outlive", "ui", "--store", str(tmp_path / "agent.db"), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, urlsplit(process.stdout.readline().strip())
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def get(address, path, **headers):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_address_works_once_and_nothing_of_a_state_is_logged(started):
    process, address = started
    assert (address.hostname, address.query.startswith("token=")) == ("127.0.0.1", True)
    assert len(address.query) >= len("token=") + 32  # 192 bits
    refused, body = get(address, "/threads")
    assert (refused.status, "trip" in body) == (403, False)
    admitted, _ = get(address, f"/?{address.query}")
    cookie = admitted.getheader("set-cookie").partition(";")[0]
    again, _ = get(address, f"/?{address.query}")
    page, body = get(address, "/thread?id=trip-42&view=raw", Cookie=cookie)
    assert (admitted.status, again.status, page.status) == (303, 403, 200)
    assert "sk-very-secret" in body
    other, _ = get(address, "/threads", Cookie=cookie, Host="evil.example")
    assert other.status == 421
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "secret" not in out + err
    assert "trip-42" not in out + err
    assert "Traceback" not in err


def test_looking_at_a_store_that_is_not_there_creates_nothing(tmp_path):
    ended = fresh("ui", "--store", tmp_path / "none.db", "--port", "0")
    assert ended.code != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options, advice",
    [
        (["--host", "0.0.0.0"], "--allow-host"),
        (["--host", "0.0.0.0", "--allow-host", "box", "--no-token"], "--no-token"),
    ],
)
def test_other_machines_need_a_name_and_a_token(tmp_path, options, advice):
    outlive.open(tmp_path / "agent.db").close()
    ended = fresh("ui", "--store", tmp_path / "agent.db", "--port", "0", *options)
    assert ended.code != 0
    assert advice in ended.err
