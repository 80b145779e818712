#!/usr/bin/env python3
"""Times the Python package: its import, first tokens, and texts against the program's.

    benchmarks/python.py MODEL --octet PROGRAM [--prompts 1000] [--tokens 16] [--streams 512]
"""

import argparse
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import octet


def seconds(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def python(source, *words):
    return seconds(lambda: subprocess.run([sys.executable, "-c", source, *map(str, words)], check=True))[0]


def calls(count, call):
    """Microseconds of a builder's call, at best."""
    def fill():
        builder = octet.Builder(octet.Graph())
        x = builder.input("x", ("f32", (8, 16)))
        return seconds(lambda: [call(builder, x, i) for i in range(count)])[0]

    return 1e6 * min(fill() for _ in range(30)) / count


async def streams(engine, prompts, tokens):
    async def one(prompt):
        return sum([len(event.ids) async for event in engine.astream(prompt, max_tokens=tokens, ignore_eos=True)])

    return sum(await asyncio.gather(*map(one, prompts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--octet", required=True)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    a = parser.parse_args()
    bare = min(python("pass") for _ in range(20))
    print(f"import octet: {1000 * (min(python('import octet') for _ in range(20)) - bare):.0f} ms, best of 20")
    print(f"builder: scale {calls(1000, lambda b, x, i: b.scale(x, 2)):.1f} us, linear with its parameters "
          f"{calls(300, lambda b, x, i: b.linear(x, f'w{i}', 16, bias=True)):.1f} us, best of 30")
    first = ("import octet, sys\nwith octet.Engine(sys.argv[1], device='cpu') as engine:\n"
             "    next(engine.stream('The', max_tokens=1))")
    print(f"python, import, engine, first token, end: {1000 * min(python(first, a.model) for _ in range(10)):.0f} ms, best of 10")
    prompts = [f"The {i}" for i in range(a.prompts)]
    with tempfile.TemporaryDirectory() as folder, octet.Engine(a.model, device="cpu", recipe="fp32") as engine:
        file = pathlib.Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        command = [a.octet, "generate", a.model, "--device", "cpu", "--recipe", "fp32", "--ignore-eos", "--json",
                   "--max-sequences", "256", "-n", str(a.tokens)]
        best = {}
        for _ in range(a.repeats):  # in turn; of the program its start is taken off, which has one prompt
            run = [seconds(lambda: subprocess.run([*command, *own], check=True, stdout=subprocess.DEVNULL))[0]
                   for own in (("-p", "The"), ("--prompts-file", str(file)))]
            took = {"octet generate": run[1] - run[0],
                    "generate": seconds(lambda: engine.generate(prompts, max_tokens=a.tokens, ignore_eos=True))[0],
                    "generate, 512": seconds(
                        lambda: engine.generate(prompts[:a.streams], max_tokens=a.tokens, ignore_eos=True))[0],
                    "asyncio, 512": seconds(lambda: asyncio.run(streams(engine, prompts[:a.streams], a.tokens)))[0]}
            best = {name: min(value, best.get(name, value)) for name, value in took.items()}
        for name, value in best.items():
            count = a.streams if "512" in name else a.prompts
            print(f"{name}: {count * a.tokens / value:.0f} tok/s")


if __name__ == "__main__":
    main()
