"""Make the generators that ship with SheafStain, and the evidence of how they work, on one GPU.

    python embedded/make.py out/embedded                  # all of it; the same again goes on where it was stopped
    python embedded/make.py out/embedded --minutes 9      # stop after so long, with everything saved

1. Pairs are drawn, to train on (four markers) and to measure on (HER2, with the aligned truth).
2. All runs are trained at once, for networks so small keep one core busy and the GPU waiting: SheafStain for HER2, ER,
   PR and Ki-67, and what HER2 is compared with: conditioned on neighbourhoods, with the paper's weights of the gluing
   losses, UNSB repaired, UNSB as released. All take as many steps on windows of the same pairs.
3. The models for HER2 are held against each other and against the truth (``evidence.py``), each as soon as it is made.
4. The four models go to ``weights/``, from where they go into ``src/sheafstain/weights``.

The encoder is made before (``train_encoder.py``); the generators are conditioned on the one that ships.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sheafstain.datasets.phantom.specimen import MARKERS

HERE = Path(__file__).resolve().parent
GRACE = 30.0  # seconds to save and end in
MADE = """
## How it was made

By `embedded/make.py` of the repository: one field of 1024² px of each of 128 specimens (seed 31), all immunostained in
one laboratory. `docs/evidence.md` holds it against its rivals and the truth on phantoms that it has not seen.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One training; ``words`` say what is not as in its file."""

    name: str
    file: str
    marker: str
    words: tuple[str, ...] = ()


RUNS = (
    Run("her2", "generator.yaml", "HER2"),
    Run("unsb", "unsb.yaml", "HER2"),
    Run("neighborhood", "generator.yaml", "HER2", ("--settings.conditioning", "neighborhood")),
    Run("unsb-as-released", "unsb.yaml", "HER2", ("--settings.as_released", "true")),
    Run("paper-weights", "generator.yaml", "HER2", ("--settings.sheaf", "1.0", "--settings.cocycle", "0.1")),
    Run("er", "generator.yaml", "ER"),
    Run("pr", "generator.yaml", "PR"),
    Run("ki67", "generator.yaml", "Ki67"),
)
SHIPPED = ("her2", "er", "pr", "ki67")
COMPARED = {
    "UNSB as released": "unsb-as-released",
    "UNSB": "unsb",
    "neighborhood": "neighborhood",
    "lattice": "her2",
    "lattice, paper's weights": "paper-weights",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A command that starts when those named in ``after`` have ended well. What it has done already costs little."""

    name: str
    words: tuple[object, ...]
    after: tuple[str, ...] = ()


def tasks(work: Path, pairs: int, measured: int, side: int, words: Sequence[str]) -> Iterator[Task]:
    """All that is to do, in an order in which it could be done."""
    draw = (HERE / "draw.py", "pairs", "--side", side)
    before: tuple[str, ...] = ()
    for marker in MARKERS:  # one after the other: each takes all cores
        name = f"pairs-{marker}"
        yield Task(name, (*draw, work / name, "--train", pairs, "--val", 4, "--seed", 31, "--marker", marker), before)
        before = (name,)
    hidden = ("--val", measured, "--marker", "HER2", "--seed", 32, "--truth")
    yield Task("truth", (*draw, work / "truth", *hidden), before)
    for run in RUNS:
        folders = ("--data.root", work / f"pairs-{run.marker}", "--output", work / run.name)
        own = ("--encoder.sections", work / "sections" / run.name)  # not one for several at once
        module = ("-m", "sheafstain.training", HERE / run.file, "--resume", "--data.stain", run.marker)
        yield Task(run.name, (*module, *run.words, *folders, *own, *words), (f"pairs-{run.marker}",))
    evidence = (HERE / "evidence.py", work / "truth", work / "evidence")
    yield Task("yardsticks", (*evidence, "--part"), ("truth",))
    models = {run: ("--model", f"{name}={work / run / 'model'}") for name, run in COMPARED.items()}
    for run, model in models.items():
        yield Task(f"evidence-{run}", (*evidence, *model, "--part"), ("yardsticks", run))
    everything = tuple(word for model in models.values() for word in model)
    yield Task("table", (*evidence, *everything), tuple(f"evidence-{run}" for run in models))


def perform(todo: list[Task], work: Path, until: float) -> None:
    """Every task as soon as it can start, failed ones and what needs them left out; ends when the time is over."""
    (work / "logs").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(work / "compiled")}
    running: dict[str, subprocess.Popen[bytes]] = {}
    done: set[str] = set()
    failed: list[str] = []
    began = time.monotonic()
    while (ready := [task for task in todo if done.issuperset(task.after)]) or running:
        for task in ready:
            todo.remove(task)
            print(f"{time.monotonic() - began:.0f} s: {task.name} …", flush=True)
            with (work / "logs" / f"{task.name}.txt").open("a") as log:
                command = [sys.executable, *map(str, task.words)]
                running[task.name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                how = "failed" if process.returncode else "done"
                print(f"{time.monotonic() - began:.0f} s: {name}: {how}", flush=True)
                if process.returncode:
                    failed.append(str(work / "logs" / f"{name}.txt"))
                else:
                    done.add(name)
        if time.monotonic() > until:
            stop(running)
            raise SystemExit(f"{work}: stopped, saved; the same command goes on")
    if failed:
        raise SystemExit(f"not all was made; what failed says why: {', '.join(failed)}")


def stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    over = time.monotonic() + GRACE
    for process in running.values():
        try:
            process.wait(max(over - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()


def collect(model: Path, place: Path) -> None:
    """What ships of a model: its files without the note of their hash, and where it comes from."""
    shutil.copytree(model, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sha256.json"))
    card = place / "README.md"
    card.write_text(card.read_text() + MADE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--pairs", type=int, default=128, help="of each marker, to train on")
    parser.add_argument("--measured", type=int, default=200, help="held-out images with their truth")
    parser.add_argument("--side", type=int, default=1024, help="of all images")
    chosen, words = parser.parse_known_args()  # the rest goes to every training: --key.sub value …
    until, work = time.monotonic() + 60 * chosen.minutes, chosen.work.resolve()
    perform(list(tasks(work, chosen.pairs, chosen.measured, chosen.side, words)), work, until)
    for name in SHIPPED:
        collect(work / name / "model", work / "weights" / name)
    print(f"{work / 'weights'}: {', '.join(SHIPPED)}; evidence in {work / 'evidence'}", flush=True)


if __name__ == "__main__":
    main()
