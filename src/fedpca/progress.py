"""Progress bars for long work, shown where they are enabled."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Bar(Protocol):
    """How far a piece of work has come."""

    def advance(self, steps: float = 1) -> None:
        """So much more is done. Any thread may say so."""


_shown: ContextVar[Any] = ContextVar("fedpca.progress", default=None)


@contextmanager
def enabled() -> Iterator[None]:
    """Show a bar, on stderr, for each piece of long work done inside: rate and time left included.

    Needs the extra "progress".

    >>> import numpy as np, fedpca
    >>> rows = np.random.default_rng(0).normal(size=(1000, 20))
    >>> with enabled():
    ...     pca = fedpca.FederatedPCA(2).fit(rows, groups=np.arange(1000) % 10)
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise ImportError("progress bars need rich: pip install 'fedpca[progress]'.") from error
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        token = _shown.set(bars)
        try:
            yield
        finally:
            _shown.reset(token)


@contextmanager
def bar(what: str, total: float | None = None, unit: str = "") -> Iterator[Bar]:
    """A bar for one piece of work, which shows if somebody has asked for it.

    Args:
        what: the work, in a word or two.
        total: steps until it is done, if that is known.
        unit: of a step; "B" counts bytes.
    """
    bars = _shown.get()
    if bars is None:
        yield _Silent()
        return
    task = bars.add_task(what, total=total, done="")
    try:
        yield _Rich(bars, task, unit)
    finally:
        bars.stop_task(task)


def track(steps: Iterable[T], what: str, unit: str = "", total: float | None = None) -> Iterator[T]:
    """The steps, one by one, with a bar."""
    if total is None:
        total = len(steps) if isinstance(steps, Sized) else None
    with bar(what, total, unit) as moving:
        for step in steps:
            yield step
            moving.advance()


class _Silent:
    def advance(self, steps: float = 1) -> None:
        pass


class _Rich:
    def __init__(self, bars: Any, task: Any, unit: str) -> None:
        self._bars, self._task, self._unit = bars, task, unit

    def advance(self, steps: float = 1) -> None:
        self._bars.advance(self._task, steps)
        task = self._bars.tasks[self._bars.task_ids.index(self._task)]
        done = self._amount(task.completed)
        if task.total is not None:
            done += f" of {self._amount(task.total)}"
        if self._unit != "B":
            done += f" {self._unit}"
        rate = f", {self._amount(task.speed)}/s" if task.speed else ""
        self._bars.update(self._task, done=done + rate)

    def _amount(self, number: float) -> str:
        if self._unit == "B":
            return f"{number / 1e6:,.1f} MB"
        return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
