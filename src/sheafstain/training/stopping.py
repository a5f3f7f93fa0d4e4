"""Wishes to stop: SIGTERM from a scheduler, Ctrl-C from a person; heard at once, granted between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REQUEUE = 75  # exit code after SIGTERM: all is saved, start the same command again (EX_TEMPFAIL)


class Wish:
    """The signal that was received, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:  # a second Ctrl-C does not wait
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def listening() -> Iterator[Wish]:
    """Within the block the two signals only make a wish; in a thread that is not the main one nothing is heard."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, wish.hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
