"""Progress bars for long work, shown where they are enabled."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from fedpca._util.extras import require

if TYPE_CHECKING:
    from rich.progress import Progress, Task

T = TypeVar("T")


class Bar:
    """How far a piece of work has come; shown if `bars` are, as their number `task`."""

    def __init__(self, bars: "Progress | None" = None, task: Any = None) -> None:
        self._bars, self._task = bars, task

    def advance(self, steps: float = 1) -> None:
        """Advance the bar; thread-safe."""
        if self._bars is not None:
            self._bars.advance(self._task, steps)


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

    class Done(rich.ProgressColumn):  # type: ignore[misc, name-defined]
        """How much is done and how fast, with its unit; rich's own columns know bytes and bare numbers."""

        def render(self, task: "Task") -> Any:
            return rich.Text(_done(task))

    left = rich.TimeRemainingColumn(elapsed_when_finished=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), Done(), left)
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
        unit: of a step.
    """
    bars = _enabled.get()
    if bars is None:
        yield Bar()
        return
    task = bars.add_task(what, total=total, unit=unit)
    try:
        yield Bar(bars, task)
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


def _done(task: "Task") -> str:
    total = "" if task.total is None else f" of {_amount(task.total)}"
    rate = f", {_amount(task.speed)}/s" if task.speed else ""
    return f"{_amount(task.completed)}{total} {task.fields['unit']}{rate}"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
