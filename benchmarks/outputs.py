"""Outputs whose worth is known: the perfect one, and each of the ways in which an output can be wrong or empty.

Every output is made from phantoms. ``truth`` is what a perfect virtual stain would draw: the immunostain of the very
H&E section. ``ihc``, the next section, is what it would be measured against, since nobody has anything better. All
other outputs are worse than the truth by construction, so a metric that prefers one of them has been fooled.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from sheafstain.datasets.phantom.phantom import Phantom
from sheafstain.datasets.phantom.plan import choose_fields
from sheafstain.datasets.phantom.specimen import GRADES, Specimen
from sheafstain.stain import DAB, chromogen, light, optical_density
from sheafstain.window import Resolution, Size, Window

SIDE = 512  # px
TILE = 256  # px
MARGIN = 32  # px of truth around a field, for what is displaced
MPP = Resolution(0.5)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Field:
    """One place of one phantom: uint8 [512, 512, 3] each, ``wide`` with a margin of 32 px around it."""

    name: str
    grade: str
    he: Pixels
    ihc: Pixels
    wide: Pixels
    displacement: float  # px, median over the field, of the next section against this one

    @property
    def truth(self) -> Pixels:
        return self.moved(0, 0)

    def moved(self, y: int, x: int) -> Pixels:
        """The truth of the place that lies y and x px further."""
        return self.wide[MARGIN + y : MARGIN + y + SIDE, MARGIN + x : MARGIN + x + SIDE]

    @classmethod
    def draw(cls, specimen: Specimen) -> Field:
        side = SIDE + 2 * MARGIN
        window = choose_fields(specimen, Size(side, side), MPP, 1)[0]
        layers = Phantom(specimen, "HER2", MPP).draw(window, ("he", "ihc", "truth", "displacement"))
        inner = Window(MARGIN, MARGIN, SIDE, SIDE).slices
        moved = np.hypot(*np.moveaxis(layers["displacement"][inner], -1, 0))
        he, ihc = layers["he"][inner], layers["ihc"][inner]
        return cls(f"f{specimen.seed:04}", GRADES[specimen.her2], he, ihc, layers["truth"], float(np.nanmedian(moved)))


def specimens(count: int) -> list[Specimen]:
    """As many of each HER2 grade, the first that there are."""
    found: list[Specimen] = []
    seed = 0
    while len(found) < count:
        specimen = Specimen.draw(seed)
        if sum(other.her2 == specimen.her2 for other in found) < -(-count // len(GRADES)):
            found.append(specimen)
        seed += 1
    return sorted(found, key=lambda specimen: (specimen.her2, specimen.seed))


Make = Callable[[Sequence[Field], int], Pixels]


@dataclass(frozen=True, slots=True)
class Output:
    """``make`` gives the output for the i-th of the fields."""

    key: str
    title: str
    make: Make


def _of_truth(change: Callable[[Pixels], Pixels]) -> Make:
    return lambda fields, i: change(fields[i].truth)


def blurred(sigma: float) -> Callable[[Pixels], Pixels]:
    def blur(pixels: Pixels) -> Pixels:
        return _bytes(gaussian_filter(pixels.astype(np.float32), (sigma, sigma, 0), mode="reflect"))

    return blur


def stained(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Callable[[Pixels], Pixels]:
    """Another DAB map [h, w] in the same picture; everything else stays."""
    unit = np.array(DAB) / np.linalg.norm(DAB)

    def stain(pixels: Pixels) -> Pixels:
        rgb = torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)
        dab = chromogen(rgb)[0].numpy()
        more = (change(dab) - dab)[None] * unit[:, None, None].astype(np.float32)
        return _bytes(255 * light(optical_density(rgb) + torch.from_numpy(more)).permute(1, 2, 0).numpy())

    return stain


def _toned(pixels: Pixels, factors: NDArray[np.float32]) -> Pixels:
    """Optical densities times ``factors``, [3] or [h, w, 3]."""
    return _bytes(256 * ((pixels + np.float32(1)) / 256) ** factors - 1)


def _tone(fields: Sequence[Field], i: int) -> Pixels:
    return _toned(fields[i].truth, _factors(i, (3,), 0.25))


def _tile_factors(i: int) -> NDArray[np.float32]:
    """A tone for each tile, [h, w, 3], constant within it."""
    return _factors(1000 + i, (SIDE // TILE, SIDE // TILE, 3), 0.16).repeat(TILE, 0).repeat(TILE, 1)


def _factors(seed: int, shape: tuple[int, ...], spread: float) -> NDArray[np.float32]:
    return np.exp(np.random.default_rng(seed).normal(0, spread, shape)).astype(np.float32)


def _tiles(fields: Sequence[Field], i: int) -> Pixels:
    return _toned(fields[i].truth, _tile_factors(i))


def _tiles_without_texture(fields: Sequence[Field], i: int) -> Pixels:
    return _toned(blurred(4)(fields[i].truth), _tile_factors(i))


def _tiles_smeared(fields: Sequence[Field], i: int) -> Pixels:
    """Blurred along the seams alone."""
    tiles = _tiles(fields, i)
    near = np.abs((np.arange(SIDE) + TILE // 2) % TILE - TILE // 2) <= 8
    near &= np.arange(SIDE) > TILE // 2  # the border of the image is no seam
    near &= np.arange(SIDE) < SIDE - TILE // 2
    return np.where((near[:, None] | near)[..., None], blurred(3)(tiles), tiles)


def _tiles_feathered(fields: Sequence[Field], i: int) -> Pixels:
    """Tones that run into one another over 100 px."""
    return _toned(fields[i].truth, gaussian_filter(_tile_factors(i), (28, 28, 0), mode="nearest"))


def _grain(pixels: Pixels) -> Pixels:
    return _bytes(pixels + np.random.default_rng(0).normal(0, 12, pixels.shape))


def _jpeg(quality: int) -> Callable[[Pixels], Pixels]:
    def save(pixels: Pixels) -> Pixels:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        return np.asarray(Image.open(buffer))

    return save


def _plain(*rgb: int) -> Make:
    return lambda fields, i: np.full((SIDE, SIDE, 3), rgb, np.uint8)


def _mean(fields: Sequence[Field], i: int) -> Pixels:
    """The mean colour of all real images: knows nothing of any of them."""
    return _plain(*np.mean([field.ihc.mean((0, 1)) for field in fields], axis=0).round().astype(int))(fields, i)


def _empty(fields: Sequence[Field], i: int) -> Pixels:
    """Nothing but the commonest colour of the slide."""
    return _plain(*np.median(fields[i].truth, axis=(0, 1)).astype(int))(fields, i)


def _bytes(values: NDArray[np.floating]) -> Pixels:
    return values.round().clip(0, 255).astype(np.uint8)


REAL = Output("real", "next section", lambda fields, i: fields[i].ihc)  # what the others are scored against
OUTPUTS = (
    Output("truth", "aligned truth", _of_truth(lambda truth: truth)),
    Output("shift-2", "truth, moved 2 px", lambda fields, i: fields[i].moved(2, 0)),
    Output("shift-8", "truth, moved 8 px", lambda fields, i: fields[i].moved(5, 6)),
    Output("shift-32", "truth, moved 32 px", lambda fields, i: fields[i].moved(-19, 26)),
    *(Output(f"blur-{s}", f"truth, blurred σ {s}", _of_truth(blurred(s))) for s in (1, 2, 4, 8)),
    Output("grain", "truth + noise", _of_truth(_grain)),
    *(Output(f"jpeg-{q}", f"truth, JPEG {q}", _of_truth(_jpeg(q))) for q in (30, 10)),
    Output("tone", "truth, random tone", _tone),
    Output("dab-half", "DAB × ½", _of_truth(stained(lambda dab: dab / 2))),
    Output("dab-double", "DAB × 2", _of_truth(stained(lambda dab: dab * 2))),
    Output("dab-none", "DAB erased", _of_truth(stained(np.zeros_like))),
    Output("dab-elsewhere", "DAB elsewhere", _of_truth(stained(lambda dab: dab[::-1, ::-1]))),
    Output("tiles", "tiles", _tiles),
    Output("tiles-soft", "tiles, blurred σ 4", _tiles_without_texture),
    Output("tiles-smeared", "tiles, seams smeared", _tiles_smeared),
    Output("tiles-feathered", "tiles, feathered", _tiles_feathered),
    Output("shuffled", "real IHC, shuffled", lambda fields, i: fields[(i + 1) % len(fields)].ihc),
    Output("one", "one image for all", lambda fields, i: fields[len(fields) // 2].ihc),
    Output("he", "the H&E itself", lambda fields, i: fields[i].he),
    Output("empty", "empty field", _empty),
    Output("mean", "mean colour", _mean),
    Output("brown", "plain brown", _plain(176, 138, 104)),
    Output("white", "white", _plain(255, 255, 255)),
)
BY_KEY = {output.key: output for output in OUTPUTS}
