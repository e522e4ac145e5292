"""Progress bars for long work, shown where they are enabled."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeVar

from fedpca._util.extras import require

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")


class Bar(Protocol):
    """How far a piece of work has come."""

    def advance(self, steps: float = 1) -> None:
        """Advance the bar; thread-safe."""


_enabled: "ContextVar[Progress | None]" = ContextVar("fedpca.progress", default=None)


@contextmanager
def enabled() -> Iterator[None]:
    """Show a bar on stderr, with rate and time left, for each piece of long work done inside.

    Needs the extra "progress".

    >>> import numpy as np, fedpca
    >>> rows = np.random.default_rng(0).normal(size=(1000, 20))
    >>> with enabled():
    ...     pca = fedpca.FederatedPCA(2).fit(rows, groups=np.arange(1000) % 10)
    """
    console = require("rich.console", extra="progress", purpose="a progress bar")
    rich = require("rich.progress", extra="progress", purpose="a progress bar")
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[done]}"),
        rich.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with rich.Progress(*columns, console=console.Console(stderr=True)) as bars:
        token = _enabled.set(bars)
        try:
            yield
        finally:
            _enabled.reset(token)


@contextmanager
def bar(what: str, total: float | None = None, unit: str = "") -> Iterator[Bar]:
    """A bar for one piece of work, shown inside `enabled`.

    Args:
        what: a label.
        total: number of steps, if it is known.
        unit: of a step; "B" counts bytes.
    """
    bars = _enabled.get()
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
    with bar(what, total, unit) as progress:
        for step in steps:
            yield step
            progress.advance()


class _Silent:
    def advance(self, steps: float = 1) -> None:
        pass


class _Rich:
    def __init__(self, bars: "Progress", task: "TaskID", unit: str) -> None:
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
