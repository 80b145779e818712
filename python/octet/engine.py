"""octet.Engine: the module's engine with asyncio beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from . import _octet
from ._octet import Event, Generation

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    Prompt = str | Sequence[int] | Mapping[str, Any]


def find_model(path: str | os.PathLike[str], revision: str | None = None) -> str | os.PathLike[str]:
    """The folder of a repository's name in huggingface_hub's cache, where that package is; other paths as they are."""
    name = os.fspath(path)
    if name.count("/") != 1 or name.startswith((".", "/")) or os.path.exists(name):
        return path
    try:
        from huggingface_hub import snapshot_download  # pyright: ignore
        return snapshot_download(name, revision=revision, local_files_only=True)  # pyright: ignore
    except Exception:  # not installed, or not in the cache: the engine's error says how to get it
        return path


class _News:
    """What streams of one event loop wait for."""

    _of: WeakKeyDictionary[asyncio.AbstractEventLoop, _News] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox = _octet.Inbox()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.inbox.fileno(), self.wake)

    def wake(self) -> None:
        for number in self.inbox.take():
            future = self.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _News:
        if loop not in cls._of:
            cls._of[loop] = cls(loop)
        return cls._of[loop]


class AsyncStream:
    """An asynchronous iterator of a request's events. The request ends where the iterator goes, or its task is cancelled."""

    def __init__(self, engine: Engine, prompt: Any, options: dict[str, Any], chat: bool) -> None:
        from asyncio import get_running_loop

        self._loop = get_running_loop()
        self._news = _News.of(self._loop)
        self._stream = engine.open_stream(prompt, options, chat, self._news.inbox)
        self._events: list[Event] = []

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        await self._ready()
        if not self._events:
            raise StopAsyncIteration
        return self._events.pop(0)

    async def _ready(self) -> None:
        number = self._stream.number
        while not self._events and self._stream.running:
            future = self._news.waiting[number] = self._loop.create_future()
            self._events = self._stream.take()
            if self._events or not self._stream.running:
                self._news.waiting.pop(number, None)
                return
            try:
                await future
            except BaseException:
                self.cancel()
                raise

    async def finish(self) -> Generation:
        """Reads to the end; the whole."""
        while self._stream.running:
            self._events = []
            await self._ready()
        return self._stream.result

    def cancel(self) -> None:
        """Ends the request; it is no error when it has ended."""
        self._news.waiting.pop(self._stream.number, None)
        self._stream.cancel()

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class Engine(_octet.Engine):
    __doc__ = _octet.Engine.__doc__

    if not TYPE_CHECKING:  # checkers read the options' names and types of _octet.Engine

        def __init__(self, path, **options):
            super().__init__(find_model(path), **options)

    def astream(self, prompt: Prompt, **options: Any) -> AsyncStream:
        """stream() for asyncio: `async for event in engine.astream(...)`."""
        return AsyncStream(self, prompt, options, False)

    def achat_stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> AsyncStream:
        """chat_stream() for asyncio."""
        return AsyncStream(self, messages, options, True)

    async def agenerate(self, prompt: Prompt, **options: Any) -> Generation:
        """generate() of one prompt for asyncio; a cancelled task ends the request."""
        return await self.astream(prompt, **options).finish()

    async def achat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Generation:
        """chat() of one conversation for asyncio."""
        return await self.achat_stream(messages, **options).finish()

    def prompt_logprobs(self, prompt: Any, top: int = 0, **options: Any) -> Any:
        """generate() of no token: `prompt_logprobs` and, of the `top` likeliest, `prompt_top_logprobs` are set."""
        return self.generate(prompt, max_tokens=0, prompt_logprobs=top, **options)

    def tokenizer(self) -> _octet.Tokenizer:
        """The tokenizer that texts are read with."""
        return _octet.Tokenizer(self.options["tokenizer"] or self.folder)

    def __reduce__(self) -> Any:
        from .errors import Unsupported
        raise Unsupported("an engine cannot be pickled: open one in each process, from its path and options")
