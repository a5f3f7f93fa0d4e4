"""What the commands say: tables and lines for people, one JSON object a line for machines, bars on a terminal only.

People read standard output and see progress on standard error. With ``--json`` standard output holds JSON lines and
nothing else, so that ``sheafstain … --json | jq`` works.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Advance = Callable[[int], None]


class Console:
    """One per process; ``json`` and ``debug`` are set by the launcher before a command runs."""

    def __init__(self) -> None:
        self.json = False
        self.debug = False

    def line(self, text: str = "") -> None:
        """A sentence for people; silent with ``--json``."""
        if not self.json:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Something to know that stops nothing."""
        if self.json:
            self.event("warning", text=text)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def event(self, name: str, /, **fields: Any) -> None:
        """A fact for machines; silent without ``--json``."""
        if self.json:
            print(json.dumps({"event": name, **fields}, ensure_ascii=False, default=str), flush=True)

    def error(self, text: str) -> None:
        if self.json:
            self.event("error", text=text)
        print(f"sheafstain: {text}", file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
        """A table for people; machines get the same facts through ``event``."""
        if self.json:
            return
        from rich.box import SIMPLE_HEAD
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: a file named [red] is not a colour
        # A pipe has no width: give it one that does not fold paths, so that grep finds them.
        width = None if sys.stdout.isatty() else 200
        RichConsole(width=width, highlight=False).print(table)

    @contextmanager
    def progress(self, label: str, total: int, unit: str = "files") -> Iterator[Advance]:
        """Yields a function to call with the number of units just done."""
        if sys.stderr.isatty() and not self.json:
            with _bar(label, total, unit) as advance:
                yield advance
        else:
            yield self._quiet(label, total, unit)

    def _quiet(self, label: str, total: int, unit: str, every: float = 10.0) -> Advance:
        """One line (or event) at most every ``every`` seconds and one at the end: readable in a log file."""
        done, started, spoke = 0, time.monotonic(), time.monotonic()

        def advance(count: int = 1) -> None:
            nonlocal done, spoke
            done += count
            now = time.monotonic()
            if done < total and now - spoke < every:
                return
            spoke = now
            if self.json:
                self.event("progress", label=label, done=done, total=total, unit=unit, seconds=round(now - started, 3))
            else:
                left = f", about {(total - done) / done * (now - started):.0f} s left" if 0 < done < total else ""
                print(f"{label}: {done}/{total} {unit}, {now - started:.1f} s{left}", file=sys.stderr, flush=True)

        return advance


@contextmanager
def _bar(label: str, total: int, unit: str) -> Iterator[Advance]:
    from rich.console import Console as RichConsole
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=RichConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count=1: bar.advance(task, count)


console = Console()
