"""Conversations of Pydantic AI: `OutliveConversationStore` beside the `InMemoryConversationStore`, the only one that ships.

A conversation grows by a request and a response of 800 characters with each save, up to 2,000 messages. Both
sides save in turn on one event loop; ours on a file with `synchronous=FULL`, theirs in memory. On disk are all
states; beside them stands the JSON of the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationStore, InMemoryConversationStore
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

import growing
from measure import bytes_in
from outlive.adapters.pydantic_ai import OutliveConversationStore
from scale import Scale
from table import Row, megabytes


def run(scale: Scale, room: Path) -> Iterator[Row]:
    turns, mine = growing.turns_of(scale), OutliveConversationStore(f"sqlite:///{room}/agent.db")
    with asyncio.Runner() as runner:
        race = growing.grow(runner, _adder(mine), _adder(InMemoryConversationStore()), turns)
        stored = runner.run(mine.load("talk"))
    if stored is None or len(stored.messages) != 2 * len(turns):
        raise AssertionError("a conversation came back with other messages")
    mine.close()
    last = len(ConversationTypeAdapter.dump_json(stored))
    yield from growing.rows(
        "Pydantic AI",
        "InMemoryConversationStore",
        race,
        bytes_in(room),
        f"the JSON of the last {megabytes(last)}",
    )


def _adder(store: ConversationStore) -> growing.Add:
    conversation = Conversation(conversation_id="talk")

    async def add(turn: growing.Turn) -> None:
        conversation.messages.append(ModelRequest([UserPromptPart(turn[0])]))
        conversation.messages.append(ModelResponse([TextPart(turn[1])]))
        await store.save(conversation)

    return add
