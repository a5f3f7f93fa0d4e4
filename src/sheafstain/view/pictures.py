"""Arrays as pictures: made small enough to be shown, coloured by what they mean, and put into text."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LIMIT = 0.1  # RMS on the [0, 1] scale at which the ramp of a defect ends: 25 grey levels of 255
RAMP = ((255, 244, 179), (254, 178, 76), (240, 59, 32), (128, 0, 38))  # from agreement to LIMIT and above
_HATCH = 16  # px between the lines of a hatch
_QUALITY = 88


def shrunk(pixels: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """uint8 [h, w, 3] at most ``longest`` px a side, averaged over what falls together; smaller ones as they are."""
    times = longest / max(pixels.shape[:2])
    if times >= 1:
        return pixels
    h, w = (max(round(side * times), 1) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((w, h), Image.Resampling.BOX))


def as_uri(pixels: NDArray[np.uint8], longest: int) -> str:
    """A JPEG inside an address: ``data:image/jpeg;base64,…``; 4:4:4, since halved chroma would smear DAB."""
    encoded = io.BytesIO()
    Image.fromarray(shrunk(pixels, longest)).save(encoded, "JPEG", quality=_QUALITY, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"


def defect_over(pixels: NDArray[np.uint8], rms: NDArray[np.float32]) -> NDArray[np.uint8]:
    """A defect over the pale image that it belongs to, uint8 [h, w, 3].

    ``rms`` [h, w] is on the [0, 1] scale and NaN where it is undefined, which is hatched: neither low nor high.
    """
    grey = pixels.astype(np.float32).mean(axis=-1, keepdims=True)
    pale = 150 + grey * (105 / 255)
    share = np.clip(np.nan_to_num(rms / LIMIT), 0, 1)[..., None]
    colour = _ramp(share[..., 0])
    weight = np.sqrt(share) * 0.9  # agreement is the pale image itself
    shown = pale * (1 - weight) + colour * weight
    rows, columns = np.ogrid[: rms.shape[0], : rms.shape[1]]
    lines = (rows + columns) % _HATCH < 2
    shown[np.isnan(rms) & lines] = (120, 132, 150)
    return np.clip(shown + 0.5, 0, 255).astype(np.uint8)


def _ramp(share: NDArray[np.float32]) -> NDArray[np.float32]:
    """[h, w] in [0, 1] → RGB [h, w, 3]."""
    stops = np.linspace(0, 1, len(RAMP))
    return np.stack([np.interp(share, stops, [colour[k] for colour in RAMP]) for k in range(3)], -1).astype(np.float32)


def difference(more: NDArray[np.float32], less: NDArray[np.float32], limit: float) -> NDArray[np.uint8]:
    """Two amounts [h, w] compared: red where ``more`` is larger, blue where ``less`` is, white where they are equal."""
    signed = np.clip((more - less) / limit, -1, 1)[..., None]
    red, blue = np.array((178, 24, 43), np.float32), np.array((33, 102, 172), np.float32)
    shown = 255 + np.abs(signed) * (np.where(signed > 0, red, blue) - 255)
    return (shown + 0.5).astype(np.uint8)
