"""From a checkpoint to a model that can be used and passed on: weights, ``config.json`` and a model card (D20)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sheafstain import hub
from sheafstain.errors import SheafStainError
from sheafstain.methods.model import ModelConfig, save_model
from sheafstain.methods.registry import find_method
from sheafstain.training.checkpoint import Header, read_checkpoint, under
from sheafstain.training.config import FREE, TrainConfig, config_of
from sheafstain.training.settings import Given

FOLDER = "model"


def export(checkpoint: Path, folder: Path, name: str | None = None) -> Path:
    """Write the model of a checkpoint into a folder: the averaged weights where there is an average."""
    header, tensors = read_checkpoint(checkpoint)
    config = config_of({key: Given(value, str(checkpoint)) for key, value in header.config.items()})
    entry = find_method(config.method)
    generator = entry.build_generator(config.settings, header.facts.get("encoder.width", 0))
    weights = under("parts.G.", tensors) | under("average.", tensors)
    expected = {key: tuple(tensor.shape) for key, tensor in generator.state_dict().items()}
    hub.check_fit(checkpoint, {key: tuple(tensor.shape) for key, tensor in weights.items()}, expected)
    generator.load_state_dict(weights)
    model = ModelConfig(
        name=name or folder.resolve().name,
        method=config.method,
        stain=header.facts["stain"],
        mpp=config.data.mpp,
        settings=dataclasses.asdict(config.settings),
        width=header.facts.get("encoder.width", 0),
        encoder=header.facts.get("encoder"),
        encoder_hash=header.facts.get("encoder.weights"),
        stride=config.encoder.stride,
        training=_told(header),
    )
    return save_model(folder, model, generator, card(model, config, header, entry.title))


def _told(header: Header) -> dict[str, Any]:
    """What the model tells of its training: nothing of the machine's folders."""
    config = {key: value for key, value in header.config.items() if not key.startswith(FREE) or key == "batch"}
    return {"steps": header.step, "samples": header.samples, **header.facts, "config": config} | {
        "figures": header.figures
    }


def card(model: ModelConfig, config: TrainConfig, header: Header, title: str) -> str:
    """The model card, in the Hub's form."""
    facts = header.facts
    encoder = f"{model.encoder} ({(model.encoder_hash or '')[:12]}), stride {model.stride}" if model.encoder else "none"
    figures = "\n".join(f"| {name} | {value:.4g} |" for name, value in header.figures.items())
    measured = (
        f"On {facts.get('held_out', 0)} held-out images, glued from overlapping windows, at the end of training. They "
        f"show that training went well; for figures to quote use `sheafstain score`.\n\n| figure | mean |\n| --- | --: "
        f"|\n{figures}"
        if figures
        else "Nothing was measured on held-out images during training."
    )
    versions = ", ".join(f"{name} {number}" for name, number in facts.get("versions", {}).items())
    limits = _SYNTHETIC if model.synthetic else _LIMITS
    average = f", weights averaged with a half-life of {config.optimiser.ema} samples" if config.optimiser.ema else ""
    return f"""---
library_name: sheafstain
pipeline_tag: image-to-image
tags: [histopathology, virtual-staining, immunohistochemistry, {model.stain}]
---

# {model.name}: virtual {model.stain} from H&E

**Research use only.** Not a medical device; nothing it makes is a diagnosis. A virtual stain shows what is likely given
the H&E, not what an antibody would have bound. Look at the defect map beside every output.

| | |
| --- | --- |
| method | {title} |
| input | H&E, RGB, {f"{model.mpp:g} µm per pixel" if model.mpp else "pixel size not known"} |
| output | {model.stain}, same size and place |
| sections from | {encoder} |
| trained on | {facts.get("images", 0)} pairs ({config.data.layout or "folders"}, split {config.data.train}) |
| training | {header.step} steps, {header.samples} windows of {config.data.window} px, batch {config.batch}{average} |
| seed and machine | {config.seed}; {facts["machine"]}, {facts["time"][:10]} |
| made with | {versions}; revision {facts.get("revision") or "of the package"} |

`sheafstain stain IMAGE --model FOLDER -o OUTPUT` uses it.

## Figures

{measured}

## Limits

{limits}
"""


_LIMITS = """Trained on one collection: other scanners, stainers and tissues may look right and be wrong. The licence of
the training data applies to this model too."""
_SYNTHETIC = """**Trained on phantoms: it has never seen tissue.** Phantoms are procedural pictures of breast-like
tissue. On a real slide its stain means nothing. For one that does, train on real pairs."""


def newest(run: Path, which: str = "last") -> Path:
    """A checkpoint of a run: ``last``, ``best``, the number of a step, or the path of a file."""
    from sheafstain.training.checkpoint import Checkpoints

    held = Checkpoints(run)
    steps = held.all()
    if which == "best" and held.best.is_file():
        return held.best
    if which == "last" and steps:
        return steps[-1]
    if which.isdecimal():
        for path in steps:
            if int(path.stem.removeprefix("step-")) == int(which):
                return path
    if Path(which).is_file():
        return Path(which)
    has = ", ".join([*(path.stem.removeprefix("step-").lstrip("0") for path in steps), *["best"] * held.best.is_file()])
    raise SheafStainError(f"{run}: has no checkpoint {which!r}; it has {has or 'none'}")
