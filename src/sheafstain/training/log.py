"""The log of a run: every event as a line of JSON in ``RUN/log.jsonl``, curves for TensorBoard where that is there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sheafstain.training.events import Event, Tell
from sheafstain.training.loop import Report
from sheafstain.whole import write_whole

FILE = "log.jsonl"


class Log:
    """Writes what it is told and tells it on. A process that writes nothing has no log, only a silent one.

    Parameters
    ----------
    run
        Folder of the run; None for a process that is not the first.
    tell
        Who else wants to know.
    """

    def __init__(self, run: Path | None, tell: Tell, tensorboard: bool = True) -> None:
        self.run, self._tell = run, tell
        self._board: Any = _board(run / "tensorboard") if run is not None and tensorboard else None

    def forget_after(self, step: int) -> None:
        """Drop what a killed run logged after the checkpoint that is gone on from: it will happen again."""
        if self.run is None or not (path := self.run / FILE).is_file():
            return
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        write_whole(path, "".join(f"{line}\n" for line in kept).encode())

    def event(self, name: str, text: str, **fields: Any) -> None:
        if self.run is None:
            return
        line = {"event": name, "time": round(time.time(), 3), **fields}
        with (self.run / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        self._tell(Event(name, text, fields))

    def numbers(self, step: int, group: str, values: dict[str, float]) -> None:
        """Curves for TensorBoard."""
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def sentence(report: Report, of_steps: int, epochs: int) -> str:
    """A report for people."""
    losses = "  ".join(f"{name} {value:.4g}" for name, value in report.losses.items())
    return (
        f"step {report.step}/{of_steps}  epoch {report.epoch}/{epochs}  {report.images_per_second:.1f} images/s  "
        f"{report.memory:.1f} GiB  {in_words(report.seconds_left)} left  {losses}"
    )


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line).get("step", 0))
    except (ValueError, AttributeError, TypeError):
        return 1 << 62  # half a line, from a process that was killed while it wrote


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
