"""The FID Inception on a file of the published layout with random values, against torch-fidelity and pytorch-fid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics.inception import Inception, shrink
from sheafstain.metrics.weights import MissingWeights

pytest.importorskip("torch_fidelity")

State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _nothing_else_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "ours"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture(scope="module")
def state() -> State:
    """Names and shapes of torchvision's Inception with 1008 classes, which the published file shares."""
    from torchvision.models import inception_v3

    with torch.device("meta"):
        layout = inception_v3(weights=None, num_classes=1008, aux_logits=False, init_weights=False).state_dict()
    generator = torch.Generator().manual_seed(0)

    def values(name: str, shape: torch.Size) -> Tensor:
        if name.endswith("num_batches_tracked"):
            return torch.tensor(0)
        if name.endswith(("running_var", "bn.weight")):
            return torch.rand(shape, generator=generator) + 0.5
        scale = (2 / shape[1:].numel()) ** 0.5 if len(shape) > 1 else 0.1
        return torch.randn(shape, generator=generator) * scale

    return {name: values(name, tensor.shape) for name, tensor in layout.items()}


@pytest.fixture(scope="module")
def folder(state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_file(state, folder / "fid-inception.safetensors")
    return folder


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Two real-looking uint8 images [2, 3, 330, 410]: coarse noise under fine noise."""
    generator = torch.Generator().manual_seed(7)
    coarse = torch.rand(2, 3, 11, 13, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (330, 410), mode="bicubic")
    return ((smooth + 0.2 * torch.rand(smooth.shape, generator=generator)).clamp(0, 1) * 255).byte()


def test_features_are_those_of_torch_fidelity(state: State, folder: Path, images: Tensor, tmp_path: Path):
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    torch.save(state, file := tmp_path / "random.pth")
    oracle = FeatureExtractorInceptionV3("random", ["2048"], feature_extractor_weights_path=str(file))
    (expected,) = oracle(images)
    ours = Inception(folder, "torch-fidelity")(images)
    assert ours.shape == (2, 2048) and ours.dtype == torch.float32
    assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).mean() > 1e-3, "the features tell the images apart"


def test_features_are_those_of_pytorch_fid(
    state: State, folder: Path, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = pytest.importorskip("pytorch_fid.inception")
    monkeypatch.setattr(oracle, "load_state_dict_from_url", lambda *_, **__: state)
    network = oracle.InceptionV3().eval()
    with torch.no_grad():
        expected = network(images.float() / 255)[0].flatten(1)
    ours = Inception(folder)  # pytorch-fid is the default
    assert torch.allclose(ours(images), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours(images), ours(images.float() / 255)), "bytes and floats are one image"
    assert torch.allclose(ours(images[1:]), ours(images)[1:], rtol=1e-4, atol=1e-5), "the batch leaves no trace"


def test_the_resizer_changes_the_features(folder: Path, images: Tensor):
    network = Inception(folder, "pytorch-fid")
    likewise = {name: network._network(shrink(images, name)).flatten(1) for name in ("torch-fidelity", "clean-fid")}
    for features in likewise.values():
        assert (features - network(images)).abs().mean() > 1e-3


def in_pillow(image: Tensor, side: int = 299) -> np.ndarray:
    """uint8 [3, h, w] → [3, side, side]: each channel in floating point, bicubic, antialiased."""
    channels = [Image.fromarray(channel.numpy().astype(np.float32)) for channel in image]
    return np.stack([np.asarray(channel.resize((side, side), Image.Resampling.BICUBIC)) for channel in channels])


@pytest.mark.parametrize(("h", "w"), [(1024, 1024), (330, 410), (299, 299), (120, 500)])
def test_clean_fid_resizes_as_pillow_does(h: int, w: int):
    image = torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(h))
    expected = in_pillow(image).clip(0, 255)
    ours = shrink(image[None], "clean-fid")[0] * 128 + 128
    assert np.abs(ours.numpy() - expected).max() < 0.01  # of 255: Pillow adds up in float64
    assert torch.equal(shrink(image[None].float() / 255, "clean-fid")[0] * 128 + 128, ours)


@pytest.mark.parametrize(("h", "w"), [(1024, 1024), (330, 410), (120, 500)])
def test_pytorch_fid_resizes_between_pixel_centres_without_antialiasing(h: int, w: int):
    image = torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(h))

    def taps(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = np.maximum((np.arange(299) + 0.5) * length / 299 - 0.5, 0)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, length - 1), at - low

    pixels = image.numpy() / 255
    (y0, y1, fy), (x0, x1, fx) = taps(h), taps(w)
    rows = pixels[:, y0] * (1 - fy)[:, None] + pixels[:, y1] * fy[:, None]
    expected = (rows[..., x0] * (1 - fx) + rows[..., x1] * fx) * 2 - 1
    assert np.abs(shrink(image[None], "pytorch-fid")[0].numpy() - expected).max() < 5e-4  # coordinates in float32


def test_torch_fidelity_samples_in_even_steps_from_the_first_pixel():
    image = torch.randint(0, 256, (1, 3, 598, 897), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    expected = (image[:, :, ::2, ::3].float() - 128) / 128  # a whole number of pixels: nothing to interpolate
    assert torch.allclose(shrink(image, "torch-fidelity"), expected, atol=1e-5)


def test_no_weights_no_network(tmp_path: Path):
    with pytest.raises(MissingWeights, match=r"FID, KID: .*6726825d\.pth is not in .*; fetch https://github.com/"):
        Inception(tmp_path)


def test_another_pickle_under_that_name_is_not_opened(state: State, tmp_path: Path):
    torch.save(state, tmp_path / "pt_inception-2015-12-05-6726825d.pth")
    with pytest.raises(SheafStainError, match=r"not the published one .*not opened; fetch"):
        Inception(tmp_path)


def test_another_network_under_that_name_is_refused(state: State, tmp_path: Path):
    few = {name: tensor for name, tensor in state.items() if not name.startswith("Mixed_7c")}
    few["Conv2d_1a_3x3.conv.weight"] = torch.zeros(32, 1, 3, 3)
    save_file(few, tmp_path / "fid-inception.safetensors")
    with pytest.raises(SheafStainError, match=r"fid-inception\.safetensors: not the weights .*missing.*misshapen"):
        Inception(tmp_path)


def test_wrong_words_and_shapes_are_refused(folder: Path):
    with pytest.raises(UsageError, match=r"no resizer 'lanczos'; there are pytorch-fid, torch-fidelity, clean-fid"):
        Inception(folder, "lanczos")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="b, 3, h, w"):
        Inception(folder)(torch.zeros(3, 299, 299))
