"""The paper's own losses: gluing on overlaps, and three that hold a translated window against its real IHC partner.

The Fourier, DAB and stain-align losses stand beside the gluing ones because stain-align compares sections (tokens of
the encoder) and all of them need only the colour maths below this room; what UNSB brought is in ``bridge.losses``.

``sheaf_loss`` and ``cocycle_loss`` take any scale; the other three take RGB in [0, 1], [b, 3, h, w]. All are computed
in float32 or better, also under autocast. Norms are means (D6).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from sheafstain.sheaf.registry import CROP
from sheafstain.stain import H_DAB_SOFTPLUS, chromogen, chromogen_on_white, top_tenth_mean
from sheafstain.window import Window

Windows = Sequence[Window]


def sheaf_loss(first: Tensor, second: Tensor, here: Windows, there: Windows, alpha: float = 1.0) -> Tensor:
    """‖μ(G_i|O) − μ(G_j|O)‖₁ + α ‖G_i|O − G_j|O‖₁ on the overlap O of each pair of windows (paper, Eq. 4; D5).

    ``first`` [b, c, h, w] are translations of the windows ``here``, ``second`` of the windows ``there``; μ is the mean
    of each channel over O. Zero if and only if each pair is equal on its overlap (for α > 0). Pairs that overlap
    alike are computed together: with one displacement for the batch this is a handful of kernels.
    """
    _check(first, here)
    _check(second, there)
    alike: dict[tuple[Window, Window], list[int]] = defaultdict(list)
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        overlap = a.overlap(b)
        if overlap.empty:
            raise ValueError(f"the windows {a} and {b} have no pixel in common on which they could agree")
        alike[overlap.within(a), overlap.within(b)].append(i)
    total = torch.zeros((), device=first.device)
    for (of_first, of_second), members in alike.items():
        pair = (first, second) if len(members) == len(first) else (first[members], second[members])
        difference = _exact(pair[0][..., *of_first.slices]) - _exact(pair[1][..., *of_second.slices])
        tone = difference.mean((-2, -1)).abs().mean(1)
        structure = difference.abs().mean((-3, -2, -1))
        total = total + (tone + alpha * structure).sum()
    return total / len(first)


def cocycle_loss(translated: Sequence[Tensor], windows: Sequence[Windows], alpha: float = 1.0) -> Tensor:
    """The two pairs that ``sheaf_loss(G_ref, G_adj1)`` leaves: (ref, adj2) + (adj1, adj2) (paper, Eq. 5; D6).

    ``translated`` are G_ref, G_adj1, G_adj2, each [b, c, h, w], and ``windows`` theirs. Each pair is compared on its
    own overlap, of which the triple overlap is a part.
    """
    (ref, adj1, adj2), (at_ref, at_adj1, at_adj2) = translated, windows
    return sheaf_loss(ref, adj2, at_ref, at_adj2, alpha) + sheaf_loss(adj1, adj2, at_adj1, at_adj2, alpha)


def fourier_loss(generated: Tensor, target: Tensor) -> Tensor:
    """‖H ⊙ log(1 + |FFT(G_grey)|) − H ⊙ log(1 + |FFT(y_grey)|)‖₁ (paper, Eq. 13; D14).

    Grey is the mean of R, G and B, the transform is not normalised, and the mean is over all frequencies, those that H
    removes included. A circular shift of either image changes nothing.
    """
    keep = high_pass(*generated.shape[-2:], device=generated.device)
    return (keep * (_log_spectrum(generated) - _log_spectrum(target))).abs().mean()


def high_pass(h: int, w: int, device: torch.device | str | None = None) -> Tensor:
    """H [h, w]: true where a frequency is farther from 0 than 25 % of the farthest one.

    In the order of ``fft2``, frequency 0 first: the same as a disc cut out of the middle of the shifted spectrum. For a
    square that leaves what is above 0.177 cycles per pixel: 90 % of the frequencies.
    """
    rows, columns = (torch.fft.fftfreq(side, device=device, dtype=torch.float64) for side in (h, w))
    radius = torch.hypot(rows[:, None], columns)
    return radius > 0.25 * radius.max()


def dab_loss(generated: Tensor, target: Tensor) -> Tensor:
    """|p90(DAB(G)) − p90(DAB(y))|, p90 the mean of the strongest tenth of an image (paper, Eq. 12; D14).

    DAB in the convention M2 (``stain.H_DAB_SOFTPLUS``), whose gradient reaches unstained pixels. No order of the pixels
    changes it, hence no shift.
    """
    with torch.no_grad():
        wanted = top_tenth_mean(chromogen(target, H_DAB_SOFTPLUS))
    return (top_tenth_mean(chromogen(generated, H_DAB_SOFTPLUS)) - wanted).abs().mean()


def stain_align_loss(generated: Tensor, target: Tensor, tokens: Callable[[Tensor], Tensor]) -> Tensor:
    """‖Φ(rgb_DAB(G)) − Φ(rgb_DAB(y))‖₁, Φ the patch tokens of the frozen encoder (paper, Eq. 14; D14).

    ``tokens`` takes images [b, 3, 224, 224] in [0, 1] to tokens [b, t, d] with a gradient to the images, for example
    ``lambda images: encoder.differentiable(images).patch``. Only the chromogen is shown to it, on white.
    """

    def of(rgb: Tensor) -> Tensor:
        stained = functional.interpolate(chromogen_on_white(rgb), (CROP, CROP), mode="bilinear", align_corners=False)
        return _exact(tokens(stained))

    with torch.no_grad():
        wanted = of(target)
    return (of(generated) - wanted).abs().mean()


def _log_spectrum(rgb: Tensor) -> Tensor:
    return torch.fft.fft2(_exact(rgb).mean(1)).abs().log1p()


def _check(translated: Tensor, windows: Windows) -> None:
    sizes = {(window.h, window.w) for window in windows}
    if len(windows) != len(translated) or sizes != {tuple(translated.shape[-2:])}:
        raise ValueError(f"{len(windows)} windows of {sizes} do not describe translations {list(translated.shape)}")


def _exact(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
