"""What a training has to say: a line for people and the same as fields for machines, told as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

Advance = Callable[[int], None]
# How long work is shown: label, total and unit → what to call with the number of units just done.
Progress = Callable[[str, int, str], AbstractContextManager[Advance]]


@dataclass(frozen=True, slots=True)
class Event:
    """``name`` says what kind it is; ``warning`` is one to notice."""

    name: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


Tell = Callable[[Event], None]


@contextmanager
def silently(label: str, total: int, unit: str) -> Iterator[Advance]:
    yield lambda count: None
