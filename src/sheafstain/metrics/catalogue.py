"""The metrics, one entry each: what the number is, which way is better, when it does not exist and what it needs.

Data alone, so that listing and comparing load no network. What computes each of them is bound in ``suite.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher", "zero", "none"]  # "zero": the smaller magnitude; "none": no order
Kind = Literal[
    "pair",  # one value for each image, of (pred, real)
    "side",  # one value for each image and side; the score is that of pred, the others are the yardstick
    "error",  # as "side", but the score is |pred − real|
    "set",  # one value for the whole set
]

WHOLE = "none: the whole image"
SUBSETS = 100
SUBSET = 100  # images in a KID subset, or half the set where that is fewer


@dataclass(frozen=True, slots=True)
class Metric:
    """``label`` may hold ``{encoder}`` and ``{borders}``; ``undefined`` says when an image has no value."""

    key: str
    label: str
    group: str  # the module that computes it
    kind: Kind
    better: Better
    definition: str
    library: str = "sheafstain"  # the packages whose versions the number depends on
    resizer: str = WHOLE
    direction: str = ""
    undefined: str = ""
    scale: float = 1.0
    weights: tuple[str, ...] = ()
    latex: str = ""
    needs: Literal["", "encoder", "borders", "windows"] = ""  # what has to be given before it can be measured
    extra: bool = False  # only when asked for by name


_INCEPTION = "2048-d pool features of FID-Inception (2015-12-05)"
_LIKE_PYTORCH_FID = "pytorch-fid: bilinear to 299², half-pixel centres, not antialiased"
_LIKE_FIDELITY = "torch-fidelity: bilinear to 299², corners aligned (TensorFlow 1), not antialiased, 8-bit"
_LIKE_CLEAN_FID = "clean-fid: bicubic to 299², antialiased, Pillow in float"
_CROPS = "none: crops side by side at the image's own pixel size, mean of their CLS tokens"
_FRECHET = "Fréchet distance ‖μ₁−μ₂‖² + tr(Σ₁+Σ₂−2(Σ₁Σ₂)^½)"
_KERNEL = "unbiased squared MMD, kernel (x·y/d + 1)³"
_WHOLE_SET = f"{_KERNEL}, on the whole set at once, × 1000"
_DAB = "DAB map by three-stain deconvolution (H, DAB, residual), OD = −ln((I+1)/256), clipped at 0"
_POSITIVE = "positive where DAB > 0.1"
_SEAM = "mean over the seam lines, [0, 1] scale, w = 15"
_AT_256 = "at multiples of 256"
_OWN = "at the borders {borders}"
_NO_SEAM = "no seam: the image has no such line far enough from its border"
_TS = "max(g₀, g₁, g₂): mean absolute step across the line and across the lines w px on either side"
_EXCESS = "g₀ − (g₁+g₂)/2: how much larger the step across the line is than those w px on either side"

CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "fid",
        "FID",
        "distribution",
        "set",
        "lower",
        f"{_FRECHET} of {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_PYTORCH_FID,
        weights=("fid-inception",),
    ),
    Metric(
        "fid-clean",
        "FID (clean)",
        "distribution",
        "set",
        "lower",
        f"{_FRECHET} of {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_CLEAN_FID,
        weights=("fid-inception",),
    ),
    Metric(
        "fid-fidelity",
        "FID (torch-fidelity)",
        "distribution",
        "set",
        "lower",
        f"{_FRECHET} of {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_FIDELITY,
        weights=("fid-inception",),
        extra=True,
    ),
    Metric(
        "kid",
        "KID×10³",
        "distribution",
        "set",
        "lower",
        f"{_WHOLE_SET}; {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_PYTORCH_FID,
        scale=1000.0,
        weights=("fid-inception",),
        latex=r"KID$\times10^{3}$",
    ),
    Metric(
        "kid-clean",
        "KID×10³ (clean)",
        "distribution",
        "set",
        "lower",
        f"{_WHOLE_SET}; {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_CLEAN_FID,
        scale=1000.0,
        weights=("fid-inception",),
        latex=r"KID$\times10^{3}$ (clean)",
    ),
    Metric(
        "kid-fidelity",
        "KID×10³ (torch-fidelity)",
        "distribution",
        "set",
        "lower",
        f"{_WHOLE_SET}; {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_FIDELITY,
        scale=1000.0,
        weights=("fid-inception",),
        extra=True,
        latex=r"KID$\times10^{3}$ (torch-fidelity)",
    ),
    Metric(
        "kid-subsets",
        "KID×10³ (subsets)",
        "distribution",
        "set",
        "lower",
        f"{_KERNEL}, mean and (population) standard deviation over {SUBSETS} random subsets drawn without replacement, "
        f"× 1000; {_INCEPTION}",
        library="sheafstain torch-fidelity",
        resizer=_LIKE_PYTORCH_FID,
        scale=1000.0,
        weights=("fid-inception",),
        latex=r"KID$\times10^{3}$ (subsets)",
    ),
    Metric(
        "fd-encoder",
        "FD ({encoder})",
        "distribution",
        "set",
        "lower",
        f"pathology Fréchet distance: {_FRECHET} of the encoder's features",
        resizer=_CROPS,
        needs="encoder",
    ),
    Metric(
        "kd-encoder",
        "KD×10³ ({encoder})",
        "distribution",
        "set",
        "lower",
        f"pathology kernel distance: {_WHOLE_SET}; the encoder's features",
        resizer=_CROPS,
        scale=1000.0,
        latex=r"KD$\times10^{3}$ ({encoder})",
        needs="encoder",
    ),
    Metric(
        "lpips",
        "LPIPS",
        "fidelity",
        "pair",
        "lower",
        "LPIPS v0.1, AlexNet, inputs in [−1, 1]",
        undefined="an image too small for the network",
        library="sheafstain torchvision",
        weights=("alexnet", "lpips-alex"),
    ),
    Metric(
        "lpips-vgg",
        "LPIPS (VGG)",
        "fidelity",
        "pair",
        "lower",
        "LPIPS v0.1, VGG16, inputs in [−1, 1]",
        undefined="an image too small for the network",
        library="sheafstain torchvision",
        weights=("vgg16", "lpips-vgg"),
        extra=True,
    ),
    Metric(
        "dists",
        "DISTS",
        "fidelity",
        "pair",
        "lower",
        "DISTS, VGG16, inputs in [0, 1]",
        library="sheafstain torchvision",
        weights=("vgg16", "dists"),
    ),
    Metric(
        "psnr",
        "PSNR",
        "fidelity",
        "pair",
        "higher",
        "10·log₁₀(1/MSE) over pixels and channels, data range 1; infinite where pred equals real",
    ),
    Metric(
        "ssim",
        "SSIM",
        "fidelity",
        "pair",
        "higher",
        "Gaussian 11×11, σ 1.5, K 0.01 and 0.03, data range 1, RGB, mirrored at the border",
        undefined="an image smaller than the 11-px window",
    ),
    Metric("ts", "TS", "seam", "side", "lower", f"{_TS}; {_SEAM}; {_AT_256}", undefined=_NO_SEAM),
    Metric(
        "seam-excess",
        "Seam excess",
        "seam",
        "side",
        "zero",
        f"{_EXCESS}; {_SEAM}; {_AT_256}",
        undefined=_NO_SEAM,
    ),
    Metric(
        "ts-borders",
        "TS ({borders})",
        "seam",
        "side",
        "lower",
        f"{_TS}; {_SEAM}; {_OWN}",
        undefined=_NO_SEAM,
        needs="borders",
    ),
    Metric(
        "seam-excess-borders",
        "Seam excess ({borders})",
        "seam",
        "side",
        "zero",
        f"{_EXCESS}; {_SEAM}; {_OWN}",
        undefined=_NO_SEAM,
        needs="borders",
    ),
    Metric(
        "dab-r",
        "DAB-r",
        "chromogen",
        "pair",
        "higher",
        f"Pearson r over the pixels of one image between its DAB map and the real one, 0 if one is constant; {_DAB}",
        latex="DAB-$r$",
    ),
    Metric(
        "dab-kl",
        "DAB-KL",
        "chromogen",
        "pair",
        "lower",
        f"KL divergence of DAB histograms, 256 bins on [0, max of both], + 1e-10, natural logarithm; {_DAB}",
        direction="KL(pred‖real)",
    ),
    Metric(
        "dab-kl-reverse",
        "DAB-KL (reverse)",
        "chromogen",
        "pair",
        "lower",
        f"KL divergence of DAB histograms, 256 bins on [0, max of both], + 1e-10, natural logarithm; {_DAB}",
        direction="KL(real‖pred)",
    ),
    Metric(
        "dab-jsd",
        "DAB-JSD",
        "chromogen",
        "pair",
        "lower",
        f"Jensen–Shannon divergence of the histograms of DAB-KL, at most ln 2; {_DAB}",
    ),
    Metric(
        "iod",
        "IOD",
        "chromogen",
        "error",
        "lower",
        f"|pred − real| of the sum of DAB over positive pixels; {_POSITIVE}; {_DAB}",
    ),
    Metric(
        "miod",
        "mIOD",
        "chromogen",
        "error",
        "lower",
        f"|pred − real| of the mean of DAB over positive pixels, 0 without any; {_POSITIVE}; {_DAB}",
    ),
    Metric(
        "fod",
        "FOD",
        "chromogen",
        "error",
        "lower",
        f"|pred − real| of the share of positive pixels; {_POSITIVE}; {_DAB}",
    ),
    Metric(
        "dab-dice",
        "DAB-Dice",
        "chromogen",
        "pair",
        "higher",
        f"Dice of the positive masks; {_POSITIVE}; {_DAB}",
        undefined="neither image has a positive pixel",
    ),
    Metric(
        "dab-iou",
        "DAB-IoU",
        "chromogen",
        "pair",
        "higher",
        f"intersection over union of the positive masks; {_POSITIVE}; {_DAB}",
        undefined="neither image has a positive pixel",
    ),
    Metric(
        "dab-p90",
        "DAB p90",
        "chromogen",
        "side",
        "none",
        f"mean of the strongest tenth of the DAB map, capped at the 99th percentile; {_DAB}",
    ),
    Metric(
        "dab-p90-r",
        "p90-r",
        "chromogen",
        "set",
        "higher",
        "Pearson r over the images of the set between the DAB p90 of pred and of real (another number than DAB-r)",
        undefined="fewer than three images, or the p90 is the same in all of them",
        latex="p90-$r$",
    ),
    Metric(
        "dirichlet",
        "Dirichlet",
        "windows",
        "pair",
        "lower",
        "mean over overlapping pairs of windows of the mean squared difference on the overlap, [0, 1] scale",
        undefined="no two windows overlap",
        needs="windows",
    ),
)

BY_KEY = {metric.key: metric for metric in CATALOGUE}
GROUPS = tuple(dict.fromkeys(metric.group for metric in CATALOGUE))
