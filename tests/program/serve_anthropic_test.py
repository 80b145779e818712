"""`octet serve` as Anthropic's own client sees it: whole, streamed and parsed messages, tools, thinking, counts, errors.
Usage: serve_anthropic_test.py OCTET. Exit status 77: the package or the model is absent."""

import asyncio
import sys
import tempfile
from typing import Literal

from served import Served, new_key, skip, tiny_chat

try:
    import anthropic
    import pydantic
except ImportError as error:
    skip(error)

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"name": "get_weather", "description": "The weather of a place",
          "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}]
THOUGHT_AND_CALL = (r'<think>[a-f]{20}</think>ok [a-f]{20}'
                    r'<tool_call>\n\{"name": "get_weather", "arguments": \{"place": "[a-z]{5}"\}\}\n</tool_call>')


class City(pydantic.BaseModel):
    name: Literal["Oslo", "Rome"]
    large: bool


def saying(regex):
    """What makes the text of random weights sensible, and the same each time."""
    return {"seed": 5, "structured_outputs": {"regex": regex}}


def shown(message):
    """A message without what differs from one to the next: ids, and what the cache held."""
    dumped = message.model_dump(exclude={"id", "usage"}, exclude_none=True)
    for block in dumped["content"]:
        block.pop("id", None)
    return dumped


def whole_and_streamed(client):
    asked = {"model": "tiny", "max_tokens": 200, "messages": HI, "tools": TOOLS, "extra_body": saying(THOUGHT_AND_CALL)}
    message = client.messages.create(**asked)
    thought, text, call = message.content
    assert message._request_id and message.stop_reason == "tool_use", message
    assert (thought.type, text.type, call.type) == ("thinking", "text", "tool_use"), message
    assert len(thought.thinking) == 20 and thought.signature and text.text.startswith("ok "), message
    assert call.id.startswith("toolu_") and call.name == "get_weather" and len(call.input["place"]) == 5, message
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
        assert stream.request_id, "a stream without its id"
    assert shown(last) == shown(message), (last, message)
    assert {"text", "thinking", "signature", "input_json", "message_stop"} <= set(kinds), kinds
    total = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (message, last)]
    count = client.messages.count_tokens(model="tiny", messages=HI, tools=TOOLS)
    assert total == [count.input_tokens] * 2 and last.usage.output_tokens == message.usage.output_tokens, (total, count)

    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**asked, "messages": turns, "extra_body": saying(r"It is sunny\.")})
    assert after.content[0].text == "It is sunny." and after.stop_reason == "end_turn", after
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > count.input_tokens, after
    beta = client.beta.messages.create(**{**asked, "betas": ["x-2026-01-01"]})
    assert [block.type for block in beta.content] == ["thinking", "text", "tool_use"], beta


def stops_and_formats(client):
    asked = {"model": "tiny", "max_tokens": 50, "messages": HI}
    stopped = client.messages.create(**asked, stop_sequences=["--"], extra_body=saying("ab--cd"))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "--", "ab"), stopped
    cut = client.messages.create(**{**asked, "max_tokens": 2})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens <= 2, cut
    call = {**asked, "max_tokens": 600, "tools": TOOLS, "extra_body": saying(THOUGHT_AND_CALL.replace("{5}", "{1900}"))}
    with client.messages.stream(**call) as stream:
        for last in (stream.get_final_message(), client.messages.create(**call)):  # whose call is cut short
            assert last.stop_reason == "max_tokens" and last.content[-1].input == {}, last
    parsed = client.messages.parse(**{**asked, "max_tokens": 1000}, output_format=City,
                                   extra_body={"seed": 1})
    assert isinstance(parsed.parsed_output, City), parsed
    thinks = [client.messages.count_tokens(model="tiny", messages=HI, system=[{"type": "text", "text": "Be kind."}],
                                           thinking=thinking).input_tokens
              for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"})]
    assert thinks[0] < thinks[1], f"the template writes an empty thought where thinking is off: {thinks}"


async def asynchronously(port, key):
    async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0) as client:
        async with client.messages.stream(model="tiny", max_tokens=50, messages=HI, extra_body=saying("[a-f]{20}")) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            assert len(text) == 20 and text == await stream.get_final_text(), text


def refused(kind, error_type, ask, **asked):
    """`ask` raises this error of the client's, whose body is in Anthropic's form."""
    try:
        ask(**{"model": "tiny", "max_tokens": 5, "messages": HI, **asked})
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == error_type, error.body
        assert error.request_id and error.body["request_id"] == error.request_id, error.body
        return error.body["error"]["message"]
    raise AssertionError(f"{asked} is served")


def errors(client, port):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    create = client.messages.create
    assert "image" in refused(anthropic.BadRequestError, "invalid_request_error", create,
                              messages=[{"role": "user", "content": [image]}])
    assert "web_search" in refused(anthropic.BadRequestError, "invalid_request_error", create,
                                   tools=[{"type": "web_search_20250305", "name": "web_search"}])
    refused(anthropic.BadRequestError, "invalid_request_error", create, messages=[])
    refused(anthropic.NotFoundError, "not_found_error", create, model="other")
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="wrong", max_retries=0) as stranger:
        refused(anthropic.AuthenticationError, "authentication_error", stranger.messages.create)


async def end_inside_of_streams(port, key, server):
    """The server's end is an error event of each stream that runs, which the client raises."""
    told = []

    async def read(client):
        begun = False
        try:
            async with client.messages.stream(model="tiny", max_tokens=1900, messages=HI,
                                              extra_body=saying("[a-z]{1900}")) as stream:
                async for _ in stream.text_stream:
                    begun = True
                    if not told:
                        told.append(server.terminate())
        except anthropic.APIStatusError as error:
            assert error.body["error"]["type"] == "overloaded_error" and error.body["request_id"], error.body
            return begun
        return False

    async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0) as client:
        assert any(await asyncio.gather(*[read(client) for _ in range(40)])), "no stream was ended by an error"


def main():
    octet = sys.argv[1]
    with tempfile.NamedTemporaryFile("w") as keys:
        key, line = new_key(octet, "a")
        keys.write(line)
        keys.flush()
        with Served(octet, tiny_chat(), "--served-model-name", "tiny", "--api-keys", keys.name, "--drain-delay", "0",
                    "--drain-timeout", "0") as server:
            with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
                whole_and_streamed(client)
                stops_and_formats(client)
                asyncio.run(asynchronously(server.port, key))
                errors(client, server.port)
            asyncio.run(end_inside_of_streams(server.port, key, server.process))
            assert server.process.wait(timeout=60) == 0, server.log()


main()
