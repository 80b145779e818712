"""octet.train, Run, plan and evaluate: reports with plain attributes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import _octet

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Config = str | os.PathLike[str] | Mapping[str, Any] | None


class Record(SimpleNamespace):
    """A report: plain attributes, `to_dict()`, and a table in notebooks."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def _repr_html_(self) -> str:
        from html import escape
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in vars(self).items())
        return f"<table>{''.join(rows)}</table>"


class Run(_octet.Run):
    """A training run: iterate its steps, each a Record (step, loss, grad_norm, finite, targets, ...).

    A step is made when it is asked for. Leaving a `with` block, `finish()` or Ctrl-C ends the run with a checkpoint of
    the last whole step, from which the next run of the same `out` goes on.
    """

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Record:
        return Record(**self.next())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.started:
            super().finish()

    def finish(self) -> Record:  # pyright: ignore
        """Ends the run behind the step under way; its result: step, loss, best, checkpoint, interrupted, ..."""
        return Record(**super().finish())

    @property
    def result(self) -> Record | None:  # pyright: ignore
        """Of a run that has ended."""
        values = super().result
        return None if values is None else Record(**values)


def train(config: Config = None, *, callbacks: Iterable[Callable[[Record], object]] = (), **settings: Any) -> Record:
    """Runs, or goes on with, what a YAML file or a dict of settings describes, as `octet train` does.

    Settings are those of `octet config`; as keyword arguments "__" stands for the dot: train__steps=100. Callbacks hear
    of every step, in this thread. Ctrl-C ends the run with a checkpoint and raises KeyboardInterrupt. rows=ITERABLE
    trains on its arrays instead of files: ids, (ids, targets) or (ids, targets, weights).
    """
    listeners = tuple(callbacks)
    with Run(config, **settings) as run:
        for step in run:
            for listener in listeners:
                listener(step)
    return run.finish()


def plan(config: Config = None, target: str = "cpu", **settings: Any) -> Record:
    """Memory and FLOPs of a training run, without running it, as `octet plan --json` tells them."""
    return Record(**_octet.plan(config, target, **settings))


def tune_train(config: Config = None, *, gpus: int, target: str = "h200", rows: int = 10, margin: float = 0.05,
               nodes_of: int | None = None, **settings: Any) -> Record:
    """The fastest layouts of a training run on so many devices, found on paper, as `octet tune train --json` tells them.

    `best` has them, the fastest first: `best[0]["settings"]` are settings for train(). What the settings give stays as it
    is. margin: share of the memory that is left free; nodes_of: devices of a machine.
    """
    return Record(**_octet.tune_train(config, gpus=gpus, target=target, rows=rows, margin=margin, nodes_of=nodes_of, **settings))


def evaluate(model: str | os.PathLike[str], texts: Sequence[str | os.PathLike[str]] | str | None = None,
             **options: Any) -> Record:
    return Record(**_octet.evaluate(model, texts, **options))


evaluate.__doc__ = _octet.evaluate.__doc__


def quantize(model: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> Record:
    return Record(**_octet.quantize(model, out, **options))


quantize.__doc__ = _octet.quantize.__doc__
