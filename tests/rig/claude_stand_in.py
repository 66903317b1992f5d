"""A stand-in for the program that the Claude Agent SDK drives: it speaks that protocol, and has a script for a model.

Its conversation is in a transcript as that program writes it. It calls the tools of its plan one after the other, and
counts them in a file. A call that is in the transcript without a result is one that was interrupted, as there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path

INTERRUPTED = "interrupted"
PLAN = [["search", {"city": "Lisbon"}], ["book", {"city": "Porto"}], ["book", {"city": "Faro"}]]


def installed(folder: Path) -> str:
    """Make the program in a folder, and return its path."""
    path = folder / "claude"
    path.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    path.chmod(0o700)
    return str(path)


class StandIn:
    def __init__(self) -> None:
        self.parent = os.getppid()
        self.work = Path(os.environ["STAND_IN_FOLDER"])
        self.plan = json.loads(os.environ["STAND_IN_PLAN"])
        flags = dict(flag.split("=", 1) for flag in sys.argv if flag.startswith("--") and "=" in flag)
        arguments = dict(zip(sys.argv, sys.argv[1:], strict=False))
        self.is_resumed = "--resume" in arguments or "--resume" in flags
        self.session = arguments.get("--resume") or flags.get("--resume") or flags["--session-id"]
        self.file = (
            Path(os.environ["CLAUDE_CONFIG_DIR"])
            / "projects"
            / os.environ["STAND_IN_PROJECT"]
            / f"{self.session}.jsonl"
        )
        lines = self.file.read_text().splitlines() if self.is_resumed else []
        self.entries = [json.loads(line) for line in lines]

    # The protocol

    def send(self, **message: object) -> None:
        print(json.dumps(message), flush=True)

    def receive(self) -> dict:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # the SDK has gone
        return json.loads(line)

    def write(self, type: str, content: object) -> None:
        entry = {
            "type": type,
            "uuid": str(uuid.uuid4()),
            "sessionId": self.session,
            "message": {"role": type, "content": content},
        }
        self.entries.append(entry)
        self.send(type="transcript_mirror", filePath=str(self.file), entries=[entry])

    def note(self, name: str) -> None:
        with (self.work / "calls").open("a") as file:
            file.write(f"{name}\n")

    # The conversation

    def blocks(self, kind: str) -> list[dict]:
        contents = [entry["message"]["content"] for entry in self.entries if "message" in entry]
        return [
            block
            for content in contents
            if isinstance(content, list)
            for block in content
            if block["type"] == kind
        ]

    def main(self) -> None:
        while True:
            message = self.receive()
            if message["type"] == "control_request":
                answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                self.send(type="control_response", response=answer)
            elif message["type"] == "user":
                self.answer(message["message"]["content"])

    def answer(self, prompt: str) -> None:
        done = {block["tool_use_id"] for block in self.blocks("tool_result")}
        for block in self.blocks("tool_use"):
            if block["id"] not in done:
                self.result(block["id"], INTERRUPTED)
        self.note("prompt")
        with (self.work / "prompts").open("a") as file:
            file.write(json.dumps(prompt) + "\n")
        self.write("user", prompt)
        while (number := self.finished()) < len(self.plan):
            self.call(*self.plan[number])
        text = [{"type": "text", "text": "done"}]
        self.write("assistant", text)
        self.send(type="assistant", message={"role": "assistant", "content": text, "model": "stand-in"})
        self.send(
            type="result", subtype="success", duration_ms=1, duration_api_ms=1, is_error=False, num_turns=1,
            session_id=self.session, result="done",
        )  # fmt: skip

    def finished(self) -> int:
        return sum(block["content"] != INTERRUPTED for block in self.blocks("tool_result"))

    def call(self, tool: str, input: dict) -> None:
        use = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": tool, "input": input}
        self.write("assistant", [use])
        self.send(type="assistant", message={"role": "assistant", "content": [use], "model": "stand-in"})
        if os.environ.get("STAND_IN_ASKS") == tool and (refusal := self.refusal(use)) is not None:
            self.result(use["id"], refusal)
            return
        name = f"{tool}:{input['city']}"
        self.note(name)
        if os.environ.get("STAND_IN_HANGS") == name:
            self.hang()
        self.result(use["id"], f"{tool} of {input['city']}")

    def hang(self) -> None:
        """Work until the process of the SDK has gone."""
        while os.getppid() == self.parent:
            time.sleep(0.05)
        os._exit(0)

    def result(self, id: str, content: str) -> None:
        self.write("user", [{"type": "tool_result", "tool_use_id": id, "content": content}])

    def refusal(self, use: dict) -> str | None:
        """Ask for a permission, and return why it was refused."""
        asked = {
            "subtype": "can_use_tool",
            "tool_name": use["name"],
            "input": use["input"],
            "tool_use_id": use["id"],
        }
        self.send(type="control_request", request_id=use["id"], request=asked)
        while True:
            message = self.receive()
            if message["type"] == "control_response":
                answer = message["response"]["response"]
                return None if answer["behavior"] == "allow" else answer["message"]


if __name__ == "__main__":
    StandIn().main()
