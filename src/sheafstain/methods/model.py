"""A trained translator as a folder: ``config.json``, ``model.safetensors`` and a model card; never a pickle (D20)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sheafstain import __version__, hub
from sheafstain.bridge.noise import CanvasNoise
from sheafstain.errors import SheafStainError
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Tiling
from sheafstain.methods.registry import METHODS, MethodEntry
from sheafstain.whole import whole, write_whole
from sheafstain.window import Resolution

FORMAT = 1
CONFIG, CARD = "config.json", "README.md"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What ``config.json`` says.

    Parameters
    ----------
    name, method, stain
        Of this model, of the method in the registry, of the marker it renders ("HER2").
    mpp
        µm/px of the images it was trained on; inputs are resampled to it. None: not known.
    settings
        Of the method, as its settings class takes them.
    width
        Of the conditioning; 0 without one.
    encoder, encoder_hash, stride
        Which sections it was trained with, and the stride of their crops.
    training
        Data, steps, seed, versions, figures: whatever the training wants to tell. ``synthetic`` among it says that
        its pairs were phantoms.
    """

    name: str
    method: str
    stain: str
    mpp: float | None
    settings: Mapping[str, Any]
    width: int = 0
    encoder: str | None = None
    encoder_hash: str | None = None
    stride: int = 80
    training: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__
    format: int = FORMAT

    @property
    def synthetic(self) -> bool:
        """Whether it learned from phantoms: what it makes of real tissue means nothing."""
        return bool(self.training.get("synthetic", False))


class Model:
    """A translator ready to use on one device."""

    def __init__(self, config: ModelConfig, generator: nn.Module, engine: Engine, weights_hash: str) -> None:
        self.config, self.engine, self.hash = config, engine, weights_hash
        self.entry: MethodEntry = METHODS[config.method]
        self.settings: Any = self.entry.settings(**config.settings)
        self._generator = engine.place(generator).eval().requires_grad_(False)
        self._predict = engine.compiled(self._generator)

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @property
    def conditioning(self) -> str:
        """``lattice``, ``neighborhood`` or ``none``: where M and c_n come from (D1)."""
        return self.settings.conditioning

    @property
    def tiling(self) -> Tiling:
        return self.entry.tiling

    @property
    def resolution(self) -> Resolution | None:
        return None if self.config.mpp is None else Resolution(self.config.mpp)

    @property
    def latent_width(self) -> int:
        """Of z; 0 for a method without one."""
        return getattr(self._generator, "latent_width", 0)

    @property
    def evaluations(self) -> int:
        """Of the network for one window, when ``nfe`` is not given (D15)."""
        return getattr(self.settings, "T", 1)

    def translate(
        self,
        he: Tensor,
        noise: CanvasNoise,
        M: Tensor | None = None,
        c_n: Tensor | None = None,
        *,
        nfe: int | None = None,
    ) -> Tensor:
        """H&E windows [n, 3, h, w] in [−1, 1] → virtual IHC, float32 in [−1, 1].

        ``noise`` knows the windows and the canvas they lie on. ``M`` [n, d, h/16, w/16] and ``c_n`` [n, d] are their
        cuts of the section, for a model that was trained with one. Everything lies on the model's device.
        """
        he = he.to(memory_format=self.engine.memory_format)
        M, c_n = (None if t is None else t.to(self.engine.dtype) for t in (M, c_n))
        with torch.no_grad(), self.engine.autocast():
            return self.entry.translate(self._predict, self.settings, he, noise, M, c_n, nfe)


def save_model(folder: Path, config: ModelConfig, generator: nn.Module, card: str, *, half: bool = False) -> Path:
    """Write a model, in half precision with ``half``. With ``config.json``, which comes last, it is whole."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    tensors = {
        name: (tensor.half() if half and tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in generator.state_dict().items()
    }
    with whole(folder / hub.SAFE) as part:
        save_file(tensors, part, metadata={"format": "pt"})
    write_whole(folder / CARD, card.encode())
    write_whole(folder / CONFIG, (json.dumps(asdict(config), indent=2, ensure_ascii=False) + "\n").encode())
    return folder


def load_model(
    name_or_path: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    compile: bool | None = None,  # noqa: A002
    download: bool = False,
) -> Model:
    """A model from a folder, by the name of one that is here, or by its id on the Hugging Face Hub.

    Device, type and compilation are chosen by the machine where they are not given (``Engine.on``). ``download``
    fetches what is missing; without it the network is never used.
    """
    path = find_model(name_or_path, download=download)
    config = read_config(path.with_name(CONFIG))
    entry = METHODS[config.method]
    try:
        generator = entry.build_generator(entry.settings(**config.settings), config.width)
    except (TypeError, ValueError) as error:
        raise SheafStainError(f"{path.with_name(CONFIG)}: describes no {config.method} network ({error})") from error
    tensors = hub.load_tensors(path)
    expected = {name: tuple(tensor.shape) for name, tensor in generator.state_dict().items()}
    hub.check_fit(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, expected)
    generator.load_state_dict(tensors)
    return Model(config, generator, Engine.on(device, dtype, compile), hub.content_hash(path))


def find_model(name_or_path: str | Path, *, download: bool = False) -> Path:
    """The weights file of a model, with ``config.json`` beside it."""
    text = str(name_or_path)
    given = Path(text).expanduser()
    bare = hub.locate(text) or hub.locate(text.lower()) if given.name == text else None
    # A folder of stained images is easily called her2, too: then the name means the model that is here.
    if given.is_file() or (given / CONFIG).is_file() or (given.exists() and bare is None):
        path = hub.resolve(given)
    else:
        repo = text if text.count("/") == 1 else None
        found = bare or (hub.locate(text, repo) if repo else None)
        if found is None and repo is not None and download:
            hub.download(text, repo, CONFIG)
            found = hub.download(text, repo, hub.SAFE)
        if found is None:
            fetch = "; --download fetches it from the Hugging Face Hub" if repo else ""
            raise SheafStainError(
                f"{text}: no such folder, and no model of that name is here{fetch}; sheafstain models lists what is"
            )
        path = found
    if not path.with_name(CONFIG).is_file():
        raise SheafStainError(f"{path.parent}: has no {CONFIG}, so it is no model; sheafstain train writes one")
    return path


def read_config(path: Path) -> ModelConfig:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        known = {f.name for f in fields(ModelConfig)}
        if not isinstance(content, dict) or "method" not in content:
            raise SheafStainError(f"{path}: describes no SheafStain model")
        if content.get("format") != FORMAT:
            raise SheafStainError(f"{path}: is of format {content.get('format')}; this version reads {FORMAT}")
        if content["method"] not in METHODS:
            raise SheafStainError(f"{path}: is of method {content['method']!r}; there are {', '.join(METHODS)}")
        return ModelConfig(**{key: value for key, value in content.items() if key in known})
    except (ValueError, TypeError) as error:
        raise SheafStainError(f"{path}: is damaged ({error}); copy or download the model again") from error
