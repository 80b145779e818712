"""asyncio: streams side by side, ended by break, cancellation, timeout, and a loop that closes."""

import asyncio

import pytest
from test_engine import wait_idle

import octet

LONG = {"max_tokens": 100, "ignore_eos": True}


def test_many_streams(engine):
    expected = engine.generate("The cat", max_tokens=12, temperature=0).text

    async def one():
        return "".join([event.text async for event in engine.astream("The cat", max_tokens=12, temperature=0)])

    async def all_of_them():
        texts = await asyncio.gather(*[one() for _ in range(64)])
        whole = await asyncio.gather(*[engine.agenerate("The cat", max_tokens=12, temperature=0) for _ in range(8)])
        return texts + [text.text for text in whole]

    assert asyncio.run(all_of_them()) == [expected] * 72
    assert asyncio.run(all_of_them()) == [expected] * 72  # in another loop


def test_a_break_ends_the_request(engine):
    async def first():
        async for event in engine.astream("The cat", **LONG):
            return event

    before = engine.stats()["cancelled"]
    assert asyncio.run(first()).ids
    wait_idle(engine)
    assert engine.stats()["cancelled"] == before + 1


def test_cancellation_and_timeouts_end_requests(engine):
    async def main():
        task = asyncio.create_task(engine.agenerate("The cat " * 3, **LONG))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                while True:
                    await engine.agenerate("The", **LONG)
        async with engine.astream("The", **LONG) as stream:
            await stream.__anext__()

    asyncio.run(main())
    wait_idle(engine)


def test_a_loop_closes_under_streams(engine):
    kept = []

    async def main():
        kept.append(engine.astream("The cat", **LONG))
        await kept[0].__anext__()

    asyncio.run(main())
    kept.clear()
    wait_idle(engine)


def test_errors(engine):
    async def main():
        with pytest.raises(octet.InvalidArgument, match="nearest: max_tokens"):
            await engine.agenerate("The", max_token=1)
        with pytest.raises(octet.InvalidArgument, match="mask"):
            await engine.agenerate("The", mask=lambda *_: 1 // 0)

    asyncio.run(main())
    with pytest.raises(RuntimeError, match="no running event loop"):
        engine.astream("The")
