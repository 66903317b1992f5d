"""Permissions to use a tool as questions of a run.

The program that the SDK drives asks for a permission and waits, while a run may wait for days. So
it is stopped, with its transcript stored, and the run asks. With the answer it is started again,
told what was decided, and makes the call again: the n-th call of a tool with an input is the n-th
question about these.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import json
from collections import Counter
from dataclasses import asdict
from typing import Any, cast

from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny, ToolPermissionContext

from outlive.adapters.common.current import Work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.questions import Decision, approval, ask_all, decision_of
from outlive.runs.waits import Question
from outlive.store import AsyncStore

_ASKED, _USED = "permission asked", "permission used"
_REFUSED = "The user refused this tool call."


class Permissions:
    """What people have permitted in a run, and what they have to be asked."""

    def __init__(self, current: Work) -> None:
        self._current = current
        self._asked: dict[str, Any] = {}  # name → the call; what was asked and not used yet
        self._used: Counter[str] = Counter()  # by tool and input
        self._always: dict[str, Decision] = {}  # by tool
        self._pending: dict[str, Any] = {}
        self.is_asked = asyncio.Event()  # that something is pending

    async def read(self) -> None:
        """Read what earlier attempts of the run have asked and used."""
        store = cast(AsyncStore, self._current.run.thread._store)
        info = self._current.run.info
        for step in await store.steps(info.id, thread=info.thread):
            if step.name == _ASKED and step.value is not None:
                self._asked[step.value["name"]] = step.value
            elif step.name == _USED and step.value is not None:
                self._note_used(step.value["name"], step.value["tool"], Decision(**step.value["decision"]))

    # While the program works

    async def __call__(
        self, tool: str, input: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        """Return what was decided about a call. If nobody has been asked, note the question, and never return."""
        if tool in self._always:
            return _result(self._always[tool])
        call: dict[str, Any] = {
            "name": self._name(tool, input),
            "tool": tool,
            "input": input,
            "title": context.title,
        }
        if call["name"] not in self._asked:
            self._pending[call["name"]] = call
            self.is_asked.set()
            await asyncio.Event().wait()  # until the program is stopped
        decision = (await self._decisions([call]))[call["name"]]
        used = {"name": call["name"], "tool": tool, "decision": asdict(decision)}
        await kept(_USED, lambda: used, key=call["name"])
        self._note_used(call["name"], tool, decision)
        return _result(decision)

    def _name(self, tool: str, input: dict[str, Any]) -> str:
        """Return the name of the next question about a call."""
        subject = _subject(tool, input)
        return approval(tool, f"{subject}:{self._used[subject]}", None)[0]

    def _note_used(self, name: str, tool: str, decision: Decision) -> None:
        call = self._asked.pop(name, None)
        if call is not None:
            self._used[_subject(call["tool"], call["input"])] += 1
        if decision.always:
            self._always[tool] = decision

    # When it has been stopped

    async def ask(self) -> None:
        """Ask what is pending. Without all answers the run waits: raises RunSuspended."""
        for name, call in self._pending.items():
            self._asked[name] = await kept(_ASKED, functools.partial(copy.deepcopy, call), key=name)
        self._pending.clear()
        self.is_asked.clear()
        await self._decisions(list(self._asked.values()))

    async def told(self) -> str:
        """Return what to tell the model about the calls that were decided and that it has not made again."""
        decisions = await self._decisions(list(self._asked.values()))
        return "".join(
            _told(call, decisions[name]) for name, call in self._asked.items() if name in decisions
        )

    async def _decisions(self, calls: list[Any]) -> dict[str, Decision]:
        if not calls:
            return {}
        answers = await ask_all(self._current, {call["name"]: _question(call) for call in calls})
        return {name: decision_of(answer) for name, answer in answers.items()}


def _question(call: Any) -> Question:
    title = {} if call["title"] is None else {"title": call["title"]}
    asked = approval(call["tool"], call["name"], call["input"], **title)[1]
    return Question({key: value for key, value in asked.payload.items() if key != "call_id"}, asked.schema)


def _subject(tool: str, input: dict[str, Any]) -> str:
    text = json.dumps([tool, input], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _result(decision: Decision) -> PermissionResultAllow | PermissionResultDeny:
    if decision.approve:
        return PermissionResultAllow()
    return PermissionResultDeny(message=decision.message or _REFUSED)


def _told(call: Any, decision: Decision) -> str:
    what = f"{call['tool']} with the input {json.dumps(call['input'])}"
    if decision.approve:
        return f"\nThe user has allowed this tool call, so make it again: {what}."
    reason = "" if decision.message is None else f" The reason: {decision.message}"
    return f"\nThe user has refused this tool call, so do not make it: {what}.{reason}"
