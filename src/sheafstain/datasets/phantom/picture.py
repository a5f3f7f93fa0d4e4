"""A picture to look at: one field in all its layers, side by side, with captions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sheafstain.datasets.phantom.architecture import Tissue
from sheafstain.datasets.phantom.nuclei import Nucleus
from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.specimen import GRADES
from sheafstain.window import Window

_TISSUE = {
    Tissue.GLASS: (255, 255, 255),
    Tissue.STROMA: (246, 205, 220),
    Tissue.TUMOUR: (150, 110, 190),
    Tissue.LUMEN: (225, 240, 250),
    Tissue.FAT: (255, 246, 205),
    Tissue.NECROSIS: (196, 130, 110),
    Tissue.VESSEL: (226, 120, 130),
    Tissue.BLOOD: (190, 40, 50),
    Tissue.DUCT: (90, 140, 210),
}
_NUCLEUS = {
    Nucleus.TUMOUR: (70, 40, 130),
    Nucleus.MITOSIS: (255, 60, 0),
    Nucleus.EPITHELIUM: (20, 70, 150),
    Nucleus.FIBROBLAST: (170, 60, 120),
    Nucleus.LYMPHOCYTE: (20, 130, 60),
    Nucleus.ENDOTHELIUM: (130, 20, 20),
    Nucleus.DEBRIS: (60, 60, 60),
}
_CAPTION = 34  # px


def picture(phantom: Phantom, window: Window) -> NDArray[np.uint8]:
    """Six panels, two rows: what a data set holds above, what only a phantom knows below. uint8 [h, w, 3]."""
    d = phantom.draw(window, ("he", "ihc", "truth", "classes", "tissue", "displacement"))
    s, m = phantom.specimen, phantom.marker
    status = (
        f"grade {GRADES[s.her2]}" if m == "HER2" else f"{ {'ER': s.er, 'PR': s.pr, 'Ki67': s.ki67}[m]:.0%} expected"
    )
    moved = np.hypot(d["displacement"][..., 0], d["displacement"][..., 1])
    panels = [
        ("H&E", d["he"]),
        (f"{m} ({status}), consecutive section", d["ihc"]),
        (f"{m}, aligned truth: the same section", d["truth"]),
        ("tissue and nuclei, truth", _coloured(d["tissue"], d["classes"])),
        (
            f"displacement of the consecutive section, {moved.mean():.0f} px on average",
            _arrows(d["he"], d["displacement"]),
        ),
        ("H&E with outlines of the nuclei", _outlined(d["he"], d["classes"])),
    ]
    captioned = [_caption(text, pixels) for text, pixels in panels]
    return np.concatenate([np.concatenate(captioned[:3], axis=1), np.concatenate(captioned[3:], axis=1)])


def _coloured(tissue: NDArray[np.uint8], classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    out = np.array([_TISSUE[t] for t in Tissue], np.uint8)[tissue]
    nuclei = np.array([(0, 0, 0), *(_NUCLEUS[n] for n in Nucleus)], np.uint8)[classes]
    return np.where((classes > 0)[..., None], nuclei, out)


def _outlined(he: NDArray[np.uint8], classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    inside = classes > 0
    edge = np.zeros_like(inside)
    edge[1:] |= inside[1:] != inside[:-1]
    edge[:, 1:] |= inside[:, 1:] != inside[:, :-1]
    return np.where(edge[..., None], np.array((0, 220, 90), np.uint8), he)


def _arrows(he: NDArray[np.uint8], moved: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Lines from where a thing is in the H&E to where the consecutive section shows it."""
    from PIL import Image, ImageDraw

    pale = Image.fromarray((255 - (255 - he.astype(np.uint16)) // 3).astype(np.uint8))
    draw = ImageDraw.Draw(pale)
    step = 32
    for y in range(step // 2, he.shape[0], step):
        for x in range(step // 2, he.shape[1], step):
            dy, dx = (float(v) for v in moved[y, x])
            draw.line((x, y, x - dx, y - dy), fill=(200, 30, 30), width=2)
            draw.ellipse((x - dx - 2, y - dy - 2, x - dx + 2, y - dy + 2), fill=(30, 30, 160))
    return np.asarray(pale)


def _caption(text: str, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw, ImageFont

    sheet = Image.new("RGB", (pixels.shape[1] + 8, pixels.shape[0] + _CAPTION + 4), "white")
    ImageDraw.Draw(sheet).text((6, 6), text, fill="black", font=ImageFont.load_default(18))
    sheet.paste(Image.fromarray(pixels), (4, _CAPTION))
    return np.asarray(sheet)
