"""Chats: the template, replies and their parts, tools and schemas, as `octet serve` has them."""

import asyncio
import json

import pytest

import octet

MESSAGES = [{"role": "user", "content": "The cat"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"]}}}


def test_the_template(model, engine):
    tokenizer = octet.Tokenizer(model)
    assert tokenizer.has_chat_template
    assert tokenizer.chat_prompt(MESSAGES, tokenize=False) == "<|user|>The cat<|assistant|>"
    assert tokenizer.chat_prompt(MESSAGES, tokenize=False, add_generation_prompt=False) == "<|user|>The cat"
    assert tokenizer.chat_prompt(MESSAGES, tokenize=False, settings={"note": "so"}).endswith("<|assistant|>so")
    with pytest.raises(octet.InvalidArgument, match="chat_template_kwargs.nope"):
        tokenizer.chat_prompt(MESSAGES, settings={"nope": 1})
    with pytest.raises(octet.InvalidArgument, match="has no role"):
        tokenizer.chat_prompt([{"content": "a"}])
    with pytest.raises(octet.InvalidArgument, match="chat_template:1: no"):
        tokenizer.chat_prompt(MESSAGES, chat_template="{{ raise_exception('no') }}")


def test_a_reply_is_the_text_behind_the_prompt(model, engine):
    ids = octet.Tokenizer(model).chat_prompt(MESSAGES)
    whole = engine.chat(MESSAGES, max_tokens=12, temperature=0)
    assert whole.prompt_ids == ids and whole.ids == engine.generate(ids, max_tokens=12, temperature=0).ids
    assert whole.message == {"role": "assistant", "content": whole.text} and whole.tool_calls == []
    assert [one.text for one in engine.chat([MESSAGES, MESSAGES], max_tokens=12, temperature=0)] == [whole.text] * 2
    events = list(engine.chat_stream(MESSAGES, max_tokens=12, temperature=0))
    assert "".join(event.text for event in events) == whole.text
    assert asyncio.run(engine.achat(MESSAGES, max_tokens=12, temperature=0)).text == whole.text


def test_a_schema_and_calls_that_must_come(model):
    with octet.Engine(model, device="cpu", recipe="fp32", tool_calls="hermes") as engine:
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
        assert json.loads(engine.chat(MESSAGES, schema=schema, max_tokens=60).text)["a"] in (1, 2)
        reply = engine.chat(MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=90)
        call = reply.tool_calls[0]
        assert call["function"]["name"] == "add" and 0 <= json.loads(call["function"]["arguments"])["a"] <= 99
        assert reply.message["content"] is None and reply.message["tool_calls"][0]["id"] == call["id"]
        again = engine.chat([*MESSAGES, reply.message, {"role": "tool", "content": "4", "tool_call_id": call["id"]}],
                            tools=[TOOL], max_tokens=4)
        assert again.ids
        streamed = list(engine.chat_stream(MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
                                           max_tokens=90))
        assert [call["function"]["name"] for event in streamed for call in event.tool_calls] == ["add"]


@pytest.mark.parametrize("messages, options, words", [
    ([], {}, "at least one message"), ([{"role": 3}], {}, "has no role"), ("The", {}, "want a list"),
    (MESSAGES, {"tools": [TOOL], "tool_choice": "may"}, "tool_choice is"),
    (MESSAGES, {"chat_template_kwargs": {"nope": 1}}, "chat_template_kwargs.nope"),
    (MESSAGES, {"parse_special": True}, "unknown option 'parse_special'"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "images and audio"),
])
def test_chats_that_cannot_be(engine, messages, options, words):
    with pytest.raises(octet.InvalidArgument, match=words):
        engine.chat(messages, **options)
