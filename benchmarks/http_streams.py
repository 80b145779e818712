#!/usr/bin/env python3
"""Streams at once over HTTP: whole replies, time, and the growth of the server's memory a stream.

The memory is the resident set without the KV cache, whose pages are reserved at the start and touched as texts come.

    octet serve MODEL --device cpu --threads 1 --max-sequences 2048 &
    benchmarks/http_streams.py --streams 2000 --port 8000 --server $!
"""
import argparse
import asyncio
import json
import pathlib
import resource
import time
import urllib.request

MODEL_TEXT = {"prompt": "Hello there", "max_tokens": 100, "ignore_eos": True, "stream": True}


def resident_kib(process, kv_bytes):
    """Of the process, but for mappings that hold the KV cache."""
    total = size = 0
    for line in pathlib.Path(f"/proc/{process}/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("Rss:") and size < kv_bytes / 2:
            total += int(line.split()[1])
    return total


def kv_bytes(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info") as reply:
        return json.load(reply)["kv_bytes"]


async def stream(port, request):
    """None for a whole reply, else how it ended. A full listen queue is tried again."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            await asyncio.sleep(0.1)
    writer.write(request)
    end = b""
    while block := await reader.read(65536):
        end = (end + block)[-256:]
    writer.close()
    return None if b"[DONE]" in end else end[-100:].decode(errors="replace")


async def run(options):
    body = json.dumps(MODEL_TEXT).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    cache = kv_bytes(options.port)
    before = most = resident_kib(options.server, cache)
    started = time.monotonic()
    tasks = [asyncio.create_task(stream(options.port, request)) for _ in range(options.streams)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.1)
        most = max(most, resident_kib(options.server, cache))
    seconds = time.monotonic() - started
    broken = [task.result() for task in tasks if task.result() is not None]
    whole = options.streams - len(broken)
    each = (most - before) / options.streams
    print(f"{options.streams} streams: {whole} whole, {seconds:.1f} s, {each:.1f} KiB each", *broken[:1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--server", type=int, required=True, help="its process, for its memory")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
