"""How like real tissue are phantoms? The same simple statistics of both, in one run.

    python benchmarks/likeness.py --real FOLDER [--fields 48] [--plot OUT.png] [--slide SLIDE --beside OUT.jpg]

``FOLDER`` holds real data sets in the BCI or MIST layout; they may not be redistributed, so none is in this repository.
Of every image: optical density, slope of the power spectrum, nuclei for each mm² as a simple detector counts them. The
detector is no truth; it is the same for both, and for phantoms its count stands beside the true one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from machine import record
from scipy.ndimage import gaussian_filter, maximum_filter

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.plan import choose_fields
from sheafstain.datasets.phantom.specimen import MARKERS, Specimen
from sheafstain.errors import SheafStainError
from sheafstain.slides.image import read_image, write_image
from sheafstain.window import Resolution, Size

MPP = 0.4661  # MIST's; BCI's is about the same
SIDE = 1024
BINS = np.linspace(0, 2.5, 101)


def density(rgb: np.ndarray) -> np.ndarray:
    """Natural optical density against the image's own white, [h, w, 3]."""
    values = rgb.astype(np.float64) + 1
    return -np.log(values / np.percentile(values.reshape(-1, 3), 99, axis=0))


def spectrum(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cycles per µm and mean power of the grey image on rings of its spectrum."""
    grey = rgb.mean(axis=2)
    side = min(grey.shape)
    window = np.hanning(side)
    power = np.abs(np.fft.fftshift(np.fft.fft2((grey[:side, :side] - grey.mean()) * window[:, None] * window))) ** 2
    row, column = np.indices(power.shape) - side // 2
    ring = np.hypot(row, column).astype(int)
    mean = np.bincount(ring.ravel(), power.ravel()) / np.bincount(ring.ravel())
    rings = np.arange(1, side // 2)
    return rings / (side * MPP), mean[rings]


def slope(rgb: np.ndarray) -> float:
    """Exponent of the power spectrum between 0.04 and 0.8 cycles per µm (structures of 25 to 1.2 µm)."""
    cycles, power = spectrum(rgb)
    chosen = (cycles > 0.04) & (cycles < 0.8)
    return float(np.polyfit(np.log(cycles[chosen]), np.log(power[chosen]), 1)[0])


def nuclei(rgb: np.ndarray) -> float:
    """Dark blue blobs of the size of a nucleus, for each mm²."""
    red = density(rgb)[..., 0]
    blobs = gaussian_filter(red, 1.3 / MPP) - gaussian_filter(red, 4.0 / MPP)
    peak = (blobs == maximum_filter(blobs, size=int(2 * 2.2 / MPP) | 1)) & (blobs > 0.07)
    return peak.sum() / (red.size * (MPP / 1000) ** 2)


def real_images(folder: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            records = open_dataset(inner).records
        except SheafStainError:
            continue
        for pair in records:
            yield "real", "H&E", read_image(pair.he)
            yield "real", "IHC", read_image(pair.ihc)


def phantom_images(fields: int) -> Iterator[tuple[str, str, np.ndarray, float]]:
    area = (SIDE * MPP / 1000) ** 2
    for seed in range(fields):
        specimen = Specimen.draw(seed)
        window = choose_fields(specimen, Size(SIDE, SIDE), Resolution(MPP), 1)[0]
        drawn = Phantom(specimen, MARKERS[seed % 4], Resolution(MPP)).draw(window, ("he", "ihc", "nuclei"))
        true = (len(np.unique(drawn["nuclei"])) - 1) / area
        yield "phantom", "H&E", drawn["he"], true
        yield "phantom", "IHC", drawn["ihc"], float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, required=True, help="folder that holds data sets (BCI, MIST layouts)")
    parser.add_argument("--fields", type=int, default=48, help="phantom fields to draw")
    parser.add_argument("--plot", type=Path, help="write the distributions to this picture")
    parser.add_argument("--slide", type=Path, help="a real H&E slide, for --beside")
    parser.add_argument(
        "--beside", type=Path, help="write crops of the slide and of phantoms, side by side, to this picture"
    )
    args = parser.parse_args()
    found: dict[tuple[str, str], list[dict]] = {}
    for kind, stain, rgb, true in (
        *((*item, float("nan")) for item in real_images(args.real)),
        *phantom_images(args.fields),
    ):
        od = density(rgb)
        row = {
            "histograms": [np.histogram(od[..., c], BINS, density=True)[0] for c in range(3)],
            "spectrum": spectrum(rgb),
            "od": od.mean(axis=(0, 1)),
            "p99": float(np.percentile(od.mean(axis=2), 99)),
            "slope": slope(rgb),
            "nuclei": nuclei(rgb) if stain == "H&E" else float("nan"),
            "true": true,
        }
        found.setdefault((stain, kind), []).append(row)
    rows = []
    for (stain, kind), images in sorted(found.items()):
        od = np.array([image["od"] for image in images])
        rows.append(
            {
                "stain": stain,
                "images": f"{kind} ({len(images)})",
                "od_red": spread(od[:, 0]),
                "od_green": spread(od[:, 1]),
                "od_blue": spread(od[:, 2]),
                "od_p99": spread([image["p99"] for image in images]),
                "spectrum_slope": spread([image["slope"] for image in images]),
                "nuclei_per_mm2_detected": spread([image["nuclei"] for image in images], 0),
                "nuclei_per_mm2_true": spread([image["true"] for image in images], 0),
            }
        )
    record("likeness", rows)
    if args.plot:
        plot(found, args.plot)
    if args.slide and args.beside:
        write_image(args.beside, beside(args.slide), jpeg_quality=88)


def spread(values, digits: int = 2) -> str:
    """Median and the tenth and ninetieth percentile."""
    values = np.asarray(values, float)
    if np.isnan(values).all():
        return "-"
    low, middle, high = np.nanpercentile(values, [10, 50, 90])
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def beside(slide: Path, side: int = 360, step: int = 120) -> np.ndarray:
    """Two crops of a real slide with most nuclei and two with most collagen, above phantoms at its pixel size."""
    import openslide

    with openslide.OpenSlide(slide) as opened:
        mpp = Resolution(float(opened.properties[openslide.PROPERTY_NAME_MPP_X]))
        whole = np.asarray(opened.read_region((0, 0), 0, opened.dimensions).convert("RGB"))
    crops = []
    for y in range(0, whole.shape[0] - side, step):
        for x in range(0, whole.shape[1] - side, step):
            crop = whole[y : y + side, x : x + side]
            if (crop.min(axis=2) < 225).mean() > 0.9:  # tissue all over
                crops.append((y, x, nuclei(crop), crop))
    crops.sort(key=lambda crop: crop[2])
    chosen: list[tuple] = []
    for candidates in (crops[::-1], crops):
        for crop in candidates:
            apart = all(max(abs(crop[0] - y), abs(crop[1] - x)) >= side for y, x, *_ in chosen)
            if apart:
                chosen.append(crop)
            if len(chosen) in (2, 4):
                break
    drawn = []
    for seed in (0, 9, 20, 28, 41, 50, 52, 63):
        specimen = Specimen.draw(seed)
        window = choose_fields(specimen, Size(side, side), mpp, 1)[0]
        drawn.append(Phantom(specimen, resolution=mpp).he(window))
    rows = [[crop[3] for crop in chosen], drawn[:4], drawn[4:]]
    gap = np.full((side, 6, 3), 255, np.uint8)
    lines = [np.concatenate([part for tile in row for part in (tile, gap)], axis=1) for row in rows]
    return np.concatenate([part for line in lines for part in (line, np.full((6, line.shape[1], 3), 255, np.uint8))])


def plot(found: dict, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 6.4), constrained_layout=True)
    centres = (BINS[1:] + BINS[:-1]) / 2
    for line, stain in zip(axes, ("H&E", "IHC"), strict=True):
        for c, name in enumerate(("red", "green", "blue")):
            for kind, colour in (("phantom", "tab:orange"), ("real", "tab:blue")):
                curves = np.array([image["histograms"][c] for image in found[stain, kind]])
                low, middle, high = np.percentile(curves, [10, 50, 90], axis=0)
                line[c].fill_between(centres, low, high, color=colour, alpha=0.22, lw=0)
                line[c].plot(centres, middle, color=colour, label=f"{kind} ({len(curves)} images)")
            line[c].set(title=f"{stain}: optical density, {name}", xlim=(0, 2.2), ylim=(0, None))
            line[c].set_yticks([])
        for kind, colour in (("phantom", "tab:orange"), ("real", "tab:blue")):
            cycles = found[stain, kind][0]["spectrum"][0]
            curves = np.array([np.interp(cycles, *image["spectrum"]) for image in found[stain, kind]])
            low, middle, high = np.percentile(curves, [10, 50, 90], axis=0)
            line[3].fill_between(cycles, low, high, color=colour, alpha=0.22, lw=0)
            line[3].plot(cycles, middle, color=colour)
        line[3].set(title=f"{stain}: power spectrum", xscale="log", yscale="log", xlabel="cycles per µm")
        line[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
