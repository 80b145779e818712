#!/usr/bin/env python3
"""Streams at once over HTTP: whole replies, time, and the growth of the server's memory a stream.

    octet serve MODEL --device cpu --threads 1 --max-sequences 2048 &
    benchmarks/http_streams.py --streams 2000 --port 8000 --server $!
"""
import argparse
import asyncio
import json
import pathlib
import resource
import time

MODEL_TEXT = {"prompt": "Hello there", "max_tokens": 100, "ignore_eos": True, "stream": True}


def resident_kib(process):
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


async def stream(port, request):
    """Whether the reply came whole. A full listen queue is tried again."""
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
    return b"[DONE]" in end


async def run(options):
    body = json.dumps(MODEL_TEXT).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    before = most = resident_kib(options.server)
    started = time.monotonic()
    tasks = [asyncio.create_task(stream(options.port, request)) for _ in range(options.streams)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.1)
        most = max(most, resident_kib(options.server))
    seconds = time.monotonic() - started
    whole = sum(task.result() for task in tasks)
    each = (most - before) / options.streams
    print(f"{options.streams} streams: {whole} whole, {seconds:.1f} s, {each:.1f} KiB each")


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
