"""The states that are saved: seeded, and all made before any clock starts.

States share their message objects, as an agent's own list does from one step to the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from text import hex_id, prose, records

State: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]

SEED = 20_260
WINDOW = 200
FILES = 40
FILE_BYTES = 8_192
TEXT_BYTES = 300_000
IMAGES = 8
IMAGE_BYTES = 300_000
_TOOLS = ["search_flights", "read_file", "run_query", "fetch_page", "list_orders"]


def _usage(rng: random.Random) -> dict[str, int]:
    return {
        "input_tokens": rng.randrange(400, 60_000),
        "output_tokens": rng.randrange(20, 1_500),
        "cached_tokens": rng.randrange(30_000),
    }


def _tails(rng: random.Random, block: int = 50) -> Iterator[int]:
    """Draw sizes of tool results: mostly small, now and then a whole page.

    Every block of turns gets the same quantiles of one Pareto curve, shuffled: heavy-tailed, and yet the
    second half of a conversation is as long as the first, so that growth is the store's, not the dice's.
    """
    curve = [int(300 * (1 - (n + 0.5) / block) ** (-1 / 1.15)) for n in range(block)]
    while True:
        yield from rng.sample(curve, block)


def _user(rng: random.Random) -> Message:
    return {"role": "user", "id": hex_id(rng, "msg"), "content": prose(rng, rng.randrange(60, 700))}


def _call(rng: random.Random) -> Message:
    arguments = f'{{"query": "{prose(rng, rng.randrange(30, 160))}", "limit": {rng.randrange(100)}}}'
    function = {"name": rng.choice(_TOOLS), "arguments": arguments}
    return {
        "role": "assistant",
        "id": hex_id(rng, "msg"),
        "content": prose(rng, rng.randrange(20, 240)),
        "tool_calls": [{"id": hex_id(rng, "call"), "type": "function", "function": function}],
        "usage": _usage(rng),
        "finish_reason": "tool_calls",
    }


def _result(rng: random.Random, call: Message, chars: int) -> Message:
    tool_call = call["tool_calls"][0]
    return {
        "role": "tool",
        "id": hex_id(rng, "msg"),
        "tool_call_id": tool_call["id"],
        "name": tool_call["function"]["name"],
        "content": records(rng, chars),
        "duration_ms": round(rng.lognormvariate(5, 1), 1),
        "is_error": rng.random() < 0.05,
    }


def _answer(rng: random.Random) -> Message:
    return {
        "role": "assistant",
        "id": hex_id(rng, "msg"),
        "content": prose(rng, rng.randrange(200, 1_820)),
        "usage": _usage(rng),
        "finish_reason": "stop",
    }


def _turn(rng: random.Random, result_chars: int) -> list[Message]:
    call = _call(rng)
    return [_user(rng), call, _result(rng, call, result_chars), _answer(rng)]


def messages(count: int, seed: int = SEED) -> list[Message]:
    rng = random.Random(seed)
    tails = _tails(rng)
    made: list[Message] = []
    while len(made) < count:
        made += _turn(rng, next(tails))
    return made[:count]


def _small_fields(rng: random.Random, step: int, plan: list[str]) -> State:
    if step % 20 == 0:
        plan[:] = [prose(rng, 50) for _ in range(rng.randrange(3, 7))]
    return {"plan": list(plan), "step": step}


def _growing(talk: list[Message]) -> list[State]:
    rng, plan = random.Random(SEED + 1), list[str]()
    return [{"messages": talk[: n + 1], **_small_fields(rng, n, plan)} for n in range(len(talk))]


def conversation(steps: int, seed: int = SEED) -> list[State]:
    """One save per message: user, assistant with a tool call, tool result, assistant."""
    return _growing(messages(steps, seed))


def _two_levels_down(messages: list[Message], **small_fields: Any) -> State:
    return {"session": {"agent": {"messages": messages}, "user": "ada"}, **small_fields}


def nested(steps: int) -> list[State]:
    """The same conversation two levels down."""
    return [_two_levels_down(**state) for state in conversation(steps)]


def window(steps: int) -> list[State]:
    """Only the last messages are kept in the state."""
    return [{**state, "messages": state["messages"][-WINDOW:]} for state in conversation(steps)]


def _edit(rng: random.Random, content: str) -> str:
    at = rng.randrange(len(content) - 200)
    return content[:at] + prose(rng, 120) + content[at + 120 :]


def files(steps: int) -> list[State]:
    """A tree of files; one or two of them are edited in place per save."""
    rng = random.Random(SEED + 2)
    tree = {f"src/module_{n:02}.py": prose(rng, FILE_BYTES) for n in range(FILES)}
    states: list[State] = []
    for step in range(steps):
        for path in rng.sample(sorted(tree), rng.choice((1, 2))):
            tree[path] = _edit(rng, tree[path])
        states.append({"files": dict(tree), "step": step})
    return states


def text(steps: int) -> list[State]:
    """One long text, edited in place."""
    rng = random.Random(SEED + 4)
    content, states = prose(rng, TEXT_BYTES), list[State]()
    for step in range(steps):
        content = _edit(rng, content)
        states.append({"text": content, "step": step})
    return states


def _with_image(rng: random.Random, message: Message) -> Message:
    image = {"type": "image", "media_type": "image/png", "data": rng.randbytes(IMAGE_BYTES)}
    return {**message, "content": [{"type": "text", "text": message["content"]}, image]}


def images(steps: int) -> list[State]:
    """The conversation with a few incompressible images among its messages."""
    rng, talk = random.Random(SEED + 3), messages(steps)
    for n in range(IMAGES):
        at = (n * steps // IMAGES) & ~3  # every fourth message is the user's
        talk[at] = _with_image(rng, talk[at])
    return _growing(talk)


WORKLOADS: dict[str, Callable[[int], list[State]]] = {
    "conversation": conversation,
    "nested": nested,
    "window": window,
    "files": files,
    "text": text,
    "images": images,
}
