"""Texts behind prompts, a stream, and embeddings of a loop's tasks.  generate.py MODEL"""

import asyncio
import sys

import octet


async def side_by_side(engine: octet.Engine, prompts: list[str]) -> list[str]:
    """Requests of asyncio join the running batch; a task that is cancelled ends its request."""
    async with asyncio.timeout(600):
        texts = await asyncio.gather(*(engine.agenerate(prompt, max_tokens=16) for prompt in prompts))
    return [text.text for text in texts]


def main() -> None:
    with octet.Engine(sys.argv[1]) as engine:
        text = engine.generate("The cat", max_tokens=32, temperature=0.8, top_p=0.95, seed=1)
        print(text.text, text.finish_reason, text.times["generated_tokens"])
        for text in engine.generate(["One", "Two", "Three"], max_tokens=16):
            print(text.prompt, "->", text.text)
        for event in engine.stream("The cat", max_tokens=32):
            print(event.text, end="", flush=True)
        print(*asyncio.run(side_by_side(engine, ["Four", "Five"])), sep="\n")
        print(engine.stats()["generated_tokens"], "tokens")


if __name__ == "__main__":
    main()
