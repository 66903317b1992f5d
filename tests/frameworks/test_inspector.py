"""The inspector shows what an adapter stored, though the types of its framework are not built."""

import asyncio

from playwright.sync_api import expect
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

import outlive
from outlive.adapters.pydantic_ai import OutliveConversationStore
from outlive.testing.patience import PATIENCE_S
from rig.browser import browser, expect_accessible, served, visiting


async def converse(conversations):
    call = ToolCallPart("search_ferries", {"port": "north"}, tool_call_id="c1")
    result = ToolReturnPart("search_ferries", "a night ferry", tool_call_id="c1")
    conversation = Conversation(conversation_id="trip")
    for message in (
        ModelRequest(parts=[UserPromptPart("Plan a trip")]),
        ModelResponse(parts=[TextPart("I look."), call]),
        ModelRequest(parts=[result]),
        ModelResponse(parts=[TextPart("Take the night ferry.")]),
    ):
        conversation.messages.append(message)
        await conversations.save(conversation)


def test_a_conversation_of_pydantic_ai_is_a_chat(url):
    with outlive.open(url) as store:
        asyncio.run(converse(OutliveConversationStore(store)))
        with browser() as chromium, served(store) as address, visiting(chromium, address) as visitor:
            expect.set_options(timeout=PATIENCE_S * 1000)
            page = visitor.open()
            page.goto("/threads")
            page.locator("[data-list] a").first.click()
            expect(page.locator(".chat")).to_contain_text("Plan a trip")
            expect(page.locator(".call .code")).to_contain_text("search_ferries")
            expect(page.locator(".call .result")).to_contain_text("a night ferry")
            expect(page.locator(".turn.new")).to_contain_text("Take the night ferry.")
            page.locator(".windowed").wait_for()
            page.keyboard.press("d")
            expect(page.locator(".changes")).to_contain_text("night ferry")
            expect_accessible(page, "conversation")
