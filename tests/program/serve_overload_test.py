"""`octet serve` refuses nothing while it has room: none of 24 chats at once behind three quiet ones, none in three minutes
at 90 % of what it gets through. At 120 %, for ten minutes, each request is answered, little more than what is too much by a
refusal, memory stays flat, and nothing is left. OCTET_SOAK_MINUTES: other minutes, at least 2.
Usage: serve_overload_test.py OCTET TEXT"""

import asyncio
import collections
import json
import os
import pathlib
import sys

from rank_runs import PATIENCE, wait_until
from served import Served, ask, tiny_chat

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import serve_overload  # noqa: E402

SEQUENCES, WAITING = 16, 16
# Of the resident memory, the KV cache too: all of it is in use within the first minute. A hundred bytes that each of some
# ten thousand requests a minute leaves behind are more; what the allocator keeps of bursts is less.
MOST_GROWTH_KIB = 2048


def resident_kib(process):
    return int(pathlib.Path(f"/proc/{process}/status").read_text().partition("VmRSS:")[2].split()[0])


def texts(server):
    lines = ask(server.url + "/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(("octet_num_requests_running ",
                                                                             "octet_num_requests_waiting ")))


CHAT = json.dumps({"messages": [{"role": "user", "content": "Say something."}]}).encode()


async def room(server):
    """Answers of chats that may go on to the context's end, and of requests at 90 % of the capacity."""
    chat = lambda: serve_overload.ask(server.port, "POST", "/v1/chat/completions", CHAT)  # noqa: E731
    answers = []
    for _ in range(3):
        answers.append(await chat())
        await asyncio.sleep(2)
    answers += await asyncio.gather(*(chat() for _ in range(24)))
    body = json.dumps(serve_overload.TEXT).encode()
    rate = await serve_overload.capacity(server.port, body, 2 * SEQUENCES, seconds=10)
    tasks = await serve_overload.offer(server.port, body, 0.9 * rate, seconds=180)
    return answers + await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)


async def overload(server, minutes):
    """Answers of all requests, and the most resident KiB of each minute."""
    body = json.dumps(serve_overload.TEXT).encode()
    rate = await serve_overload.capacity(server.port, body, SEQUENCES + WAITING, seconds=10)
    print(f"{rate:.1f} requests/s")
    tasks, resident, done = [], [], 0
    for _ in range(minutes):
        most = 0
        for _ in range(12):
            tasks += await serve_overload.offer(server.port, body, 1.2 * rate, seconds=5)
            most = max(most, resident_kib(server.process.pid))
        resident.append(most)
        whole = sum(task.done() and task.result()[0] == 200 for task in tasks)
        rate, done = max(rate, (whole - done) / 60), whole  # other programs of this machine may have slowed it down before
    return await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE), resident


def main():
    minutes = max(int(os.environ.get("OCTET_SOAK_MINUTES", 10)), 2)
    with Served(sys.argv[1], tiny_chat(), "--max-sequences", str(SEQUENCES)) as server:
        statuses = collections.Counter(answer[0] for answer in asyncio.run(room(server)))
        assert set(statuses) == {200}, f"a server with room refuses: {dict(statuses)}"
    options = ["--max-sequences", str(SEQUENCES), "--max-waiting", str(WAITING)]
    with Served(sys.argv[1], tiny_chat(), *options) as server:
        answers, resident = asyncio.run(overload(server, minutes))
        statuses = collections.Counter(answer[0] for answer in answers)
        print(f"{dict(statuses)}; resident KiB by minutes: {resident}")
        assert set(statuses) == {200, 503}, "each is answered, and more came than the server could take"
        share = statuses[503] / len(answers)
        assert share <= 0.22, f"{share:.0%} are refused where a sixth is too much"
        assert max(resident[1:]) - resident[0] <= MOST_GROWTH_KIB, f"more than {MOST_GROWTH_KIB} KiB came behind the first minute"
        wait_until(lambda: texts(server) == 0, "no text runs or waits")
        assert ask(server.url + "/livez")[0] == 200


main()
