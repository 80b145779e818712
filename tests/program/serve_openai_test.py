"""`octet serve` as the official Python package `openai` reads it: models, completions, chat completions and responses, whole
and streamed; every object is held against the package's own types. Usage: serve_openai_test.py OCTET. Exit status 77: the
package or the model is absent."""

import sys
from typing import Literal

from served import Served, skip, tiny_chat

try:
    import openai
    from openai.types import Completion, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import BaseModel, TypeAdapter
except ImportError as error:
    skip(error)

NAME = "tiny"
EVENT = TypeAdapter(ResponseStreamEvent)
SAID = r'<think>[a-f]{5}</think>ok [a-f]{2}<tool_call>\{"name": "get", "arguments": \{"x": [1-9]\}\}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}


class Answer(BaseModel):
    """What a guided reply is."""

    right: bool
    color: Literal["red", "green"]


def held(kind, thing):
    """The object, once it is what the package's type says; the package itself reads it unchecked."""
    kind.model_validate(thing.to_dict(), strict=False)
    return thing


def refused(kind, call, field):
    """The call is refused with this error of the package, naming the field."""
    try:
        call()
    except kind as error:
        assert error.param == field, error
    else:
        raise AssertionError(f"not refused: {field}")


def guided(regex):
    return {"structured_outputs": {"regex": regex}}


def check_models(client):
    assert [held(Model, model).id for model in client.models.list()] == [NAME]
    assert held(Model, client.models.retrieve(NAME)).owned_by == "octet"


def check_completions(client):
    asked = {"model": NAME, "prompt": ["Once", "Then"], "max_tokens": 9, "temperature": 0, "logprobs": 2, "n": 2}
    whole = held(Completion, client.completions.create(**asked))
    texts = [""] * 4
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices] and usage.completion_tokens == 36, (texts, whole)
    assert all(len(choice.logprobs.tokens) == 9 for choice in whole.choices)
    refused(openai.BadRequestError, lambda: client.completions.create(**{**asked, "n": 1000}), "n")
    refused(openai.NotFoundError, lambda: client.completions.create(**{**asked, "model": "other"}), "model")


def check_chat(client):
    tool = {"type": "function", "function": {"name": "get", "parameters": PARAMETERS}}
    asked = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "seed": 3, "tools": [tool], "logprobs": True,
             "extra_body": guided(SAID)}
    choice = held(ChatCompletion, client.chat.completions.create(**asked)).choices[0]
    call = choice.message.tool_calls[0].function
    assert choice.finish_reason == "tool_calls" and call.name == "get" and call.arguments.startswith('{"x": '), choice
    for chunk in client.chat.completions.create(**asked, stream=True):
        held(ChatCompletionChunk, chunk)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.content == choice.message.content and len(streamed.message.content) == 5, streamed
    assert streamed.message.tool_calls[0].function.arguments == call.arguments, streamed
    parsed = client.chat.completions.parse(model=NAME, messages=asked["messages"], response_format=Answer)
    assert parsed.choices[0].message.parsed.color in ("red", "green"), parsed


def check_responses(client):
    tool = {"type": "function", "name": "get", "parameters": PARAMETERS, "strict": False}
    asked = {"model": NAME, "input": "Hi", "instructions": "Be brief.", "tools": [tool], "metadata": {"a": "b"},
             "include": ["message.output_text.logprobs"], "top_logprobs": 2, "extra_body": {"seed": 3, **guided(SAID)}}
    whole = held(Response, client.responses.create(**asked))
    thought, message, call = whole.output
    assert whole.status == "completed" and len(whole.output_text) == 5 and len(thought.content[0].text) == 5, whole
    assert call.name == "get" and whole.metadata == {"a": "b"} and message.content[0].logprobs, whole
    numbers = []
    for event in client.responses.create(**asked, stream=True):
        EVENT.validate_python(event.to_dict())
        numbers.append(event.sequence_number)
    assert numbers == list(range(len(numbers))) and event.type == "response.completed", event
    with client.responses.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_response()
    assert {"response.reasoning_text.delta", "response.output_text.delta", "response.function_call_arguments.delta"} <= kinds
    assert streamed.output_text == whole.output_text and streamed.output[2].arguments == call.arguments, streamed

    answer = client.responses.parse(model=NAME, input="Hi", text_format=Answer)
    assert answer.output_parsed.color in ("red", "green"), answer
    with client.responses.stream(model=NAME, input="Hi", text_format=Answer) as stream:
        assert stream.get_final_response().output_parsed.color in ("red", "green")
    cut = held(Response, client.responses.create(model=NAME, input="Hi", max_output_tokens=3, temperature=0))
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut


def check_conversations(client):
    tool = {"type": "function", "name": "get", "parameters": PARAMETERS, "strict": False}
    said = {"model": NAME, "tools": [tool], "extra_body": {"seed": 3, **guided(SAID)}}
    first = client.responses.create(input="Hi", **said)
    output = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "42"}
    after = {"model": NAME, "temperature": 0, "max_output_tokens": 8, "tools": [tool]}
    second = client.responses.create(previous_response_id=first.id, input=[output], **after)
    by_hand = client.responses.create(input=[{"role": "user", "content": "Hi"}, *first.output, output], **after)
    assert second.output_text == by_hand.output_text, (second, by_hand)
    assert second.usage.input_tokens == by_hand.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id), "response_id")
    refused(openai.NotFoundError, lambda: client.responses.create(previous_response_id=first.id, input="So", **after),
            "previous_response_id")
    refused(openai.BadRequestError, lambda: client.responses.create(model=NAME, input="Hi", tools=[{"type": "web_search"}]),
            "tools[0].type")


def main():
    with Served(sys.argv[1], tiny_chat(), "--served-model-name", NAME, "--response-memory", "16") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        for check in (check_models, check_completions, check_chat, check_responses, check_conversations):
            check(client)


main()
