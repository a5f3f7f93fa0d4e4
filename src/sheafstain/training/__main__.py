"""``python -m sheafstain.training CONFIG [--resume] [--key.sub value …]``: training without the command line.

The same as ``sheafstain train``, and what ``torchrun`` starts; it needs neither cyclopts nor what reads slides.
"""

from __future__ import annotations

import signal
import sys

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.training.stopping import REQUEUE


def main(words: list[str]) -> int:
    from sheafstain.training.config import read_config
    from sheafstain.training.run import train

    try:
        if not words or words[0].startswith("-"):
            raise UsageError("usage: python -m sheafstain.training CONFIG [--resume] [--key.sub value …]")
        rest = [word for word in words[1:] if word != "--resume"]
        config = read_config(words[0], rest)
        outcome = train(config, resume="--resume" in words, tell=lambda event: print(event.text, flush=True))
    except SheafStainError as error:
        print(f"sheafstain: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return exit_code(outcome.signal)


def exit_code(stopped_by: int | None) -> int:
    """0 when finished, 75 after SIGTERM: saved, to be started again; 130 after Ctrl-C."""
    if stopped_by is None:
        return 0
    return 130 if stopped_by == signal.SIGINT else REQUEUE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
