"""Threads of sync workers: used again while there is work, as fresh as new ones, and gone a moment later."""

from __future__ import annotations

import contextvars
import gc
import os
import threading
import weakref

from outlive.runtime.hands import Hands
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually

variable = contextvars.ContextVar("variable", default="unset")


def finished(hand):
    run_now(hand.wait(PATIENCE_S))
    assert hand.has_ended()


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def call_and_rest(hands, name, function):
    """Call a function, and wait until its thread is idle."""
    finished(hands.start(name, function))
    eventually(lambda: hands._idle)


def test_a_thread_that_is_idle_is_used_again(tuned):
    tuned(hands_idle_s=20.0)
    hands, idents = Hands(), []
    for _ in range(5):
        call_and_rest(hands, "outlive-again", lambda: idents.append(threading.get_ident()))
    assert len(idents) == 5
    assert len(set(idents)) == 1


def test_functions_that_run_at_the_same_time_have_threads_of_their_own():
    hands, barrier = Hands(), threading.Barrier(8)
    for hand in [hands.start("outlive-beside", lambda: barrier.wait(PATIENCE_S)) for _ in range(8)]:
        finished(hand)
    assert not barrier.broken


def test_context_variables_do_not_reach_the_next_function(tuned):
    tuned(hands_idle_s=20.0)
    hands, values = Hands(), []
    call_and_rest(hands, "outlive-set", lambda: variable.set("set"))
    call_and_rest(hands, "outlive-get", lambda: values.append(variable.get()))
    assert values == ["unset"]


def test_an_idle_thread_keeps_nothing_alive_and_ends(tuned):
    class Work:
        def __call__(self):
            pass

    tuned(hands_idle_s=20.0)
    hands, work = Hands(), Work()
    reference = weakref.ref(work)
    call_and_rest(hands, "outlive-idle", work)
    del work
    gc.collect()
    assert reference() is None
    tuned(hands_idle_s=0.01)
    finished(hands.start("outlive-brief", lambda: None))  # the same thread, which now waits for less
    eventually(lambda: not threads("outlive-brief"))
    assert not hands._idle


def test_a_function_that_raises_is_reported_and_ends_its_thread_alone(monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda report: reported.append(report.exc_type))
    hands = Hands()
    finished(hands.start("outlive-raises", lambda: 1 / 0))
    eventually(lambda: reported == [ZeroDivisionError])
    call_and_rest(hands, "outlive-after", lambda: None)


def test_a_forked_child_starts_threads_of_its_own(tuned):
    tuned(hands_idle_s=20.0)
    hands = Hands()
    call_and_rest(hands, "outlive-parent", lambda: None)
    child = os.fork()
    if child == 0:
        hand = hands.start("outlive-child", lambda: None)
        run_now(hand.wait(PATIENCE_S))
        os._exit(0 if hand.has_ended() else 1)
    assert os.waitpid(child, 0)[1] == 0
