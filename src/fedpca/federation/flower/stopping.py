"""Stopped: what ends a run when Flower stops it, in time for the run to write down how far it came."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal has ended the run."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first signal to stop into `Stopped`, and pass it on to Flower at the end of the block.

    Flower's own handler ends the process after five seconds, whatever it is doing then: without a SuperLink,
    or on a busy machine, that is before a run can write anything. In other threads than the first, which get
    no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
