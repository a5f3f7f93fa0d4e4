"""Threads that work at the same time, joined by queues that hold a few things each, and that end together.

When one stage fails, or the caller is interrupted, every queue is closed: whoever waits at one is released, and the
first error is the one that the caller sees.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Thing = TypeVar("Thing")


class Stopped(Exception):  # noqa: N818  nothing went wrong here
    """Another stage failed or was interrupted: there is nothing left to do but to leave."""


class Channel(Generic[Thing]):
    """A queue of at most ``room`` things between two stages; it counts the seconds that either waited for the other."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.put_waited = self.got_waited = 0.0
        self._things: deque[Thing] = deque()
        self._changed = threading.Condition()
        self._ended = self._stopped = False

    def put(self, thing: Thing) -> None:
        with self._changed:
            began = time.perf_counter()
            while len(self._things) >= self._room and not self._stopped:
                self._changed.wait()
            self.put_waited += time.perf_counter() - began
            if self._stopped:
                raise Stopped
            self._things.append(thing)
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing more will be put."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Release whoever waits; what is still held is dropped."""
        with self._changed:
            self._stopped = True
            self._things.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Thing]:
        """What is put, until the end."""
        while True:
            with self._changed:
                began = time.perf_counter()
                while not (self._things or self._ended or self._stopped):
                    self._changed.wait()
                self.got_waited += time.perf_counter() - began
                if self._stopped:
                    raise Stopped
                if not self._things:
                    return
                thing = self._things.popleft()
                self._changed.notify_all()
            yield thing


class Stages:
    """The threads of one translation; a context manager that ends when all of them have."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._channels: list[Channel[Any]] = []
        self._error: BaseException | None = None
        self.seconds: dict[str, float] = {}  # how long each thread lived, waiting included

    def channel(self, room: int) -> Channel[Any]:
        self._channels.append(Channel(room))
        return self._channels[-1]

    def start(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            began = time.perf_counter()
            try:
                work()
            except Stopped:
                pass
            except BaseException as error:
                self._error = self._error or error
                self._stop()
            finally:
                self.seconds[name] = time.perf_counter() - began

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._stop()
            for thread in self._threads:
                thread.join()
        except BaseException:  # interrupted while waiting
            self._stop()
            for thread in self._threads:
                thread.join()
            raise
        if self._error is not None and (kind is None or issubclass(kind, Stopped)):
            raise self._error

    def _stop(self) -> None:
        for channel in self._channels:
            channel.stop()
