#!/usr/bin/env python3
"""A server beyond its capacity: how soon refusals come, what those that are admitted wait, and /livez beside heavy requests.

    octet serve MODEL --device cpu --threads 1 --max-sequences 16 --max-waiting 16 &
    benchmarks/serve_overload.py --port 8000 --seconds 20

Capacity is what --concurrency kept requests get through. Then requests come at 1, 1.2 and 10 times that rate; each is answered
by 200, 429 or 503. The row of /livez: 64 prompts of 100,000 tokens and 64 schemas at once, /livez asked every 5 ms.
"""
import argparse
import asyncio
import json
import multiprocessing
import resource
import time

TEXT = {"prompt": "Hello there", "max_tokens": 256, "ignore_eos": True, "stream": True}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SCHEMA = {"type": "object", "properties": {f"{a}{b}": {"type": "string", "pattern": "^[a-z]{1,40}$"} for a in LETTERS for b in "abcdef"}}


async def ask(port, method, path, body=b""):
    """Status (0: no answer), seconds to the first byte of the body, and to its end."""
    begin = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                     + body)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.read(1)
        first = time.monotonic() - begin
        while await reader.read(65536):
            pass
        writer.close()
        return int(head[9:12]), first, time.monotonic() - begin
    except (OSError, asyncio.IncompleteReadError):
        return 0, 0, time.monotonic() - begin


def quantiles(values):
    values = sorted(values)
    if not values:
        return "none"
    at = [values[min(int(q * len(values)), len(values) - 1)] * 1e3 for q in (0.5, 0.99, 1)]
    return "p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms".format(*at)


async def capacity(options, body):
    """Requests a second."""
    until, done = time.monotonic() + options.seconds, 0

    async def go_on():
        nonlocal done
        while time.monotonic() < until:
            status, _, _ = await ask(options.port, "POST", "/v1/completions", body)
            done += status == 200
    await asyncio.gather(*(go_on() for _ in range(options.concurrency)))
    return done / options.seconds


async def offered(options, body, rate):
    tasks, begin = [], time.monotonic()
    while time.monotonic() - begin < options.seconds:
        tasks.append(asyncio.create_task(ask(options.port, "POST", "/v1/completions", body)))
        await asyncio.sleep(max(begin + len(tasks) / rate - time.monotonic(), 0))
    answers = await asyncio.gather(*tasks)
    statuses = {status: sum(answer[0] == status for answer in answers) for status in sorted({answer[0] for answer in answers})}
    print(f"  {len(answers)} requests: {statuses}")
    print("  time to first token:", quantiles([answer[1] for answer in answers if answer[0] == 200]))
    print("  refusals:", quantiles([answer[2] for answer in answers if answer[0] in (429, 503)]))


async def ask_heavy(port):
    long = json.dumps({**TEXT, "prompt": [5] * 100_000}).encode(), json.dumps({**TEXT, "prompt": "word " * 100_000}).encode()
    schema = json.dumps({"prompt": "Hi", "max_tokens": 32, "structured_outputs": {"json": SCHEMA}}).encode()
    await asyncio.gather(*(ask(port, "POST", "/v1/completions", body) for _ in range(32) for body in (*long, schema, schema)))


async def livez(options):
    heavy = multiprocessing.Process(target=lambda: asyncio.run(ask_heavy(options.port)))
    heavy.start()
    seconds = []
    while heavy.is_alive():
        status, _, whole = await ask(options.port, "GET", "/livez")
        seconds.append(whole if status == 200 else 1e9)
        await asyncio.sleep(0.005)
    print(f"/livez beside 64 prompts and 64 schemas, {len(seconds)} times:", quantiles(seconds))


async def run(options):
    body = json.dumps(TEXT).encode()
    await livez(options)
    rate = await capacity(options, body)
    print(f"capacity: {rate:.1f} requests/s")
    for factor in (1, 1.2, 10):
        print(f"{factor} times:")
        await offered(options, body, factor * rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=20, help="of each part")
    parser.add_argument("--concurrency", type=int, default=16)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
