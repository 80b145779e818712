#!/usr/bin/env python3
"""A server beyond its capacity: how soon refusals come, what those that are admitted wait, and /livez beside heavy requests.

    octet serve MODEL --device cpu --threads 1 --max-sequences 16 --max-waiting 16 &
    benchmarks/serve_overload.py --port 8000 --seconds 20 --streams 32

Capacity is what --streams kept requests get through: as many as the server runs, and some that wait, so that it never lacks
work. Then requests come at 1, 1.2 and 10 times that rate, as a Poisson process; each is answered by 200, 429 or 503. The row of /livez: 64 prompts
of 100,000 tokens and 64 schemas at once, /livez asked every 5 ms.
"""
import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import time

TEXT = {"prompt": "Hello there", "max_tokens": 256, "ignore_eos": True, "stream": True}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SCHEMA = {"type": "object", "properties": {f"{a}{b}": {"type": "string", "pattern": "^[a-z]{1,40}$"} for a in LETTERS for b in "abcdef"}}


async def ask(port, method, path, body=b""):
    """Status (0: no answer, or a stream that was cut off), seconds to the first byte of the body, and to its end."""
    begin = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                     + body)
        head = await reader.readuntil(b"\r\n\r\n")
        end = await reader.read(1)
        first = time.monotonic() - begin
        while piece := await reader.read(65536):
            end = (end + piece)[-64:]
        writer.close()
        whole = b"event-stream" not in head or b"[DONE]" in end
        return int(head[9:12]) if whole else 0, first, time.monotonic() - begin
    except (OSError, asyncio.IncompleteReadError):
        return 0, 0, time.monotonic() - begin


def quantiles(values):
    values = sorted(values)
    if not values:
        return "none"
    at = [values[min(int(q * len(values)), len(values) - 1)] * 1e3 for q in (0.5, 0.99, 1)]
    return "p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms".format(*at)


async def capacity(port, body, streams, seconds):
    """Requests a second, of so many streams and behind a fifth of the time, in which they begin."""
    begin = time.monotonic()
    until, done = begin + 1.2 * seconds, 0

    async def go_on():
        nonlocal done
        while time.monotonic() < until:
            status, _, _ = await ask(port, "POST", "/v1/completions", body)
            done += status == 200 and begin + 0.2 * seconds < time.monotonic() < until
    await asyncio.gather(*(go_on() for _ in range(streams)))
    return done / seconds


async def offer(port, body, rate, seconds):
    """Tasks of requests that came at this rate, as a Poisson process; some may still run."""
    tasks, arrivals, due = [], random.Random(1), time.monotonic()
    until = due + seconds
    while due < until:
        tasks.append(asyncio.create_task(ask(port, "POST", "/v1/completions", body)))
        due += arrivals.expovariate(rate)
        await asyncio.sleep(max(due - time.monotonic(), 0))
    return tasks


def show(answers):
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
    rate = await capacity(options.port, body, options.streams, options.seconds)
    print(f"capacity: {rate:.1f} requests/s")
    for factor in (1, 1.2, 10):
        print(f"{factor} times:")
        show(await asyncio.gather(*await offer(options.port, body, factor * rate, options.seconds)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=20, help="of each part")
    parser.add_argument("--streams", type=int, default=32, help="of the closed loop that measures the capacity")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
