"""Octet: run, train and judge transformers. See docs/python.md.

    with octet.Engine("path/to/model") as engine:
        print(engine.generate("Once upon a time", max_tokens=64).text)
"""

import os as _os

# Idle threads of OpenMP sleep after tens of microseconds: libgomp reads this once, when it is loaded.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import atexit as _atexit
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _octet
from ._octet import (Builder, Compiled, Event, Generation, Graph, Program, Results, Server, Stream, Tokenizer,
                     Value, compile, pass_names, serve, set_log_level, set_threads, version_text)
from .engine import AsyncStream, Engine
from .errors import Error, InvalidArgument, IoError, NotFound, OutOfMemory, Unsupported
from .runs import Record, Run, evaluate, plan, quantize, train, tune_train

if _TYPE_CHECKING:
    from .llm import LLM, LoRARequest, SamplingParams, StructuredOutputsParams

_atexit.register(_octet._end)  # pyright: ignore
__version__ = version_text().split()[1]

__all__ = [
    "LLM", "AsyncStream", "Builder", "Compiled", "Engine", "Error", "Event", "Generation", "Graph",
    "InvalidArgument", "IoError", "LoRARequest", "NotFound", "OutOfMemory", "Program", "Record", "Results",
    "Run", "SamplingParams", "Server", "Stream", "StructuredOutputsParams", "Tokenizer", "Unsupported",
    "Value", "compile", "evaluate", "pass_names", "plan", "quantize", "serve", "set_log_level", "set_threads", "train",
    "tune_train", "version_text",
]


def __getattr__(name: str) -> object:
    """vLLM's names, loaded when they are asked for."""
    if name in ("LLM", "LoRARequest", "SamplingParams", "StructuredOutputsParams"):
        from . import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'octet' has no attribute '{name}'")
