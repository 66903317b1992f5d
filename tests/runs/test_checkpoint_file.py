"""A checkpoint in one file: the old value or the new one, whatever happens, and never a wrong one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import sys
import threading
import time

import pytest

import outlive
from backends.test_file_power_cut import SEED, SUBSETS, Op, Recorder, _build, _cuts, _state
from outlive import FanOut, ModelResponse, PartialResponse, checkpoint_file
from outlive.backends.file import disk as disk_module
from outlive.errors import BadArgument, Corrupt, NewerFormat, StoreBusy, StoreFull
from outlive.single_file import CheckpointFile
from outlive.testing.patience import PATIENCE_S
from rig.crash import ram_folder, rounds

MODELS = ("claude", "gpt", "gemini")


@pytest.fixture
def folder():
    with ram_folder() as folder:
        yield folder


def test_a_value_is_saved_loaded_and_cleared(folder):
    file = checkpoint_file(folder / "deep" / "er" / "run.ckpt")
    assert file.load() is None
    file.clear()  # of nothing
    state = {"messages": ["é", b"\0"], "when": {1, 2}, "response": ModelResponse("m", text="x")}
    file.save(state)
    assert checkpoint_file(file.path).load() == state
    file.save([1])
    assert file.load() == [1]
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder / "deep").st_mode) == 0o700
    file.clear()
    assert file.load() is None
    assert os.listdir(folder / "deep" / "er") == []


def test_none_is_a_value_of_its_own_kind(folder):
    file = checkpoint_file(folder / "f")
    file.save(None)
    assert (file.load(), os.path.exists(file.path)) == (None, True)


def test_a_fan_out_goes_on_from_where_each_model_was(folder):
    file = checkpoint_file(folder / "f")
    assert file.open(["a", "b", "a"], prompt="p", verbose=True).model_ids == ("a", "b", "a")
    file.update("a", {"text": "1", "input_tokens": 5})
    file.update("a", PartialResponse(text="12", input_tokens=7, tool_calls={"read": 1}))
    file.mark_completed("b", {"text": "B", "cost_usd": 0.5})
    file.mark_completed("a", {"text": "half", "error": "timeout"}, 1)

    again = checkpoint_file(folder / "f")  # in another process
    held = again.open(["a", "b", "a", "c"], prompt="p")
    assert [(one.model_id, one.status, one.text) for one in held.responses] == [
        ("a", "interrupted", "12"),
        ("b", "completed", "B"),
        ("a", "failed", "half"),
        ("c", "not_started", ""),
    ]
    assert (held.prompt, held.verbose) == ("p", True)
    again.update("a", {"text": "x", "input_tokens": 1})
    again.update("a", {"text": "xy", "input_tokens": 2})
    done = again.mark_completed("a", {"text": "xyz", "input_tokens": 3, "tool_calls": {"read": 1}})
    assert (done.input_tokens, done.attempts, done.tool_calls) == (10, 2, {"read": 2})
    assert again.load().responses[0] == done
    assert [(one.model_id, one.ordinal) for one in again.load().pending()] == [("a", 1), ("c", 0)]
    with pytest.raises(BadArgument, match="another prompt"):
        again.open(["a"], prompt="q")
    with pytest.raises(BadArgument, match="completed"):
        again.update("a", {"text": "late"})


def test_a_model_that_was_not_named_is_added_by_its_first_update(folder):
    file = checkpoint_file(folder / "f")
    file.update("m", {"text": "x"})
    file.update("n", {"text": "y"})
    assert file.load().model_ids == ("m", "n")
    assert FanOut.build(file.load().responses) is not None


def test_an_interrupted_model_is_not_marked_completed(folder):
    file = checkpoint_file(folder / "f")
    file.open(["m"])
    file.mark_completed("m", ModelResponse("m", text="half", status="interrupted"))
    assert [one.status for one in file.load().pending()] == ["interrupted"]


def test_a_saved_fan_out_is_updated_and_another_value_is_not(folder):
    file = checkpoint_file(folder / "f")
    file.save(FanOut.build([ModelResponse.from_partial("m", {"output_tokens": 3})], prompt="p"))
    assert file.mark_completed("m", {"output_tokens": 4}).output_tokens == 7
    file.save({"n": 1})
    for call in (lambda: file.update("m", {}), lambda: file.open(["m"])):
        with pytest.raises(BadArgument, match="holds a dict"):
            call()
    assert file.load() == {"n": 1}


def test_an_update_costs_what_it_brings_and_the_file_does_not_grow_for_ever(folder):
    file = checkpoint_file(folder / "f")
    file.open(MODELS, prompt="p" * 200_000)
    whole, written = os.path.getsize(file.path), []
    real = disk_module.Disk.write
    disk_module.Disk.write = lambda self, fd, data, at: (written.append(len(data)), real(self, fd, data, at))
    try:
        for turn in range(50):
            file.update("gpt", {"text": "x" * turn})
    finally:
        disk_module.Disk.write = real
    assert sum(written) < 50 * 1000
    file.update("gpt", {"input_tokens": 1000})
    file = checkpoint_file(folder / "f")  # another attempt
    for turn in range(200):
        file.update("gpt", {"text": "x" * 20_000, "input_tokens": turn})
    assert os.path.getsize(file.path) < 5 * whole
    assert file.load().responses[1].input_tokens == 1199


# Damage ---------------------------------------------------------------------------------------------------------


def test_no_flipped_bit_and_no_cut_gives_a_wrong_value_or_none(folder):
    file = checkpoint_file(folder / "f")
    file.open(MODELS, prompt="p")
    file.update("gpt", {"text": "x" * 50})
    file.mark_completed("claude", {"text": "y"})
    whole, value = (folder / "f").read_bytes(), file.load()
    rng = random.Random(1)
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        (folder / "f").write_bytes(damaged)
        try:
            assert file.load() == value  # one of the two marks, or bytes that nobody reads
        except (Corrupt, NewerFormat):
            refused += 1
    assert refused > len(whole) - 40
    for size in range(len(whole)):
        (folder / "f").write_bytes(whole[:size])
        with pytest.raises(Corrupt):
            file.load()
        if size % 50 == 0:
            with pytest.raises(Corrupt):
                file.update("gpt", {"text": "z"})
            assert (folder / "f").read_bytes() == whole[:size]


def test_what_is_no_checkpoint_is_refused(folder):
    for content in (b"", b"{}", b"x" * 500):
        (folder / "f").write_bytes(content)
        with pytest.raises(Corrupt):
            checkpoint_file(folder / "f").load()
    (folder / "f").unlink()
    (folder / "f").symlink_to(folder / "other")
    with pytest.raises(Corrupt, match="not a regular file"):
        checkpoint_file(folder / "f").load()
    with pytest.raises(BadArgument, match="path of a file"):
        checkpoint_file("/")


def test_a_torn_end_is_what_nobody_was_told_about(folder):
    file = checkpoint_file(folder / "f")
    file.open(MODELS)
    file.update("gpt", {"text": "told"})
    whole = (folder / "f").read_bytes()
    file.update("gpt", {"text": "torn" * 500})
    longer = (folder / "f").read_bytes()
    for size in range(len(whole), len(longer)):
        (folder / "f").write_bytes(whole + longer[len(whole) : size])
        assert file.load().responses[1].text == "told"
    assert b"torn" in (folder / "f").read_bytes()
    file.update("claude", {"text": "on"})
    assert b"torn" not in (folder / "f").read_bytes()
    assert [one.text for one in file.load().responses] == ["on", "told", ""]


def test_a_full_disk_leaves_what_was_there(folder, monkeypatch):
    file = checkpoint_file(folder / "f")
    file.open(MODELS)
    file.update("gpt", {"text": "old"})
    size, real = os.path.getsize(file.path), disk_module.Disk.write

    def full(self, fd, data, at):
        real(self, fd, data[: len(data) // 2], at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_module.Disk, "write", full)
    for write in (lambda: file.update("gpt", {"text": "new"}), lambda: file.save("new")):
        with pytest.raises(StoreFull):
            write()
        assert (os.path.getsize(file.path), sorted(os.listdir(folder))) == (size, [".f.lock", "f"])
    monkeypatch.undo()
    assert file.load().responses[1].text == "old"
    assert file.update("gpt", {"text": "new"}).text == "new"


# Processes ------------------------------------------------------------------------------------------------------


def update_often(report, path, model, times):
    file = checkpoint_file(path, timeout_s=10 * PATIENCE_S)
    for turn in range(1, times + 1):
        file.update(model, {"text": f"{model} {turn}", "output_tokens": turn})
    file.mark_completed(model, {"text": f"{model} end", "output_tokens": times})


def test_processes_and_threads_do_not_lose_each_others_updates(folder, workers):
    path = str(folder / "f")
    checkpoint_file(path).open([f"m{number}" for number in range(6)], prompt="p")
    running = [workers.spawn(update_often, path, f"m{number}", 30) for number in range(3)]
    threads = [
        threading.Thread(target=update_often, args=(None, path, f"m{number}", 30)) for number in (3, 4, 5)
    ]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        now = checkpoint_file(path).load().usage.output_tokens  # readers take no lock
        assert now >= seen
        seen = now
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    for worker in running:
        with worker:
            worker.finish()
    held = checkpoint_file(path).load()
    assert [one.text for one in held.responses] == [f"m{number} end" for number in range(6)]
    assert held.usage.output_tokens == 6 * 30


def save_and_clear(report, path, number):
    file = checkpoint_file(path)
    for turn in range(60):
        file.save([number, turn, "x" * 1000])
        assert (value := file.load()) is None or len(value) == 3
        if turn % 7 == 3:
            file.clear()


def test_processes_that_save_and_clear_one_path_never_see_half_a_value(folder, workers):
    running = [workers.spawn(save_and_clear, str(folder / "f"), number) for number in range(4)]
    for worker in running:
        with worker:
            worker.finish()
    checkpoint_file(folder / "f").clear()
    assert os.listdir(folder) == []


def hold(report, path):
    with checkpoint_file(path)._locked():
        report("held")
        signal.pause()


def test_a_lock_is_waited_for_and_a_dead_process_holds_none(folder, workers):
    file = checkpoint_file(folder / "f", timeout_s=0.1)
    file.save(1)
    with workers.spawn(hold, file.path) as worker:
        worker.receive()
        with pytest.raises(StoreBusy, match=r"\.f\.lock"):
            file.save(2)
        assert file.load() == 1
        worker.kill()
    file.save(3)
    assert file.load() == 3


CHANGES = {
    "open",
    "pwrite",
    "fdatasync",
    "fsync",
    "rename",
    "unlink",
    "ftruncate",
    "mkdir",
    "flock",
    "fchmod",
}


def work_and_die(report, path, number):
    """Die before the `number`th system call that changes something."""
    count = [0]

    def hook(frame, event, function):
        if event == "c_call" and function.__name__ in CHANGES and function.__module__ in ("posix", "fcntl"):
            count[0] += 1
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)
    file = checkpoint_file(path)
    file.open(MODELS, prompt="p")
    report(-1)
    for turn in range(1, 4):
        for model in MODELS:
            file.update(model, {"text": "x" * turn * 10_000, "output_tokens": turn})
            report(turn, model)
    file.clear()
    report("cleared", count[0])


def test_a_kill_before_any_system_call_keeps_what_was_acknowledged(folder, workers):
    with workers.spawn(work_and_die, str(folder / "dry"), 0) as worker:
        calls = worker.finish()[-1][1]
    kills = min(calls, rounds(15, long=calls))
    for kill in range(kills):
        number = 1 + kill * calls // kills
        print("killed at call", number)
        path = folder / str(number)
        with workers.spawn(work_and_die, str(path), number) as worker:
            said = list(worker)
        check_file(path, said)


def check_file(path, said):
    file = checkpoint_file(path)
    held = file.load()
    if held is None:  # it was not yet, or is not any more
        assert said == [] or len(said) == 10
    else:
        done = {model: turn for turn, model in said[1:]}
        at = {one.model_id: one.output_tokens for one in held.responses}
        assert all(done.get(model, 0) <= at[model] <= done.get(model, 0) + 1 for model in MODELS)
        assert sum(at.values()) <= sum(done.values()) + 1
    file.open(MODELS, prompt="p")
    for one in file.load().pending():
        total = file.mark_completed(one.model_id, {"output_tokens": 1}).output_tokens
        assert total == one.output_tokens + 1
    assert file.load().pending() == []
    assert outlive.checkpoint_file(path).load() == file.load()


# Power cuts -----------------------------------------------------------------------------------------------------


class Died(Exception):
    pass


class Dying(Recorder):
    """A process that dies instead of syncing the folder, once it is told to."""

    is_doomed = False

    def sync_folder(self, folder=""):
        if self.is_doomed:
            self.is_doomed = False
            raise Died
        super().sync_folder(folder)


class OnRecorder(CheckpointFile):
    """A handle whose system calls are recorded."""

    recorder = None

    def _disk(self):
        return self.recorder


def record(folder):
    """Do what can be done; return the calls, with an `ack` where somebody was told, and the values one after the other."""
    recorder = Dying(str(folder))
    values = [None]

    def handle():
        file = OnRecorder(folder / "f")
        file.recorder = recorder
        return file

    def do(work):
        work()
        values.append(CheckpointFile(folder / "f").load())
        recorder.ops.append(Op("ack"))

    file = handle()
    do(lambda: file.open(["a", "b"], prompt="p"))
    do(lambda: file.update("a", {"text": "x"}))
    do(lambda: file.mark_completed("b", {"text": "B"}))
    do(lambda: file.save({"n": 1}))
    do(file.clear)
    do(lambda: file.open(["a"]))
    recorder.is_doomed = True
    with pytest.raises(Died):  # the file has its new name, and the folder is not synced
        file.open(["a", "c"])
    values.append(CheckpointFile(folder / "f").load())
    recorder.ops.append(Op("renamed"))
    do(lambda: handle().update("c", {"text": "on"}))
    do(lambda: handle().save("large" * 1000))
    return recorder.ops, values


def test_a_power_cut_at_any_moment_leaves_what_was_acknowledged(folder):
    (folder / "recorded").mkdir()
    ops, values = record(folder / "recorded")
    chance = random.Random(SEED)
    at = tried = 0
    for end in range(len(ops) + 1):
        if end and ops[end - 1].kind in ("ack", "renamed"):
            at += 1
        told = [op for op in ops[:end] if op.kind != "renamed"]
        may_lag = end and any(op.kind == "renamed" for op in ops[:end]) and at == 7
        for left in _cuts(told, chance, SUBSETS):
            root = folder / f"cut{tried}"
            tried += 1
            _build(_state(left), root)
            found = CheckpointFile(root / "f").load()
            assert found in values[at - bool(may_lag) : at + 2], (end, left[-3:])
    assert at == len(values) - 1
    assert tried > 300


# As JSON ---------------------------------------------------------------------------------------------------------

ERRATA = """
{
  "prompt": "Which city?",
  "timestamp": "2026-02-25T10:00:00.123456789+02:00",
  "adapter_ids": ["claude-sonnet-4-6", "gpt-5", "gemini-3", "late"],
  "responses": [
    {"model_id": "claude-sonnet-4-6", "text": "Lisbon", "latency_ms": 812, "input_tokens": 20, "output_tokens": 3,
     "cost_usd": 0.0015, "proposed_writes": [{"path": "a.md", "content": "# A\\n"}, {"path": "b", "content": "", "delete": true}],
     "tool_calls": {"read_file": 2}, "interrupted": false, "completed": true},
    {"model_id": "gpt-5", "text": "Por", "latency_ms": 30000, "input_tokens": 20, "output_tokens": 1, "reasoning_tokens": 9,
     "cost_usd": 0, "interrupted": true, "completed": true, "from_the_future": [1]},
    {"model_id": "gemini-3", "latency_ms": 5, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0,
     "error": "quota", "interrupted": false, "completed": false, "proposed_writes": null}
  ],
  "verbose": true
}
"""


def test_a_file_of_errata_is_read_as_it_is_meant():
    found = FanOut.from_json(ERRATA)
    assert (found.prompt, found.verbose) == ("Which city?", True)
    assert found.created_at.isoformat() == "2026-02-25T08:00:00.123456+00:00"
    assert [(one.model_id, one.status) for one in found.responses] == [
        ("claude-sonnet-4-6", "completed"), ("gpt-5", "interrupted"), ("gemini-3", "failed"), ("late", "not_started"),
    ]  # fmt: skip
    first, second, third, _ = found.responses
    assert [(one.path, one.content, one.delete) for one in first.proposed_writes] == [
        ("a.md", "# A\n", False),
        ("b", "", True),
    ]
    assert (first.tool_calls, first.cost_usd, second.reasoning_tokens, third.error) == (
        {"read_file": 2},
        0.0015,
        9,
        "quota",
    )
    assert [one.model_id for one in found.pending()] == ["gpt-5", "gemini-3", "late"]
    assert FanOut.from_json(found.to_json()) == found


def test_a_fan_out_comes_back_from_json_as_it_was():
    writes = [
        {"path": "é", "content": "x\u2028"},
        {"path": "b", "content": b"bytes"},
        {"path": "c", "delete": True},
    ]
    responses = [
        ModelResponse("gpt", text="one", latency_ms=1.25, proposed_writes=writes, attempts=3),
        ModelResponse.from_partial("gpt", {"output_tokens": 3, "latency_ms": 1}, ordinal=1),
        ModelResponse("claude", status="failed", error="gone", tool_calls={"a": 1}),
        ModelResponse("claude", ordinal=1, status="running"),
    ]
    for prompt in ("p\ud800", "", None):
        built = FanOut.build(responses, prompt=prompt, verbose=prompt is None)
        assert FanOut.from_json(built.to_json()) == built
        assert FanOut.from_json(built.to_json().encode()) == built
    begun = FanOut.start(["a", "a", "b"], prompt="p")
    assert FanOut.from_json(begun.to_json()) == begun
    assert FanOut.from_json('{"adapter_ids": null, "responses": null}') == FanOut(())


def test_what_errata_could_not_read_back_is_refused_when_it_is_written():
    for prompt, response, what in (
        ({"text": "p"}, {}, "prompt"),
        ("p", {"proposed_writes": [("a", b"\xff")]}, "not text"),
        ("p", {"cost_usd": float("inf")}, "finite"),
    ):
        with pytest.raises(BadArgument, match=what):
            FanOut((ModelResponse("m", **response),), prompt).to_json()


def test_json_that_is_no_fan_out_is_refused_by_name():
    rng = random.Random(7)
    whole = json.loads(ERRATA)
    strange = [None, 7, -1, "x", [], [1], {}, {"a": 1}, True, 1e400, "\ud800", [[]], {"model_id": 3}]
    for _ in range(3000):
        content = json.loads(ERRATA)
        at = rng.choice([content, *content["responses"], content["responses"][0]["proposed_writes"][0]])
        at[rng.choice(list(at))] = rng.choice(strange)
        with contextlib.suppress(BadArgument):
            FanOut.from_json(json.dumps(content))
    for text in (
        "",
        "[]",
        "null",
        "{",
        '{"adapter_ids": "abc"}',
        "[" * 100_000,
        b"\xff\xfe",
        '{"responses": [{}]}',
    ):
        with pytest.raises(BadArgument):
            FanOut.from_json(text)
    whole["responses"].append(whole["responses"][0] | {"ordinal": 0})
    with pytest.raises(BadArgument, match="two responses"):
        FanOut.from_json(json.dumps(whole))


@pytest.mark.parametrize(
    "url", ["sqlite:///a.db", "file:a", "memory:", "postgresql://u:secret@host/db", "s3://b/k"]
)
def test_a_url_is_no_path(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(outlive.errors.BadArgument, match=r"outlive\.open") as refused:
        outlive.checkpoint_file(url)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    outlive.checkpoint_file(tmp_path / "sqlite").save(1)
