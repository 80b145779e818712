"""A chat whose answer fits a JSON schema, and one in which a function is called.  chat.py MODEL [TOOL_CALLS_FORMAT]"""

import json
import sys
from typing import Any

import octet

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
                          "additionalProperties": False}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def main() -> None:
    with octet.Engine(sys.argv[1], tool_calls=sys.argv[2] if len(sys.argv) > 2 else "") as engine:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Where is it warmer?"}]
        print(json.loads(engine.chat(messages, schema=SCHEMA, max_tokens=64).text)["city"])
        reply = engine.chat(messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=96)
        messages.append(reply.message)
        for call in reply.tool_calls:
            print(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"})
        for event in engine.chat_stream(messages, tools=[TOOL], max_tokens=32):
            print(event.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
