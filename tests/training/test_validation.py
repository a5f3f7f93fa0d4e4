"""Looks at held-out images, with methods whose answer is known; and their picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio
from torch import Tensor, nn

from sheafstain.bridge.noise import CanvasNoise
from sheafstain.slides.image import read_image
from sheafstain.training.data import HeldOut
from sheafstain.training.pictures import heat, write_picture
from sheafstain.training.validation import is_better, look, mean_figures


class Identity:
    """Leaves every window as it is, but for a shade of grey that the window's column gives it."""

    generator = nn.Identity()

    def __init__(self, shade: float = 0.0) -> None:
        self.shade = shade
        self.windows = 0

    def translate(self, he: Tensor, noise: CanvasNoise, M: Tensor | None = None, c_n: Tensor | None = None) -> Tensor:
        self.windows += len(he)
        assert len(he) == len(noise.windows) == len(noise.seeds)
        columns = torch.tensor([window.x // 192 % 2 for window in noise.windows])
        return he + self.shade * columns[:, None, None, None]


@pytest.fixture
def held_out() -> HeldOut:
    rng = np.random.default_rng(0)
    he, ihc = (tuple(rng.integers(30, 200, (448, 448, 3), dtype=np.uint8) for _ in range(2)) for _ in "ab")
    return HeldOut(("a", "b"), he, ihc, None)


def test_what_is_unchanged_is_glued_without_a_defect(held_out: HeldOut):
    method = Identity()
    looks = look(method, held_out, 256, torch.device("cpu"))  # type: ignore[arg-type]
    assert method.windows == 2 * 4
    for one, he, ihc in zip(looks, held_out.he, held_out.ihc, strict=True):
        np.testing.assert_array_equal(one.output, he)
        assert np.nanmax(one.defect) == 0 and np.isnan(one.defect).any()
        assert one.figures["energy"] == 0
        assert one.figures["psnr"] == pytest.approx(peak_signal_noise_ratio(ihc, he))
        assert abs(one.figures["dab_r"]) < 0.02 and abs(one.figures["ssim"]) < 0.1  # independent noise
    assert mean_figures(looks)["psnr"] == pytest.approx(np.mean([one.figures["psnr"] for one in looks]))


def test_shades_are_the_energy_and_the_defect(held_out: HeldOut):
    """Left and right columns differ by 0.1 of [0, 1]; of six pairs of 2 × 2 windows four lie across."""
    looks = look(Identity(0.2), held_out, 256, torch.device("cpu"))  # type: ignore[arg-type]
    assert looks[0].figures["energy"] == pytest.approx(0.1**2 * 4 / 6, rel=1e-4)
    assert np.nanmax(looks[0].defect) == pytest.approx(0.05**2, rel=1e-3)  # half and half: a quarter of the square


def test_undefined_figures_do_not_count():
    from sheafstain.training.validation import Look

    blank = np.zeros((1, 1, 3), np.uint8)
    looks = [Look("x", blank, blank, blank, blank[..., 0], {"psnr": value}) for value in (np.inf, 20.0, 30.0)]
    assert mean_figures(looks) == {"psnr": 25.0}
    assert np.isnan(mean_figures(looks[:1])["psnr"])


def test_what_is_better():
    assert is_better("psnr", 2.0, 1.0) and not is_better("psnr", 1.0, 1.0) and not is_better("psnr", 0.5, 1.0)
    assert is_better("energy", 0.5, 1.0) and not is_better("energy", 2.0, 1.0)
    assert is_better("dab_r", -1.0, None) and not is_better("dab_r", float("nan"), None)


def test_the_picture(held_out: HeldOut, tmp_path: Path):
    looks = look(Identity(0.2), held_out, 256, torch.device("cpu"))  # type: ignore[arg-type]
    picture = read_image(write_picture(tmp_path / "deep" / "a.png", looks))
    assert picture.shape == (18 + 2 * 384 + 6, 4 * 384 + 3 * 6, 3)
    output = picture[18 : 18 + 384, 384 + 6 : 2 * 384 + 6].mean()
    assert output == pytest.approx(looks[0].output.mean(), abs=1)
    assert (picture[18 : 18 + 20, -20:] == 128).all()  # one window alone in the corner


def test_the_colours_of_a_defect():
    colours = heat(np.array([[0.0, (0.1 / 3) ** 2, (0.2 / 3) ** 2, 0.01, 1.0, np.nan]], np.float32))[0].tolist()
    assert colours == [[0, 0, 0], [255, 0, 0], [255, 255, 0], [255, 255, 255], [255, 255, 255], [128, 128, 128]]
