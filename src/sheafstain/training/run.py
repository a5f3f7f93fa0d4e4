"""A run: a folder, a training in it, and everything that happens to it between its start and its model.

RUN/config.yaml             the resolved configuration; ``sheafstain train RUN --resume`` reads it
RUN/run.json                every start: versions, revision, machine, number of processes
RUN/log.jsonl               every event (``log``)
RUN/checkpoints/            (``checkpoint``)
RUN/pictures/               held-out images (``pictures``)
RUN/model/                  the model at the end (``export``)
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sheafstain.datasets.records import Record
from sheafstain.errors import SheafStainError
from sheafstain.methods.engine import Engine
from sheafstain.methods.registry import find_method
from sheafstain.metrics.protocol import versions
from sheafstain.training import config as configs
from sheafstain.training import data, provenance
from sheafstain.training.checkpoint import Checkpoints, Header, read_checkpoint
from sheafstain.training.config import TrainConfig, what_differs
from sheafstain.training.events import Progress, Tell, silently
from sheafstain.training.export import FOLDER, export
from sheafstain.training.log import Log, sentence
from sheafstain.training.loop import Loop, enough_memory
from sheafstain.training.parallel import World, world
from sheafstain.training.pictures import write_picture
from sheafstain.training.settings import as_flat, as_yaml
from sheafstain.training.stopping import listening
from sheafstain.training.validation import is_better, look, mean_figures
from sheafstain.whole import write_whole


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: after which step, by which signal if by one, and where the model is if it was finished."""

    run: Path
    step: int
    signal: int | None
    model: Path | None


def train(
    config: TrainConfig, *, resume: bool = False, tell: Tell = lambda event: None, progress: Progress = silently
) -> Outcome:
    """Train from the beginning or from the last checkpoint to the end of the schedule, and export the model.

    One call in each process that ``torchrun`` started. SIGTERM and Ctrl-C end it after the step, with a checkpoint.
    """
    folder = Path(config.output)
    with world(config.engine.device) as here, enough_memory(config, here):
        last = _start_from(folder, resume)
        here.wait()  # all have looked before the first one writes
        log = Log(folder if here.first else None, tell, config.watch.tensorboard)
        try:
            return _Run(config, here, log, progress if here.first else silently, last).go()
        finally:
            log.close()


def _start_from(folder: Path, resume: bool) -> Path | None:
    steps = Checkpoints(folder).all()
    if steps and not resume:
        raise SheafStainError(
            f"{folder}: holds a training already; go on with it by --resume, or choose another --output"
        )
    return steps[-1] if steps else None


class _Run:
    def __init__(self, config: TrainConfig, here: World, log: Log, progress: Progress, last: Path | None) -> None:
        self.config, self.here, self.log, self.progress = config, here, log, progress
        self.folder = Path(config.output)
        self.checkpoints = Checkpoints(self.folder, config.watch.keep)
        self.figures: dict[str, float] = {}
        self.best: float | None = None
        header, tensors = read_checkpoint(last) if last is not None else (None, {})
        if header is not None:
            _refuse(last, what_differs(header.config, config))
        records, held_out = data.select(config, config.data.train), data.held_out_records(config)
        here.share(config.batch)  # before anything is read
        conditions = data.Conditions(config, here) if config.conditioned else None
        entry = find_method(config.method)
        align = getattr(config.settings, "stain_align", 0) > 0
        tokens = conditions.tokens if conditions is not None and align else None
        if conditions is not None:
            conditions.complete([*records, *held_out], progress)
        self.facts = _facts(config, records, held_out, conditions, here)
        if header is not None:
            _refuse(last, _changed(header.facts, self.facts))
        if here.first:
            self._open()
        precision = config.engine.precision
        dtype = None if precision is None else getattr(torch, precision)
        self.engine = Engine.on(here.device, dtype, config.engine.compile)
        torch.manual_seed(config.seed)  # the first weights, the same in every process
        method = entry.train(config.settings, self.engine, self.facts.get("encoder.width", 0), tokens)
        data.check_sizes(config, records, method.needs.adjacent)
        batches = data.read_batches(config, records, method.needs, conditions, here, progress)
        self.held_out = data.read_held_out(held_out, conditions, here, progress) if here.first else None
        self.loop = Loop(config, method, batches, here)
        if header is not None:
            try:
                self.loop.load(header.step, header.samples, tensors)
            except (RuntimeError, KeyError, IndexError) as error:
                raise SheafStainError(
                    f"{last}: does not fit these networks ({' '.join(str(error).split())})"
                ) from error
            self.figures = header.figures
            self.best = header.best if header.config["watch.best"] == config.watch.best else None
        self._tell_start(len(records), last)

    def go(self) -> Outcome:
        config, loop, here, watch = self.config, self.loop, self.here, self.config.watch
        with listening() as wish, self.progress("training", loop.end - loop.seen, "images") as advance:
            while not loop.done:
                loop.take_step()
                advance(config.batch)
                stop = here.any(bool(wish))
                leaving = stop or loop.done
                save = leaving or loop.step % watch.save == 0
                look_now = not stop and (loop.done or loop.step % watch.validate == 0)
                if save or look_now or loop.step % watch.log == 0:
                    self._report()
                best = look_now and here.first and self._look()
                if here.first and (save or best):
                    self._save(best)
                if stop:
                    break
                if look_now or save:
                    loop.resume_clock()
            signal = wish.signal
        if not loop.done:
            self.log.event(
                "stopped", f"{self.folder}: stopped after step {loop.step}, saved; --resume goes on", step=loop.step
            )
            return Outcome(self.folder, loop.step, signal or 0, None)
        return Outcome(self.folder, loop.step, None, self._export() if here.first else None)

    # -- what is written ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """The folder with its configuration and a note of this start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints.tidy()
        write_whole(self.folder / configs.CONFIG, as_yaml(self.config).encode())
        note = self.folder / "run.json"
        starts: list[Any] = json.loads(note.read_text()) if note.is_file() else []
        starts.append(self.facts)
        write_whole(note, (json.dumps(starts, indent=2, ensure_ascii=False) + "\n").encode())

    def _tell_start(self, images: int, last: Path | None) -> None:
        loop, engine = self.loop, self.engine
        self.log.forget_after(loop.step)
        count = sum(parameter.numel() for net in loop.method.parts.values() for parameter in net.parameters())
        how = f"{str(engine.dtype).removeprefix('torch.')}{', compiled' if engine.compile else ''}"
        text = (
            f"{self.folder}: {self.config.method}, {count:,} parameters; {images} pairs, {self.steps} steps of "
            f"{self.config.batch} on {self.facts['machine']}, {how}"
        )
        self.log.event(
            "start", text, step=loop.step, parameters=count, images=images, steps=self.steps, processes=self.here.size
        )
        if last is not None:
            self.log.event(
                "resumed", f"goes on from {last.name}, {loop.seen} samples", step=loop.step, samples=loop.seen
            )
        if self.facts.get("encoder.random"):
            text = f"{self.facts['encoder']} is not trained: what it says of tissue is worth nothing"
            self.log.event("warning", text, step=loop.step)

    @property
    def steps(self) -> int:
        """How many there will be, at the present batch."""
        return self.loop.step + max(-(-(self.loop.end - self.loop.seen) // self.config.batch), 0)

    def _report(self) -> None:
        report = self.loop.report(self.folder)
        text = sentence(report, self.steps, self.config.schedule.epochs)
        self.log.event("step", text, **asdict(report))
        self.log.numbers(report.step, "loss", report.losses)
        pace = {"images_per_second": report.images_per_second, "lr": report.lr, "memory": report.memory}
        self.log.numbers(report.step, "run", pace)

    def _look(self) -> bool:
        """Look at the held-out images; whether they were never better."""
        if self.held_out is None:
            return False
        loop = self.loop
        with loop.average.shown() if loop.average is not None else nullcontext():
            looks = look(loop.method, self.held_out, self.config.data.window, self.here.device)
        self.figures = mean_figures(looks)
        picture = write_picture(self.folder / "pictures" / f"step-{loop.step:08d}.png", looks)
        text = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        self.log.event("look", f"held out: {text}; {picture}", step=loop.step, picture=picture.name, **self.figures)
        self.log.numbers(loop.step, "held_out", self.figures)
        value = self.figures[self.config.watch.best]
        better = is_better(self.config.watch.best, value, self.best)
        self.best = value if better else self.best
        return better

    def _save(self, is_best: bool) -> None:
        loop = self.loop
        header = Header(loop.step, loop.seen, as_flat(self.config), self.facts, self.figures, self.best)
        path = self.checkpoints.write(header, loop.tensors(), is_best=is_best)
        self.log.event("checkpoint", f"{path}{', the best so far' if is_best else ''}", step=loop.step, path=str(path))

    def _export(self) -> Path:
        steps = self.checkpoints.all()
        model = export(steps[-1], self.folder / FOLDER, self.folder.resolve().name)
        self.log.event("model", f"{model}: the trained model", step=self.loop.step, path=str(model))
        return model


def _facts(
    config: TrainConfig,
    records: Sequence[Record],
    held_out: Sequence[Record],
    conditions: data.Conditions | None,
    here: World,
) -> dict[str, Any]:
    """What a checkpoint and a model should know beside the configuration."""
    facts: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": f"{here.size} × {provenance.machine(here.device)}",
        "stain": records[0].stain,
        "images": len(records),
        "records": data.fingerprint(records),
        "synthetic": data.synthetic(records),
        "held_out": len(held_out),
        "versions": versions(),
        "revision": provenance.revision(),
    }
    if conditions is not None:
        encoder = conditions.facts
        facts |= {
            "encoder": encoder.id,
            "encoder.weights": encoder.weights_hash,
            "encoder.width": encoder.width,
            "encoder.random": encoder.random,
        }
    return facts


# Facts without which a training would not go on as it began.
_LASTING: tuple[str, ...] = ("stain", "images", "records", "encoder", "encoder.weights", "encoder.width")


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [f"{key} was {before.get(key)}, now {now.get(key)}" for key in _LASTING if before.get(key) != now.get(key)]


def _refuse(checkpoint: Path | None, differ: list[str]) -> None:
    if differ:
        raise SheafStainError(
            f"{checkpoint}: of another training ({'; '.join(differ)}); set it as it was, or choose another --output"
        )
