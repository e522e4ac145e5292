"""Guard: who may touch rows that are not released yet, and when."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Guard:
    """One thread at a time, in the one process that has the key; batches whole or never.

    Two processes or threads with one key would add the same noise to different rows, and the difference of
    the results would reveal the rows.
    """

    def __init__(self) -> None:
        self._failure = ""  # of an earlier batch
        self._process = os.getpid()
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other thread, and no fork."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this process is a fork; call release() in the process that ingested the rows."
            )
        with self._lock:
            yield

    @contextmanager
    def whole_batch(self) -> Iterator[None]:
        """A batch interrupted half-way ends the stream: taken again, its first rows would count twice."""
        try:
            yield
        except BaseException as error:
            self._failure = repr(error)
            raise

    def check_intact(self) -> None:
        """Refuse to go on after a batch that was interrupted."""
        if self._failure:
            raise RuntimeError(
                f"an earlier batch was interrupted ({self._failure}), and some of its rows may count "
                "already: fit anew, so that none counts twice."
            )
