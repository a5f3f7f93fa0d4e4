"""``sheafstain encoders``: which foundation models can be used, which are here, and how to get the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sheafstain.cli.console import console
from sheafstain.errors import UsageError

if TYPE_CHECKING:
    from sheafstain.sheaf.registry import EncoderEntry


def encoders(
    name: str | None = None,
    /,
    *,
    download: Annotated[bool, Parameter(negative=())] = False,
    convert: Path | None = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
) -> None:
    """List the encoders, or show, download or convert the weights of one.

    Parameters
    ----------
    name
        One encoder; all when not given.
    download
        Fetch its weights from the Hugging Face Hub. A pickle is converted on arrival.
    convert
        Turn this pickled file of tensors (pytorch_model.bin, *.pth) into safetensors, through PyTorch's restricted
        unpickler. With NAME the tensors are checked against that encoder and kept where it is looked for.
    output
        Where --convert writes; beside the file when not given.
    """
    from sheafstain.sheaf.registry import find_encoder, list_encoders

    if convert is not None and download:
        raise UsageError("--convert uses a file that is here and --download fetches one: give one of them")
    if output is not None and (convert is None or name is not None):
        raise UsageError("--output says where --convert writes; with the name of an encoder the place is known")
    if convert is not None:
        _convert(convert, find_encoder(name) if name else None, output)
    elif name is None:
        if download:
            raise UsageError("--download needs the name of an encoder")
        _list(list_encoders())
    else:
        entry = find_encoder(name)
        if download:
            from sheafstain.sheaf.backbone import fetch

            path = fetch(entry)
            console.line(f"{entry.id}: {path}")
        _show(entry)


def _list(entries: tuple[EncoderEntry, ...]) -> None:
    rows = []
    for entry in entries:
        facts = _facts(entry)
        console.event("encoder", **facts)
        rows.append(
            (
                entry.id,
                str(entry.width),
                str(entry.pitch),
                str(entry.prefix),
                f"{entry.mpp.mpp:g}" if entry.mpp else "–",
                f"{entry.parameters / 1e6:.0f} M",
                f"{entry.gflop:.0f}" if entry.gflop else "–",
                entry.licence,
                _access(entry),
                _where(entry),
            )
        )
    columns = ("encoder", "width", "pitch", "prefix", "µm/px", "params", "GFLOP", "licence", "access", "here")
    console.table(columns, rows)
    console.line(
        "prefix: tokens before the patch tokens, CLS first. GFLOP: one 224-px crop, a multiply-add counted as two."
    )
    console.line(
        "sheafstain encoders NAME says how to get one. The random ones are untrained and never chosen for you."
    )


def _show(entry: EncoderEntry) -> None:
    from sheafstain.sheaf.registry import how_to_get

    facts = _facts(entry)
    console.event("encoder", **facts)
    mean, std = entry.normalisation
    rows = [
        ("what", f"{entry.title}{f' ({entry.note})' if entry.note else ''}"),
        (
            "tokens",
            f"{entry.grid}×{entry.grid} of width {entry.width}, every {entry.pitch} px, after {entry.prefix} prefix",
        ),
        ("blocks", str(entry.depth)),
        ("parameters", f"{entry.parameters:,}"),
        ("expects", f"{entry.crop}² px" + (f" at {entry.mpp}" if entry.mpp else ", any pixel size")),
        ("mean", " ".join(f"{value:g}" for value in mean)),
        ("std", " ".join(f"{value:g}" for value in std)),
        ("licence", entry.licence),
        ("page", entry.page or "–"),
        ("here", str(facts["here"] or "no")),
    ]
    if not facts["here"]:
        rows.append(("to get it", how_to_get(entry)))
    console.table((entry.id, ""), rows)


def _facts(entry: EncoderEntry) -> dict[str, object]:
    from sheafstain.sheaf.registry import how_to_get, weights_of

    path = weights_of(entry)
    here = "drawn from a seed" if entry.random else str(path) if path else None
    return {
        "id": entry.id,
        "title": entry.title,
        "repo": entry.repo,
        "width": entry.width,
        "pitch": entry.pitch,
        "grid": entry.grid,
        "prefix": entry.prefix,
        "mpp": entry.mpp.mpp if entry.mpp else None,
        "parameters": entry.parameters,
        "gflop": entry.gflop,
        "licence": entry.licence,
        "gate": entry.gate,
        "here": here,
        "how_to_get": None if here else how_to_get(entry),
    }


def _where(entry: EncoderEntry) -> str:
    """A word: the Hub's cache has paths that no table holds."""
    from sheafstain.hub import place
    from sheafstain.sheaf.registry import weights_of

    if (path := weights_of(entry)) is not None:
        return place(path)
    return "drawn" if entry.random else "no"


def _access(entry: EncoderEntry) -> str:
    if entry.random:
        return "untrained"
    return "ask" if entry.gate else "open"


def _convert(source: Path, entry: EncoderEntry | None, output: Path | None) -> None:
    if entry is not None:
        from sheafstain.sheaf.backbone import adopt

        target = adopt(entry, source)
        console.line(f"{target}: the weights of {entry.id}; they fit")
    else:
        from sheafstain.hub import convert

        target = convert(source, output or source.with_suffix(".safetensors"))
        console.line(f"{target}: written")
    console.event("converted", source=str(source), target=str(target))
