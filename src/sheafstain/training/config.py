"""The configuration of a training: what a file in ``configs/`` and a command line can set.

Everything that belongs to a method alone (networks, bridge, weights of its losses) is its own frozen dataclass, which
the registry names, and stands under ``settings``:

    method: sheafstain
    settings: {ngf: 64, conditioning: lattice, cocycle: 0.1}
    data: {root: data/BCI_dataset, stain: HER2}
    encoder: {name: prov-gigapath}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sheafstain.errors import UsageError
from sheafstain.methods.registry import find_method
from sheafstain.training.schedule import Schedule
from sheafstain.training.settings import Given, Table, as_flat, build, read_arguments, read_table


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which pairs to learn from, and which to look at on the way.

    Parameters
    ----------
    root, layout
        Folder of a data set and how it is laid out; found out when not given.
    stain
        The stain to learn; may be left out where the set has one.
    train, held_out
        The split that is trained on, and that from which held-out images are taken, if any.
    split_file
        A split by slide in place of the folders' own (``sheafstain data check --write-split``).
    mpp
        Pixel size of the images in µm, which the model will state; none if nobody knows.
    window
        Side of the training windows, in px.
    """

    root: str
    layout: Literal["bci", "mist", "pairs"] | None = None
    stain: str | None = None
    train: str = "train"
    held_out: str | None = "val"
    split_file: str | None = None
    mpp: float | None = None
    window: int = 256

    def __post_init__(self) -> None:
        if self.window < 96 or self.window % 16:
            raise ValueError(f"data.window is a multiple of 16 of at least 96 px, not {self.window}")
        if self.mpp is not None and not 0 < self.mpp < 100:
            raise ValueError(f"data.mpp is a pixel size in µm, not {self.mpp}")


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Where sections come from: the folder that ``sheafstain sections`` wrote, by encoder and stride.

    Parameters
    ----------
    name
        As ``sheafstain encoders`` lists it, or a file or folder of weights.
    stride
        Px between the crops of the sections.
    sections
        Folder of the cache; sections that are not there are made when training starts.
    live
        Encode in every step instead. The conditioning ``neighborhood`` always does, its crops differ from step to step.
    """

    name: str = "prov-gigapath"
    stride: int = 80
    sections: str = "out/sections"
    live: bool = False


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """Adam, the same for every turn.

    Parameters
    ----------
    lr
        The full learning rate; it is not scaled with the batch.
    betas
        Of the two moments.
    ema
        After how many samples a weight counts half in the average that is exported in place of the generator; 0 for
        no average.
    """

    lr: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.999)
    ema: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0 or not all(0 <= beta < 1 for beta in self.betas) or self.ema < 0:
            raise ValueError("the optimiser needs lr > 0, two betas in [0, 1), and ema ≥ 0")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to compute. The machine chooses what is not given: on a GPU bfloat16, compiled; elsewhere float32, eager."""

    device: str | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    compile: bool | None = None


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What is written on the way, in steps of the optimiser; the end of a training counts as a multiple of all.

    Parameters
    ----------
    log
        Steps between lines of the log.
    validate, images
        Steps between looks at held-out images, and how many of them.
    save, keep
        Steps between checkpoints, and how many of them stay.
    best
        The held-out figure whose best checkpoint stays too.
    tensorboard
        Also write events for TensorBoard, where it is installed.
    """

    log: int = 50
    validate: int = 2000
    images: int = 4
    save: int = 1000
    keep: int = 2
    best: Literal["dab_r", "psnr", "ssim", "energy"] = "dab_r"
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if min(self.log, self.validate, self.save, self.keep) < 1 or self.images < 0:
            raise ValueError("watch.log, validate, save and keep are at least 1, and watch.images at least 0")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training.

    Parameters
    ----------
    batch
        Samples of a step over all processes together.
    seed
        Of the first weights and of everything that is drawn; a run repeats.
    steps
        Stop after so many steps, counted from the beginning, whatever the schedule says; for trying out.
    output
        Folder of the run.
    """

    data: DataConfig
    settings: Any
    method: str = "sheafstain"
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: Schedule = field(default_factory=Schedule)
    batch: int = 192
    seed: int = 0
    steps: int | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    output: str = "out/train"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"a batch holds one sample or more, not {self.batch}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"the seed is from 0 to 2^63 − 1, not {self.seed}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is 1 or more, or none, not {self.steps}")

    @property
    def conditioned(self) -> bool:
        """Whether the method wants sections."""
        return self.settings.conditioning != "none"


# What may differ between a checkpoint and the run that goes on from it: the state is counted in samples, not in steps.
FREE = ("batch", "steps", "output", "engine.", "watch.", "data.root", "encoder.sections", "encoder.live")


def read_config(path: Path | str, arguments: Sequence[str] = ()) -> TrainConfig:
    """The configuration of a file, or of the folder of a run, with a command line's changes laid over it."""
    path = Path(path)
    file = path / CONFIG if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise UsageError(f"{path}: is not the folder of a run: there is no {CONFIG} in it")
    return config_of(read_table(file) | read_arguments(arguments))


CONFIG = "config.yaml"  # its name in the folder of a run


def config_of(table: Table) -> TrainConfig:
    given = table.get("method", Given("sheafstain", "the default"))
    try:
        entry = find_method(str(given.value))
    except UsageError as error:
        raise UsageError(f"{given.where}: {error}") from error
    return build(TrainConfig, table, {"settings": entry.settings})


def what_differs(before: dict[str, Any], now: TrainConfig) -> list[str]:
    """The settings that make a checkpoint another training's, each with both values."""
    mine = as_flat(now)
    return [
        f"{key} was {before.get(key)}, now {mine.get(key)}"
        for key in {**before, **mine}
        if before.get(key) != mine.get(key) and not key.startswith(FREE)
    ]
