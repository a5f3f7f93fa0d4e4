"""How one slide came out of the laboratory and the scanner: dyes, glass, lens, sensor, file.

Beer–Lambert: with amounts c_k of dyes whose optical densities are the vectors v_k, a pixel passes I₀ · exp(−Σ c_k v_k).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from sheafstain.datasets.phantom.architecture import Map
from sheafstain.datasets.phantom.field import hashed
from sheafstain.datasets.phantom.specimen import Draws

# Optical density of one unit of dye in R, G, B; each is scaled to length 1 before use.
_HAEMATOXYLIN = (0.62, 0.72, 0.32)
_EOSIN = (0.16, 0.86, 0.42)
_BLOOD = (0.10, 0.80, 0.62)  # erythrocytes take eosin redder than collagen does
_COUNTERSTAIN = (0.67, 0.61, 0.41)  # haematoxylin of an IHC slide: bluer
_DAB = (0.28, 0.51, 0.80)
_PIGMENT = (0.50, 0.60, 0.62)  # dust, formalin pigment


@dataclass(frozen=True)
class Look:
    """A slide's appearance. Rows of ``dyes`` [k, 3] are dye vectors; ``strength`` [k] is the dye in a unit of paint."""

    dyes: NDArray[np.float32]
    strength: NDArray[np.float32]
    white: NDArray[np.float32]  # [3], the light through bare glass, 0 … 1
    thickness: float  # relative, of the section
    uneven: float  # standard deviation of the thickness within the section
    blur: float  # µm, standard deviation of the point spread
    sharpen: float  # the scanner's unsharp mask
    noise: float  # grey levels, standard deviation
    gamma: float
    stroma: float  # how much the matrix takes up beside the cells, relative
    granular: float  # DAB in the cytoplasm of a cell with a stained membrane, relative to it
    jpeg: int  # quality of the scanner's file

    @classmethod
    def draw(cls, seed: int, stain: Literal["he", "ihc"], variation: float = 1.0) -> Look:
        """One among many laboratories and scanners; with a ``variation`` below 1 all are much the same."""
        d = Draws(seed ^ (0x48454845 if stain == "he" else 0x49484349), variation)
        bases = (_HAEMATOXYLIN, _EOSIN, _BLOOD) if stain == "he" else (_COUNTERSTAIN, _DAB, _PIGMENT)
        spread = 0.05 if stain == "he" else 0.037
        dyes = np.array(
            [[v + d.gauss(f"dye {i} {c}", spread) for c, v in enumerate(row)] for i, row in enumerate(bases)]
        )
        dyes = np.clip(dyes, 0.03, None)
        dyes /= np.linalg.norm(dyes, axis=1, keepdims=True)
        if stain == "he":
            strength = [1.45 * np.exp(d.gauss("h", 0.22)), 1.32 * np.exp(d.gauss("e", 0.25)), 1.3]
        else:
            strength = [0.82 * np.exp(d.gauss("h", 0.35)), 1.1 * np.exp(d.gauss("dab", 0.16)), 1.0]
        light = d.between("light", 0.90, 0.985) if d.chance("bright", 0.8) else d.between("dim", 0.70, 0.9)
        # Glass is never quite white: pinkish under H&E, from cream to grey under IHC.
        warm, pink = d.gauss("warm", 0.014), d.between("pink", 0, 0.05 if stain == "he" else 0.012)
        tint = [warm + 0.008, -pink, -warm - 0.008]
        # Mostly in focus; now and then a slide is not.
        blur = d.between("blur", 0.17, 0.4) if d.chance("focused", 0.92) else d.between("unfocused", 0.5, 1.2)
        return cls(
            dyes=dyes.astype(np.float32),
            strength=np.asarray(strength, np.float32),
            white=np.clip(light + np.asarray(tint), 0.6, 1.0).astype(np.float32),
            thickness=float(np.exp(d.gauss("thickness", 0.1))),
            uneven=d.between("uneven", 0.02, 0.09),
            blur=blur,
            sharpen=d.between("sharpen", 0.3, 1.25) if d.chance("sharpened", 0.75) else 0.0,
            noise=d.between("noise", 0.6, 2.6),
            gamma=float(np.exp(d.gauss("gamma", 0.06))),
            stroma=float(np.exp(d.gauss("stroma", 0.5))),
            granular=d.between("granular", 0.08, 0.5),
            jpeg=round(d.between("jpeg", 72, 93)),
        )

    def photograph(
        self, amounts: list[Map], mist: Map, fold: Map, step: float, key: tuple[int, ...]
    ) -> NDArray[np.uint8]:
        """Dye amounts, each [h, w], to a scanned picture, uint8 [h, w, 3].

        ``mist`` [h, w]: noise of variance 1, the unevenness of the section. ``fold`` [h, w]: relative thickness.
        ``key`` seeds the sensor's noise and names the block, so that a block always comes out the same.
        """
        # The scanner's gamma is taken on the densities, before the lens, where it is a factor.
        thick = np.exp(np.float32(self.uneven) * mist) * fold * np.float32(self.thickness * self.gamma)
        scaled = np.stack([a * thick for a in amounts])
        light = np.tensordot(-(self.dyes * self.strength[:, None]).T, scaled, axes=1)  # [3, h, w]
        np.exp(light, out=light)
        light *= (self.white**self.gamma)[:, None, None]
        sigma = self.blur / step
        for channel in light:
            gaussian_filter(channel, sigma, output=channel, mode="nearest", truncate=3.0)
        if self.sharpen:  # on the grey picture, as scanners do: colours do not fringe
            grey = light.mean(axis=0)
            soft = gaussian_filter(grey, 1.1 * max(sigma, 0.6), mode="nearest", truncate=3.0)
            light += np.float32(self.sharpen) * (grey - soft)
        light *= 255
        sensor = np.random.Generator(np.random.Philox(key=_philox(key))).standard_normal(light.shape[1:], np.float32)
        sensor *= np.float32(self.noise)
        for c, channel in enumerate(light):
            channel += np.roll(sensor, (41 * c, 67 * c), (0, 1))  # one draw, three places: unrelated at a pixel
        light += 0.5  # truncation then rounds
        return np.clip(light, 0, 255, out=light).astype(np.uint8).transpose(1, 2, 0)

    def file(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What the scanner's JPEG leaves of a block: [h, w, 3] in and out."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=self.jpeg, subsampling=2)
        return np.asarray(Image.open(buffer))


def _philox(key: tuple[int, ...]) -> int:
    """A 128-bit key from a few integers."""
    low, high = (int(hashed(channel, 600, *(np.asarray(k) for k in key))) for channel in (1, 2))
    return low | (high << 64)
