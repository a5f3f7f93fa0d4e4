"""``sheafstain models``: which translators are here, and what each is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sheafstain.cli.console import console

if TYPE_CHECKING:
    from sheafstain.methods.listing import ModelEntry
    from sheafstain.methods.model import ModelConfig

GUIDE = "docs/train_your_own.md"


def models(name: str | None = None, /) -> None:
    """List the translators that are here, or show one with its model card.

    Listed are those that ship with SheafStain, those in $SHEAFSTAIN_WEIGHTS (a folder each, as sheafstain export
    writes it) and those in the cache of the Hugging Face Hub. sheafstain stain --model takes these names.

    Parameters
    ----------
    name
        One of them, a model's folder, or an id on the Hugging Face Hub; all when not given.
    """
    from sheafstain.methods.listing import describe

    if name is None:
        _list()
    else:
        _show(describe(name))


def warn_of_synthetic(config: ModelConfig) -> None:
    """Say that a model learned from phantoms. Its configuration tells, not its name."""
    if config.synthetic:
        console.warn(
            f"{config.name} was trained on synthetic tissue alone: on a real slide its {config.stain} means nothing. "
            f"For one that does, train on BCI or MIST: {GUIDE}"
        )


def _list() -> None:
    from sheafstain import hub
    from sheafstain.methods.listing import Damaged, list_models

    found = list_models()
    rows = []
    for entry in found:
        if isinstance(entry, Damaged):
            console.warn(f"{entry.name} is left out: {entry.reason}")
            continue
        facts = _facts(entry)
        console.event("model", **facts)
        config = entry.config
        rows.append(
            (
                entry.name,
                config.stain,
                config.method,
                entry.conditioning,
                _encoder(entry) or "–",
                "–" if config.mpp is None else f"{config.mpp:g}",
                _millions(entry.parameters),
                f"{entry.size / 1e6:.1f} MB",
                entry.hash[:12],
                "phantoms" if config.synthetic else "real pairs",
                entry.where,
            )
        )
    if not rows:
        console.line(f"No translator is here. sheafstain train writes one; {hub.weights_folder()} is where to keep it.")
        return
    columns = ("model", "stain", "method", "sections", "encoder", "µm/px", "params", "size", "hash", "trained on")
    console.table((*columns, "here"), rows)
    if any(entry.config.synthetic for entry in found if not isinstance(entry, Damaged)):
        console.line(f"Those trained on phantoms mean nothing on real slides; {GUIDE} says how to train one that does.")
    console.line("sheafstain models NAME shows a model's card.")


def _show(entry: ModelEntry) -> None:
    facts = _facts(entry)
    console.event("model", **facts, card=entry.card)
    config = entry.config
    rows = [
        ("stain", config.stain),
        ("method", f"{config.method}, {entry.evaluations} evaluations a window"),
        ("sections", _sections(entry)),
        ("expects", "any pixel size" if config.mpp is None else f"H&E at {config.mpp:g} µm per pixel"),
        ("parameters", f"{entry.parameters:,}"),
        ("size", f"{entry.size / 1e6:.1f} MB"),
        ("hash", entry.hash),
        ("trained on", "phantoms: synthetic tissue, no patient" if config.synthetic else "real pairs"),
        ("here", str(entry.path)),
    ]
    console.table((entry.name, ""), rows)
    if entry.card:
        console.line(entry.card)


def _sections(entry: ModelEntry) -> str:
    encoder = _encoder(entry)
    if encoder is None:
        return "none: the model is not conditioned"
    digest = (entry.config.encoder_hash or "")[:12]
    return f"{entry.conditioning}, of {encoder} ({digest}), stride {entry.config.stride}"


def _encoder(entry: ModelEntry) -> str | None:
    name = entry.config.encoder
    if name is None:
        return None
    return f"{name} (missing)" if _has_encoder(name) is False else name


def _has_encoder(name: str) -> bool | None:
    """Whether its weights are here; None where that cannot be known: an encoder of one's own is given as a folder."""
    from sheafstain.errors import UsageError
    from sheafstain.sheaf.registry import find_encoder, weights_of

    try:
        entry = find_encoder(name)
    except UsageError:
        return None
    return entry.random or weights_of(entry) is not None


def _facts(entry: ModelEntry) -> dict[str, object]:
    config = entry.config
    return {
        "name": entry.name,
        "stain": config.stain,
        "method": config.method,
        "conditioning": entry.conditioning,
        "encoder": config.encoder,
        "encoder_hash": config.encoder_hash,
        "encoder_here": None if config.encoder is None else _has_encoder(config.encoder),
        "mpp": config.mpp,
        "evaluations": entry.evaluations,
        "parameters": entry.parameters,
        "bytes": entry.size,
        "hash": entry.hash,
        "synthetic": config.synthetic,
        "where": entry.where,
        "path": str(entry.path),
    }


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"
