"""Make the generators that are to ship with SheafStain, and the evidence of how they work, on one GPU.

    python embedded/make.py out/embedded                  # all of it; the same again goes on where it was stopped
    python embedded/make.py out/embedded --minutes 9      # stop after so long, with everything saved

1. Pairs are drawn, to train on (four markers) and to measure on (HER2, with the aligned truth).
2. Runs are trained two at a time, for a GPU waits on the launches of networks so small: SheafStain for HER2, ER, PR and
   Ki-67, and what HER2 is compared with: conditioned on neighbourhoods, UNSB repaired, UNSB as released. All see the
   same number of windows of the same pairs.
3. The models for HER2 are held against each other and against the truth (``evidence.py``).
4. The four models go to ``weights/``, from where they go into ``src/sheafstain/weights``.

The encoder is made before (``train_encoder.py``); the generators are conditioned on the one that ships. All of it
should take half an hour; it has been run whole at tiny size only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOGETHER = 2  # runs at once
GRACE = 30.0  # seconds to save and end in


@dataclass(frozen=True, slots=True)
class Run:
    """One training; ``words`` say what is not as in its file."""

    name: str
    file: str
    words: tuple[str, ...] = ()


RUNS = (
    Run("her2", "generator.yaml", ("--data.stain", "HER2")),
    Run("unsb", "unsb.yaml"),
    Run("er", "generator.yaml", ("--data.stain", "ER")),
    Run("neighborhood", "generator.yaml", ("--data.stain", "HER2", "--settings.conditioning", "neighborhood")),
    Run("pr", "generator.yaml", ("--data.stain", "PR")),
    Run("unsb-as-released", "unsb.yaml", ("--settings.as_released", "true")),
    Run("ki67", "generator.yaml", ("--data.stain", "Ki67")),
)
SHIPPED = ("her2", "er", "pr", "ki67")
COMPARED = {"UNSB as released": "unsb-as-released", "UNSB": "unsb", "neighborhood": "neighborhood", "lattice": "her2"}


@dataclass
class Making:
    """Steps of the work, each left out when its result is there, until the time is over."""

    work: Path
    until: float
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: object) -> None:
        """A command of this folder or a module, its output in ``logs/NAME.txt``."""
        (self.work / "logs").mkdir(parents=True, exist_ok=True)
        print(f"{name} …", flush=True)
        with (self.work / "logs" / f"{name}.txt").open("a") as log:
            command = [sys.executable, *map(str, words)]
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self.work / "compiled")}
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def wait(self, most: int = 0) -> None:
        """Until no more than ``most`` commands run; ends the program when the time is over or one of them failed."""
        while len(self.running) > most:
            time.sleep(0.2)
            for name, process in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[name]
                    if process.returncode:
                        self.stop()
                        raise SystemExit(f"{name} failed: {self.work / 'logs' / f'{name}.txt'} says why")
                    print(f"{name}: done", flush=True)
            if time.monotonic() > self.until:
                self.stop()
                raise SystemExit(f"{self.work}: stopped, saved; the same command goes on")

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        over = time.monotonic() + GRACE
        for process in self.running.values():
            try:
                process.wait(max(over - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()

    def draw(self, pairs: int, held_out: int, measured: int, side: int) -> None:
        """Drawing goes on where it was stopped, and costs nothing when all is there."""
        shown = ("--train", pairs, "--val", held_out, "--seed", 31)
        hidden = ("--val", measured, "--marker", "HER2", "--seed", 32, "--truth")
        for name, words in (("pairs", shown), ("truth", hidden)):
            self.start(name, HERE / "draw.py", "pairs", self.work / name, *words, "--side", side)
            self.wait()

    def train(self, words: list[str]) -> None:
        for run in RUNS:
            if not (self.work / run.name / "model" / "config.json").exists():
                folders = ("--data.root", self.work / "pairs", "--output", self.work / run.name)
                own = ("--encoder.sections", self.work / "sections" / run.name)  # not one for two at once
                module = ("-m", "sheafstain.training", HERE / run.file, "--resume")
                self.start(run.name, *module, *run.words, *folders, *own, *words)
                self.wait(TOGETHER - 1)
        self.wait()

    def measure(self) -> None:
        models = [f"{name}={self.work / run / 'model'}" for name, run in COMPARED.items()]
        words = [word for model in models for word in ("--model", model)]
        self.start("evidence", HERE / "evidence.py", self.work / "truth", self.work / "evidence", *words)
        self.wait()

    def collect(self) -> None:
        for name in SHIPPED:
            shutil.copytree(self.work / name / "model", self.work / "weights" / name, dirs_exist_ok=True)
        print(f"{self.work / 'weights'}: {', '.join(SHIPPED)}; evidence in {self.work / 'evidence'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--pairs", type=int, default=300, help="of each marker, to train on")
    parser.add_argument("--measured", type=int, default=200, help="held-out images with their truth")
    parser.add_argument("--side", type=int, default=1024, help="of all images")
    chosen, words = parser.parse_known_args()  # the rest goes to every training: --key.sub value …
    making = Making(chosen.work.resolve(), time.monotonic() + 60 * chosen.minutes)
    making.draw(chosen.pairs, 4, chosen.measured, chosen.side)
    making.train(words)
    making.measure()
    making.collect()


if __name__ == "__main__":
    main()
