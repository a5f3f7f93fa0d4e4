"""A picture of a look: input, output, target and defect of each held-out image, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sheafstain.slides.image import write_image
from sheafstain.training.validation import Look

SIDE = 384  # px: of the longer side of an image in the picture
GAP, HEAD = 6, 18
WORST = 0.1  # root mean square difference, on the scale of [0, 1], that is drawn white
UNDEFINED = 128  # grey: one window alone, nothing to disagree


def write_picture(path: Path, looks: Sequence[Look]) -> Path:
    """One row an image; the heads of the columns say what they show."""
    rows = [[_small(image) for image in (each.he, each.output, each.target, heat(each.defect))] for each in looks]
    widths = [max(row[column].width for row in rows) for column in range(4)]
    heights = [max(image.height for image in row) for row in rows]
    sheet = Image.new("RGB", (sum(widths) + 3 * GAP, HEAD + sum(heights) + GAP * (len(rows) - 1)), "white")
    draw = ImageDraw.Draw(sheet)
    x = 0
    for column, head in enumerate(("H&E", "output", "target", f"defect, 0 to {WORST:g}")):
        draw.text((x + 2, 3), head, fill="black")
        y = HEAD
        for row, height in zip(rows, heights, strict=True):
            sheet.paste(row[column], (x, y))
            y += height + GAP
        x += widths[column] + GAP
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, np.asarray(sheet))
    return path


def heat(defect: np.ndarray) -> np.ndarray:
    """A defect [h, w], a variance, as uint8 [h, w, 3]: its root from black through red and yellow to white, always on
    the same scale, so that pictures of one training compare."""
    undefined = np.isnan(defect)
    level = np.clip(np.sqrt(np.where(undefined, 0, defect)) / WORST, 0, 1)
    colours = np.stack([np.clip(3 * level - k, 0, 1) for k in range(3)], axis=-1)
    colours = np.rint(255 * colours).astype(np.uint8)
    colours[undefined] = UNDEFINED
    return colours


def _small(image: np.ndarray) -> Image.Image:
    picture = Image.fromarray(image)
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    return picture
