"""Does it work? Models against models on held-out phantoms, where the truth is known.

    python embedded/draw.py pairs out/evidence --val 200 --marker HER2 --seed 32 --truth
    python embedded/evidence.py out/evidence out/table --model unsb=out/unsb/model --model sheafstain=out/her2/model

Every model stains every held-out image in its own way of tiling, and the same suite measures all: against the aligned
truth, which only a phantom has, and not against the consecutive section. The Dirichlet energy is that of the paper, on
256-px windows at stride 192 for every model, whatever its own tiling. Rows without a model are yardsticks: the input,
the consecutive section as a stainer would have made it, and the aligned truth. Writes ``evidence.csv``,
``evidence.md`` and a contact sheet for each of the first images; the stained images are kept, so a run goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.records import Record
from sheafstain.metrics.protocol import choose
from sheafstain.metrics.scoring import score
from sheafstain.metrics.sources import list_items
from sheafstain.metrics.suite import Suite
from sheafstain.sheaf.cover import STRIDE, WINDOW
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.slides.image import read_image, write_image
from sheafstain.translate.pixels import ArraySource
from sheafstain.translate.stainer import Stainer

METRICS = ("seam-excess", "dab-r", "dab-iou", "fd-encoder", "psnr", "ssim")
SHEETS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="phantoms drawn with their truth")
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER[@conditioning]")
    parser.add_argument("--stain", default="HER2")
    parser.add_argument("--limit", type=int, help="only so many images")
    parser.add_argument("--encoder", default="phantom-small", help="whose features the Fréchet distance compares")
    parser.add_argument("--part", action="store_true", help="stain and measure these models alone, and write no table")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    records = open_dataset(chosen.data).select("val", chosen.stain)[: chosen.limit]
    encoder = load_encoder(chosen.encoder, device=chosen.device)
    folders = yardsticks(chosen.data, records, chosen.output)
    energies: dict[str, float | None] = dict.fromkeys(folders)
    asked = [] if chosen.part and chosen.model else list(folders)
    for text in chosen.model:
        name, _, place = text.partition("=")
        folder, _, conditioning = place.partition("@")
        folders[name] = chosen.output / name
        energies[name] = stain(records, folder, conditioning or None, folders[name], chosen.device)
        print(f"{name}: stained, energy {energies[name]:.3g}", flush=True)
        asked.append(name)
    rows = [{"method": name, "energy": energies[name], **measure(name, folders, encoder)} for name in asked]
    if chosen.part:
        return
    write(rows, len(records), chosen.output)
    for record in records[:SHEETS]:
        sheet(record, folders, chosen.output)


def yardsticks(data: Path, records: tuple[Record, ...], output: Path) -> dict[str, Path]:
    """The input, the consecutive section and the truth, each as a folder of images by the names of the records."""
    found = {}
    for name in ("truth", "H&E", "consecutive"):
        found[name] = output / name
        found[name].mkdir(parents=True, exist_ok=True)
        for record in records:
            truth = data / "truth" / record.stain / record.split / "ihc" / f"{record.id}.png"
            source = {"truth": truth, "H&E": record.he, "consecutive": record.ihc}[name]
            place = found[name] / f"{record.id}{source.suffix}"
            if not place.exists():
                shutil.copyfile(source, place)
    return found


def stain(
    records: tuple[Record, ...], folder: str, conditioning: str | None, output: Path, device: str | None
) -> float:
    """Stain all records; the mean energy over images. What is there already is kept."""
    output.mkdir(parents=True, exist_ok=True)
    note = output.with_suffix(".json")
    energies: dict[str, float] = json.loads(note.read_text()) if note.exists() else {}
    stainer = Stainer.load(folder, device=device)
    own = stainer.protocol(conditioning=conditioning, glass=True)
    same = replace(own, cover="lattice", side=WINDOW, stride=STRIDE)
    for record in records:
        if record.id in energies and (output / f"{record.id}.png").exists():
            continue
        he = ArraySource(read_image(record.he))
        write_image(output / f"{record.id}.png", stainer.stain_source(he, own).pixels)
        energies[record.id] = stainer.stain_source(he, same).energy
        note.write_text(json.dumps(energies))
    return float(np.mean([energies[record.id] for record in records]))


def measure(name: str, folders: dict[str, Path], encoder: Encoder) -> dict[str, float | None]:
    suite = Suite(choose(METRICS, ["encoder"]), device=encoder.device, encoder=encoder)
    listing = list_items(folders[name], folders["truth"])
    target = folders[name].parent / "scores" / name
    report = score(listing, suite, target, name=name, features=target.parent / "features", workers=16)
    print(f"{name}: measured", flush=True)
    return {result.key: result.value for result in report.results}


def write(rows: list[dict[str, object]], images: int, output: Path) -> None:
    keys = list(rows[0])
    with (output / "evidence.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*keys, "images"], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "images": images})
    lines = [f"| {' | '.join(keys)} |", f"| --- {'| ---: ' * (len(keys) - 1)}|"]
    lines += [f"| {' | '.join(_cell(row[key]) for key in keys)} |" for row in rows]
    (output / "evidence.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def sheet(record: Record, folders: dict[str, Path], output: Path) -> None:
    """What every row makes of one image, side by side."""
    pictures = [read_image(next(folder.glob(f"{record.id}.*"))) for folder in folders.values()]
    write_image(output / f"sheet-{record.id}.jpg", np.concatenate([picture[:512, :512] for picture in pictures], 1))
    print(f"sheet-{record.id}.jpg: {', '.join(folders)}", flush=True)


if __name__ == "__main__":
    main()
