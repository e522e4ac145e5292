"""Guard: who may touch rows that are not released yet, and when."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedpca._util.locks import process


class Guard:
    """One thread at a time, in the one process that has the key; batches and releases whole or never.

    Two processes or threads with one key would add the same noise to different rows, and the difference of
    the results would reveal the rows.
    """

    def __init__(self) -> None:
        self._failure = ""  # of an earlier batch or release
        self._process = process()
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other thread, and no fork."""
        if self._process != process():
            raise RuntimeError(
                "this process is a fork; call release() in the process that ingested the rows."
            )
        with self._lock:
            yield

    @contextmanager
    def whole(self, step: str) -> Iterator[None]:
        """A step interrupted half-way ends the stream: taken again, rows would count twice, or noise would.

        The stream counts as broken from the start of the step until it ends well, so that no exception, at
        whatever line, comes too early or too late.
        """
        around, self._failure = self._failure, f"{step} was interrupted"
        yield
        self._failure = around

    def check_intact(self, during: str = "") -> None:
        """Refuse to go on after a step that was interrupted.

        Args:
            during: the step that this is a part of, checked when it began.
        """
        if self._failure and self._failure != f"{during} was interrupted":
            raise RuntimeError(
                f"{self._failure}: some of its rows or its noise may have been used already; fit anew, so "
                "that none is used twice."
            )
