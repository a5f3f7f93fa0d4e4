"""Run by test_slide.py in a process of its own: translates a slide, killed again and again, until it is whole.

    python kill_and_resume.py INPUT OUTPUT KILLS SEED

Every attempt is a fork, killed after a random time. Prints one line of JSON: the row that each one left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import imagecodecs  # noqa: F401  imported here, once, and not by every fork, as are the next two
import openslide  # noqa: F401
import tifffile  # noqa: F401
import torch
from stain_doubles import MeanEncoder, Wobbling

from sheafstain.translate import files, slide
from sheafstain.translate.progress import Progress
from sheafstain.translate.stainer import Stainer


class Slow(Wobbling):
    def translate(self, *args: Any, **options: Any) -> Any:
        time.sleep(0.06)
        return super().translate(*args, **options)


def attempt(source: Path, output: Path) -> None:
    torch.set_num_threads(1)
    Stainer(Slow(conditioning="lattice"), MeanEncoder(), batch=2).stain_file(source, output)


def main() -> None:
    source, output = Path(sys.argv[1]), Path(sys.argv[2])
    kills, rng = int(sys.argv[3]), random.Random(int(sys.argv[4]))
    files.EVERY, slide.WORTH_KEEPING, slide.GLASS_FROM = 0.05, 0, 0
    state = files.Outputs(output).state / "progress.npz"
    rows = []
    for _ in range(kills):
        child = forked(source, output)
        time.sleep(rng.uniform(0.1, 0.9))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if files.Outputs(output).report.exists():
            break  # a fast machine
        rows.append(Progress.of_bytes(state.read_bytes())[0].row if state.exists() else 0)
    _, status = os.waitpid(forked(source, output), 0)
    print(json.dumps(rows))
    sys.exit(os.waitstatus_to_exitcode(status))


def forked(source: Path, output: Path) -> int:
    child = os.fork()
    if not child:
        attempt(source, output)
        os._exit(0)
    return child


if __name__ == "__main__":
    main()
